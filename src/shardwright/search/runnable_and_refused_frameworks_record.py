"""The training frameworks that can run a plan."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Runners:
    """Export targets, by how far they can run a plan.

    Args:
        exact: targets that run the plan as it is.
        otherwise: (target, difference) of targets that run a different plan.
        refused: (target, reason) of targets that cannot run it.
    """

    exact: tuple[str, ...]
    otherwise: tuple[tuple[str, str], ...]
    refused: tuple[tuple[str, str], ...]
