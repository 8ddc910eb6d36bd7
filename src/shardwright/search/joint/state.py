"""State of one joint search: the best plan so far, what is proven, and what happened to the members
that were looked at.
"""

from __future__ import annotations

from dataclasses import field, replace

from shardwright.cost.bounds.closed_form_arrays import Facts
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.search.joint.arrays import pipeline_of, splits_of
from shardwright.search.joint.chain import Chain, chain_of
from shardwright.search.joint.label_program import Pipeline, Splits
from shardwright.search.joint.member import ChunkChoice, JointPlan
from shardwright.search.joint.pipeline_shapes import PipelineShape, ShapedSpace
from shardwright.search.joint.score import Scored, evaluate, path_score
from shardwright.search.limit import Limit, progress_text

OPEN_LIMIT = 1e9
"""Seconds of a limit that nothing exceeds: when no grid fits."""
MOST_REPAIRS = 12
"""Times that a plan which does not fit recomputes one layer more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """What all parts of a search read, wherever they are looked at (`search.engine`).

    Args:
        facts: of the kernels.
        capacity: bytes of a device.
        tolerance: gap that is good enough.
        effort: of the searches of orders (`search.orders.find.find_order`).
        exact: see `kept_splits`.
    """

    problem: Problem
    shaped: ShapedSpace
    facts: Facts
    capacity: int
    tolerance: float = 0.0
    effort: float = 1.0
    exact: dict[tuple[int, int], Splits] = field(default_factory=dict, compare=False)

    @property
    def chain(self) -> Chain:
        """The chain of the model's layers."""
        return chain_of(self.problem.model)

    @property
    def jitter(self) -> float:
        """That bounds may count on."""
        return self.facts.jitter * (1 - 1e-9)

    def norm(self, pipeline: PipelineShape) -> float:
        """Seconds of the norm of the gradients, at least."""
        return float(
            min(self.shaped.costs.norm[self.shaped.prepared.mesh_row[list(pipeline.outers)]])
        )

    def pipe(self, pipeline: PipelineShape) -> Pipeline:
        """A pipeline, for the label program."""
        return pipeline_of(self.problem, self.shaped, pipeline, self.facts)

    def splits(self, pipeline: PipelineShape) -> Splits:
        """The arrays of a pipeline's splits."""
        return splits_of(self.problem, self.shaped, self.chain, pipeline, self.facts)

    def exact_splits(self, pipeline: PipelineShape) -> Splits:
        """The arrays of the split of a pipeline with several chunks a rank, each position at its
        own price.
        """
        return self.splits(replace(pipeline, chunks=1))

    def kept_splits(self, pipeline: PipelineShape) -> Splits:
        """`exact_splits` of a pipeline with any order, kept for the next one with that split."""
        key = pipeline.outers[0], pipeline.zero
        if key not in self.exact:
            self.exact[key] = self.exact_splits(pipeline)
        return self.exact[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look at a part of a space found.

    Args:
        lower_s: no member of the part ends before.
        best: the fastest plan, if it is faster than what was known.
        infeasible, scored, simulated: members.
    """

    lower_s: float
    best: Scored | None
    infeasible: int
    scored: int
    simulated: int


@dataclass(slots=True)
class Search:
    """State of one search, or of a look at a part of its space.

    Args:
        lower: seconds that no member of a pipeline ends before, by pipeline (or what was left out,
            below 0).
    """

    footing: Footing
    best_s: float
    best: Scored | None = None
    infeasible: int = 0
    scored: int = 0
    simulated: int = 0
    lower: dict[int, float] = field(default_factory=dict)
    limit: Limit = field(default_factory=Limit)

    @property
    def problem(self) -> Problem:
        """That is searched for."""
        return self.footing.problem

    @property
    def shaped(self) -> ShapedSpace:
        """Its pipelines."""
        return self.footing.shaped

    @property
    def enough_s(self) -> float:
        """Bounds from here on are not worth a look."""
        return self.best_s * (1.0 - self.footing.tolerance)

    @property
    def lower_s(self) -> float:
        """Seconds that no member of the pipelines which were bounded ends before."""
        return min([*self.lower.values(), self.best_s])

    def stands(self, doing: str, *, lower_s: float = 0.0) -> str:
        """Where the search stands (`search.limit.progress_text`)."""
        best_s = self.best_s if self.best_s < OPEN_LIMIT else float("inf")
        return progress_text(doing, best_s=best_s, lower_s=lower_s, limit=self.limit)

    def looked(self, lower_s: float) -> Looked:
        """What was found, of a part that no member ends before `lower_s` of."""
        return Looked(
            lower_s=lower_s,
            best=self.best,
            infeasible=self.infeasible,
            scored=self.scored,
            simulated=self.simulated,
        )

    def take(self, found: Looked) -> None:
        """Count what a look at a part found, and keep its plan if it is better; of equal ones the
        first that is taken stays.
        """
        self.infeasible += found.infeasible
        self.scored += found.scored
        self.simulated += found.simulated
        if found.best is not None and found.best.seconds < self.best_s:
            self.best_s, self.best = found.best.seconds, found.best

    def simulate(self, scored: Scored) -> float:
        """Simulate a plan, and keep it if it fits and is better. Its seconds, inf = no fit."""
        done = evaluate(self.problem, scored)
        if done.result is None or not done.result.fits_in(self.footing.capacity):
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if done.seconds < self.best_s:
            self.best_s, self.best = done.seconds, done
        return done.seconds

    def attempt(self, plan: JointPlan) -> float:
        """Score a plan, with as much more recompute as it needs; simulate it if its path is below
        the best. Its bound; inf = no fit.
        """
        for _ in range(MOST_REPAIRS):
            scored = path_score(self.problem, self.shaped, plan)
            if scored.seconds >= self.enough_s:
                self.scored += 1
                return scored.seconds
            over = [rank for rank, need in enumerate(scored.need) if need > self.footing.capacity]
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
    """The plan with one layer more of each of these ranks' chunks recomputed in full; None if one
    of them has no more.
    """
    p = plan.ranks
    for rank in ranks:
        if all(chunk.redone >= chunk.layers for chunk in plan.chunks[rank::p]):
            return None
    chunks = tuple(_more(chunk) if c % p in ranks else chunk for c, chunk in enumerate(plan.chunks))
    return replace(plan, chunks=chunks)


def _more(chunk: ChunkChoice) -> ChunkChoice:
    redone = min(chunk.redone + 1, chunk.layers)
    return replace(chunk, redone=redone, selective=min(chunk.selective, chunk.layers - redone))
