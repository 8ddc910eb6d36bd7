"""State of one joint search: the best plan so far, proven bounds, and counts of members."""

from __future__ import annotations

from dataclasses import field, replace

from shardwright.cost.bounds.compiled_bound_array_records import ProblemNumbers
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.search.joint.joint_plan_and_step_costs import ChunkChoice, JointPlan
from shardwright.search.joint.joint_space import PipelineShape, ShapedSpace
from shardwright.search.joint.label_dynamic_program_inputs import label_pipeline_of, splits_of
from shardwright.search.joint.model_as_chain_of_one_layer_positions import Chain, chain_of
from shardwright.search.joint.price_layer_runs_and_splits_of_each_rank import Pipeline, Splits
from shardwright.search.joint.score_joint_plan import ScoredPlan, path_score, simulate_scored
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_time_limit import Limit, progress_text

OPEN_LIMIT = 1e9
"""Seconds above every step time: the limit when no grid fits."""
MOST_REPAIRS = 12
"""Most times that a plan that does not fit recomputes one more layer."""
BOUNDED = 64
"""Pipelines that are bounded between two checks of the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTask:
    """A task: bound a pipeline from below, up to `enough_s` seconds."""

    pipeline: PipelineShape
    enough_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JointInputs:
    """Inputs of a joint search under one value of each option, shared by all its tasks.

    Args:
        facts: numbers of the hardware and runtime for the bounds.
        capacity: bytes of a device.
        tolerance: relative gap at which the search stops.
        effort: effort of the order searches (`search.orders.find_order.find_order`).
        exact: cache of `cached_splits`.
    """

    problem: Problem
    shaped: ShapedSpace
    facts: ProblemNumbers
    capacity: int
    tolerance: float = 0.0
    effort: float = 1.0
    exact: dict[tuple[int, int], Splits] = field(default_factory=dict, compare=False)

    @property
    def chain(self) -> Chain:
        """Layer chain of the model."""
        return chain_of(self.problem.model)

    @property
    def jitter(self) -> float:
        """Jitter factor on a step's seconds that a lower bound may use."""
        return self.facts.jitter * (1 - 1e-9)

    def gradient_norm_s(self, pipeline: PipelineShape) -> float:
        """Lower bound in seconds on the gradient-norm computation of a pipeline's steps."""
        return float(
            min(self.shaped.costs.norm[self.shaped.prepared.mesh_row[list(pipeline.outers)]])
        )

    def label_pipeline(self, pipeline: PipelineShape) -> Pipeline:
        """Sizes, memory limits, send and collective rules of a pipeline for the label program."""
        return label_pipeline_of(self.problem, self.shaped, pipeline, self.facts)

    def splits(self, pipeline: PipelineShape) -> Splits:
        """Seconds and bytes of the pipeline's splits for the label program."""
        return splits_of(self.problem, self.shaped, self.chain, pipeline, self.facts)

    def exact_splits(self, pipeline: PipelineShape) -> Splits:
        """Seconds and bytes of a pipeline's split, with each position at its own price.

        For pipelines with several chunks a rank.
        """
        return self.splits(replace(pipeline, chunks=1))

    def cached_splits(self, pipeline: PipelineShape) -> Splits:
        """`exact_splits` of a pipeline with any order, cached by split."""
        key = pipeline.outers[0], pipeline.zero
        if key not in self.exact:
            self.exact[key] = self.exact_splits(pipeline)
        return self.exact[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """Results of one task: the best plan and the counts of the members it scored.

    Args:
        lower_s: lower bound in seconds on every member of the task's part of the space.
        best: the fastest plan, if it is faster than the best before.
        infeasible, scored, simulated: numbers of members.
    """

    lower_s: float
    best: ScoredPlan | None
    infeasible: int
    scored: int
    simulated: int


@dataclass(slots=True)
class JointSearchState:
    """State of a joint search under one value of each option, or of one of its tasks.

    Args:
        lower: lower bound in seconds on all members of a pipeline, by pipeline; keys below 0 for
            members that were left out.
        engine: runs the tasks.
    """

    inputs: JointInputs
    best_s: float
    best: ScoredPlan | None = None
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
        return self.inputs.problem

    @property
    def shaped(self) -> ShapedSpace:
        """The pipelines of this part of the search."""
        return self.inputs.shaped

    @property
    def enough_s(self) -> float:
        """Seconds from which on a lower bound rules a member out."""
        return self.best_s * (1.0 - self.inputs.tolerance)

    @property
    def lower_s(self) -> float:
        """Lower bound in seconds on all members of the pipelines that were bounded."""
        return min([*self.lower.values(), self.best_s])

    def say(self, doing: str, done: int, total: int, *, lower_s: float = 0.0) -> None:
        """Report progress with the best plan so far and its gap."""
        if self.progress is not None:
            best_s = self.best_s if self.best_s < OPEN_LIMIT else float("inf")
            text = progress_text(doing, best_s=best_s, lower_s=lower_s, limit=self.limit)
            self.progress(text, done, total)

    def task_result(self, lower_s: float) -> TaskResult:
        """The results of this task, with the lower bound `lower_s` of its part of the space."""
        return TaskResult(
            lower_s=lower_s,
            best=self.best,
            infeasible=self.infeasible,
            scored=self.scored,
            simulated=self.simulated,
        )

    def add_result(self, result: TaskResult) -> None:
        """Add the counts of a task, and keep its plan if it is faster than the best."""
        self.infeasible += result.infeasible
        self.scored += result.scored
        self.simulated += result.simulated
        if result.best is not None and result.best.seconds < self.best_s:
            self.best_s, self.best = result.best.seconds, result.best

    def simulate(self, scored: ScoredPlan) -> float:
        """Simulate a plan, keep it if it is the fastest, and return its seconds; inf = no fit."""
        done = simulate_scored(self.problem, scored)
        if done.result is None or not done.result.fits_in(self.inputs.capacity):
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if done.seconds < self.best_s:
            self.best_s, self.best = done.seconds, done
        return done.seconds

    def score(self, plan: JointPlan) -> float:
        """Score a plan, recompute more to fit, simulate if promising; bound in seconds or inf.

        Returns a lower bound in seconds on its step, inf if it does not fit.
        """
        for _ in range(MOST_REPAIRS):
            scored = path_score(self.problem, self.shaped, plan)
            if scored.seconds >= self.enough_s:
                self.scored += 1
                return scored.seconds
            over = [rank for rank, need in enumerate(scored.need) if need > self.inputs.capacity]
            if not over:
                return self.simulate(scored)
            more = with_one_more_recomputed_layer(plan, over)
            if more is None:
                self.infeasible += 1
                return float("inf")
            plan = more
        self.scored += 1
        return scored.seconds


def with_one_more_recomputed_layer(plan: JointPlan, ranks: list[int]) -> JointPlan | None:
    """The plan with one more layer of each chunk of `ranks` recomputed in full; None if none left.

    None if one of the ranks has no more layers.
    """
    p = plan.ranks
    for rank in ranks:
        if all(chunk.redone >= chunk.layers for chunk in plan.chunks[rank::p]):
            return None
    chunks = tuple(
        _recompute_one_more(chunk) if c % p in ranks else chunk
        for c, chunk in enumerate(plan.chunks)
    )
    return replace(plan, chunks=chunks)


def _recompute_one_more(chunk: ChunkChoice) -> ChunkChoice:
    """The chunk with one more layer recomputed in full, at most all."""
    redone = min(chunk.redone + 1, chunk.layers)
    return replace(chunk, redone=redone, selective=min(chunk.selective, chunk.layers - redone))
