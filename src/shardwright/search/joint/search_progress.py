"""State of one joint search: the best plan so far, the proven bounds, and the fate of the
members.
"""

from __future__ import annotations

from dataclasses import field, replace

from shardwright.cost.bounds.closed_form_arrays import Facts
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.progress import Progress
from shardwright.search.joint.joint_member import ChunkChoice, JointPlan
from shardwright.search.joint.label_arrays import pipeline_of, splits_of
from shardwright.search.joint.label_options import Pipeline, Splits
from shardwright.search.joint.layer_chain import Chain, chain_of
from shardwright.search.joint.pipeline_shapes import PipelineShape, ShapedSpace
from shardwright.search.joint.score_member import Scored, evaluate, path_score
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_limit import Limit, progress_text

OPEN_LIMIT = 1e9
"""Seconds of a limit that nothing exceeds: when no grid fits."""
MOST_REPAIRS = 12
"""Times that a plan which does not fit recomputes one layer more."""


BOUNDED = 64
"""Pipelines that are bounded between two looks at the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounding:
    """A task: bound a pipeline, as far as its bound is below `enough_s`."""

    pipeline: PipelineShape
    enough_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Footing:
    """Inputs of a joint search under one value of each option, shared by all its tasks.

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
        """Factor of jitter on a step's seconds that a lower bound may use."""
        return self.facts.jitter * (1 - 1e-9)

    def norm(self, pipeline: PipelineShape) -> float:
        """Lower bound in seconds of the norm of the gradients."""
        return float(
            min(self.shaped.costs.norm[self.shaped.prepared.mesh_row[list(pipeline.outers)]])
        )

    def pipe(self, pipeline: PipelineShape) -> Pipeline:
        """The pipeline's numbers for the label program."""
        return pipeline_of(self.problem, self.shaped, pipeline, self.facts)

    def splits(self, pipeline: PipelineShape) -> Splits:
        """Seconds and bytes of the pipeline's splits for the label program."""
        return splits_of(self.problem, self.shaped, self.chain, pipeline, self.facts)

    def exact_splits(self, pipeline: PipelineShape) -> Splits:
        """Seconds and bytes of the split of a pipeline with several chunks a rank, each position
        at its own price.
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
    """Results of one task: members of a part of the space that were looked at.

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
    """State of a joint search under one value of each option, or of one of its tasks.

    Args:
        lower: lower bound in seconds of all members of a pipeline, by pipeline; below 0 of members
            that were left out.
        engine: where tasks run.
    """

    footing: Footing
    best_s: float
    best: Scored | None = None
    infeasible: int = 0
    scored: int = 0
    simulated: int = 0
    lower: dict[int, float] = field(default_factory=dict)
    limit: Limit = field(default_factory=Limit)
    engine: Engine = field(default_factory=Serial)
    progress: Progress | None = None

    @property
    def problem(self) -> Problem:
        """The problem under the options of this part of the search."""
        return self.footing.problem

    @property
    def shaped(self) -> ShapedSpace:
        """The pipelines of this part of the search."""
        return self.footing.shaped

    @property
    def enough_s(self) -> float:
        """Seconds from which on a lower bound rules a member out."""
        return self.best_s * (1.0 - self.footing.tolerance)

    @property
    def lower_s(self) -> float:
        """Lower bound in seconds of all members of the pipelines that were bounded."""
        return min([*self.lower.values(), self.best_s])

    def say(self, doing: str, done: int, total: int, *, lower_s: float = 0.0) -> None:
        """Report progress with the best plan so far and its gap."""
        if self.progress is not None:
            best_s = self.best_s if self.best_s < OPEN_LIMIT else float("inf")
            text = progress_text(doing, best_s=best_s, lower_s=lower_s, limit=self.limit)
            self.progress(text, done, total)

    def looked(self, lower_s: float) -> Looked:
        """The results of this task, of a part of the space with the lower bound `lower_s`."""
        return Looked(
            lower_s=lower_s,
            best=self.best,
            infeasible=self.infeasible,
            scored=self.scored,
            simulated=self.simulated,
        )

    def take(self, found: Looked) -> None:
        """Add the counts of a task, and keep its plan if it is faster; of equal plans the first
        stays.
        """
        self.infeasible += found.infeasible
        self.scored += found.scored
        self.simulated += found.simulated
        if found.best is not None and found.best.seconds < self.best_s:
            self.best_s, self.best = found.best.seconds, found.best

    def simulate(self, scored: Scored) -> float:
        """Simulate a plan, and keep it if it fits and is the fastest; returns its seconds, inf
        if it does not fit.
        """
        done = evaluate(self.problem, scored)
        if done.result is None or not done.result.fits_in(self.footing.capacity):
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if done.seconds < self.best_s:
            self.best_s, self.best = done.seconds, done
        return done.seconds

    def attempt(self, plan: JointPlan) -> float:
        """Score a plan with as much recompute as it needs to fit, and simulate it if its longest
        path is below the best; returns a lower bound of its seconds, inf if it does not fit.
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
    """`plan` with one more layer of each chunk of these ranks recomputed in full; None if one of
    them has no more.
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
