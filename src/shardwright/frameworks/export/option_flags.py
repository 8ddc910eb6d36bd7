"""Options of a runtime as the flags of its framework."""

from __future__ import annotations

import shlex
from collections.abc import Collection

from shardwright.frameworks.export.exporter import Given
from shardwright.runtime.runtime_options import OF_EXPERTS
from shardwright.strategy.grid.model_counts import has_experts


def values_set(given: Given, *frameworks: str) -> dict[str, str]:
    """The value of each option that a plan runs with, but for those that say nothing of its model;
    none where the plan was made for none of these `frameworks`.
    """
    runtime = given.problem.runtime
    if runtime.framework not in frameworks:
        return {}
    values = {**dict(runtime.own), **dict(runtime.options), **dict(given.grid.options)}
    return (
        values
        if has_experts(given.problem.model)
        else {name: value for name, value in values.items() if name not in OF_EXPERTS}
    )


def flags_set(given: Given, *frameworks: str, apart: Collection[str] = ()) -> tuple[str, ...]:
    """The flag of each option at the value that a plan runs with, as its framework's launch script
    writes it; those that set nothing are left out, and all are where the plan was made for none of
    these `frameworks`.

    Args:
        apart: options that are left out.
    """
    values = values_set(given, *frameworks)
    offers = (offer for offer in given.problem.runtime.offers if offer.option not in apart)
    return tuple(
        offer.flag for offer in offers if offer.flag and values.get(offer.option) == offer.value
    )


def flag_pairs(flag: str) -> tuple[tuple[str, str], ...]:
    """(name, value) of each that a flag sets, in any of the ways in which frameworks write them:
    ``--tp 2 --bf16``, ``a.b: true, c: cpu`` or ``a=true b=x,y``; the value of a switch is empty.
    """
    found: list[list[str]] = []
    for word in (word.removesuffix(",") for word in shlex.split(flag)):
        name, equals, value = word.partition("=")
        if word.startswith("--") or equals:
            found.append([name.removeprefix("--"), value])
        elif word.endswith(":"):
            found.append([word.removesuffix(":"), ""])
        elif found:
            found[-1][1] = f"{found[-1][1]} {word}".strip()
    return tuple((name, value) for name, value in found)
