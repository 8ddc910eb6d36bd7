"""The frameworks that can run a plan."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Runners:
    """Targets of `export`, by the parts of a plan that they can run.

    Args:
        exact: run it as it is.
        otherwise: (target, what it does otherwise).
        refused: (target, the first thing that it cannot do).
    """

    exact: tuple[str, ...]
    otherwise: tuple[tuple[str, str], ...]
    refused: tuple[tuple[str, str], ...]
