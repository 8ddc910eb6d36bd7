"""State of one joint search: the best plan so far, what is proven, and what happened to the members that were looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shardwright.program.problem import Problem
from shardwright.search.joint.label_program import Splits
from shardwright.search.joint.member import ChunkChoice, JointPlan
from shardwright.search.joint.pipeline_shapes import ShapedSpace
from shardwright.search.joint.score import Scored, evaluate, path_score
from shardwright.search.limit import Limit
from shardwright.search.standing import standing

Progress = Callable[[str, int, int], None]

OPEN_LIMIT = 1e9
"""Seconds of a limit that nothing exceeds: when no grid fits."""
MOST_REPAIRS = 12
"""Times that a plan which does not fit recomputes one layer more."""


@dataclass(slots=True)
class Search:
    """State of one search.

    Args:
        lower: seconds that no member of a pipeline ends before, by pipeline (or what was left out, below 0). exact: arrays of one split
            alone, by row and ZeRO stage. effort: of the searches of orders (`search.orders.find.find_order`).
    """

    problem: Problem
    shaped: ShapedSpace
    capacity: int
    best_s: float
    best: Scored | None = None
    infeasible: int = 0
    scored: int = 0
    simulated: int = 0
    lower: dict[int, float] = field(default_factory=dict)
    tolerance: float = 0.0
    limit: Limit = field(default_factory=Limit)
    effort: float = 1.0
    exact: dict[tuple[int, int], Splits] = field(default_factory=dict)

    @property
    def enough_s(self) -> float:
        """Bounds from here on are not worth a look."""
        return self.best_s * (1.0 - self.tolerance)

    @property
    def lower_s(self) -> float:
        """Seconds that no member of the pipelines which were bounded ends before."""
        return min([*self.lower.values(), self.best_s])

    def stands(self, doing: str, *, lower_s: float = 0.0) -> str:
        """Where the search stands (`search.standing`)."""
        best_s = self.best_s if self.best_s < OPEN_LIMIT else float("inf")
        return standing(doing, best_s=best_s, lower_s=lower_s, limit=self.limit)

    def simulate(self, scored: Scored) -> float:
        """Simulate a plan, and keep it if it fits and is better. Its seconds, inf = no fit."""
        done = evaluate(self.problem, scored)
        if max(done.need) > self.capacity:
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if done.seconds < self.best_s:
            self.best_s, self.best = done.seconds, done
        return done.seconds

    def attempt(self, plan: JointPlan) -> float:
        """Score a plan, with as much more recompute as it needs; simulate it if its path is below the best. Its bound; inf = no fit."""
        for _ in range(MOST_REPAIRS):
            scored = path_score(self.problem, self.shaped, plan)
            if scored.seconds >= self.enough_s:
                self.scored += 1
                return scored.seconds
            over = [rank for rank, need in enumerate(scored.need) if need > self.capacity]
            if not over:
                return self.simulate(scored)
            more = more_recompute(plan, over)
            if more is None:
                self.infeasible += 1
                return float("inf")
            plan = more
        self.scored += 1
        return scored.seconds


def more_recompute(plan: JointPlan, ranks: list[int]) -> JointPlan | None:
    """The plan with one layer more of each of these ranks' chunks recomputed in full; None if one of them has no more."""
    p = plan.ranks
    for rank in ranks:
        if all(chunk.redone >= chunk.layers for chunk in plan.chunks[rank::p]):
            return None
    chunks = tuple(_more(chunk) if c % p in ranks else chunk for c, chunk in enumerate(plan.chunks))
    return replace(plan, chunks=chunks)


def _more(chunk: ChunkChoice) -> ChunkChoice:
    redone = min(chunk.redone + 1, chunk.layers)
    return replace(chunk, redone=redone, selective=min(chunk.selective, chunk.layers - redone))
