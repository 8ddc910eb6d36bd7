"""Frameworks that run a plan: those that it can be exported to, exactly or with differences."""

from __future__ import annotations

from shardwright.api.exports import given_of
from shardwright.api.stored import Stored
from shardwright.frameworks.export.exporter import Shortfall
from shardwright.frameworks.registry import TARGETS
from shardwright.search.runners import Runners


def runners_of(stored: Stored) -> Runners:
    """The targets of `export` that run a plan, each with its differences; and the reasons of the
    others.
    """
    exact: list[str] = []
    otherwise: list[tuple[str, str]] = []
    refused: list[tuple[str, str]] = []
    for name, exporter in TARGETS.items():
        given = given_of(stored, meshes=exporter.stages_differ)
        found: tuple[Shortfall, ...] = () if given is None else tuple(exporter.shortfalls(given))
        never = [one.what for one in found if not one.instead]
        if given is None or never:
            refused.append((name, never[0] if never else "no grid says this plan"))
        elif found:
            otherwise.append((name, "; ".join(one.what for one in found)))
        else:
            exact.append(name)
    return Runners(exact=tuple(exact), otherwise=tuple(otherwise), refused=tuple(refused))
