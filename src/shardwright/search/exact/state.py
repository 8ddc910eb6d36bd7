"""State of an exact search: the best member so far, and the counts of members by fate."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from shardwright.strategy.plan.plan import Plan


@dataclass(slots=True)
class Counts:
    """Members accounted for; see `Certificate`."""

    enumerated: int = 0
    illegal: int = 0
    duplicates: int = 0
    infeasible: int = 0
    bounded_b0: int = 0
    bounded_b1: int = 0
    simulated: int = 0


@dataclass(slots=True)
class Best:
    """The best member so far."""

    seconds: float = inf
    plan: Plan | None = None
