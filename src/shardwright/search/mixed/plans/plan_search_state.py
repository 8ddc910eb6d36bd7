"""State of a mixed search: the best plan so far, simulated plans and waiting candidates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from itertools import islice
from math import inf

from shardwright.errors import ShardwrightError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks, TaskInputs
from shardwright.search.mixed.plans.compose_pipeline_replicas import cut_lanes
from shardwright.search.mixed.plans.gradient_reduction_delay import estimated_delay_s
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedPlan,
    general_plan,
    subspace_of,
)
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed_cluster_certificate import Subspace
from shardwright.search.search_time_limit import Limit
from shardwright.simulator.simulate_plan import SimulatedPlan, fits_hosts, simulate_plan
from shardwright.strategy.plan.plan import Plan

Lanes = list[tuple[int, int, int]]
"""(shape, replicas, microbatches) of each lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCandidate:
    """A plan that waits for its simulation.

    Args:
        seconds: lower bound on its step.
        likely_s: the bound with gradient reductions as slow as the slowest lane's, which decides
            its turn.
        sharded: some lane shards.
    """

    seconds: float
    likely_s: float
    plan: MixedPlan
    options: Options
    sharded: bool = False

    @property
    def lane_rows(self) -> tuple[tuple[int, ...], ...]:
        """Distinct tuples of a lane's stage-table rows; the gradient reductions depend on them."""
        return tuple(sorted({lane.rows for lane in self.plan.lanes}))


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationTask:
    """A task: simulate a plan.

    Args:
        pipelines_index: index of pipelines with its stage costs in `TaskInputs.pipeline_sets`.
        whole: return the whole simulation, not its seconds alone.
    """

    pipelines_index: int
    plan: MixedPlan
    options: Options
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """Result of simulating a plan that fits.

    Args:
        whole: the whole simulation; None = not requested.
    """

    seconds: float
    whole: SimulatedPlan | None


@dataclass(slots=True)
class SearchState:
    """State of a search: the best plan so far, the examined plans, and the waiting candidates.

    Args:
        seen: keys of examined plans.
        ranked: (seconds, number, plan, options) of all simulated plans that fit.
        waiting: candidates that wait for simulation.
        behind: candidates that cannot be the best.
        limit: time limit of the search for plans.
        after: called with every simulated plan that fits.
    """

    problem: Problem
    best_s: float = float("inf")
    best: Plan | None = None
    mixed: MixedPlan | None = None
    looked_at: int = 0
    simulated: int = 0
    bounded: int = 0
    infeasible: int = 0
    seen: set[object] = field(default_factory=set)
    ranked: list[tuple[float, int, MixedPlan, Options]] = field(default_factory=list)
    waiting: list[MixedCandidate] = field(default_factory=list)
    behind: list[MixedCandidate] = field(default_factory=list)
    limit: Limit = field(default_factory=Limit)
    after: Callable[[Plan, MixedPlan | None, SimulatedPlan], None] | None = None

    def ends(self) -> bool:
        """Check the clock; True = the search for plans ends.

        Raises as `search_time_limit.Limit.ends`.
        """
        return self.limit.ends(found=self.best is not None)

    def simulate(self, plan: Plan, mixed: MixedPlan | None) -> float:
        """Simulate a plan and keep it if it is the best; return its seconds, inf = does not fit.

        Inf also for plans that cannot be lowered to tasks.
        """
        done = simulate_feasible(self.problem, plan)
        return self.add_simulated(
            mixed,
            plan.options,
            None if done is None else SimulatedStep(seconds=done.step_time_s, whole=done),
            lambda: plan,
        )

    def simulate_candidate(
        self, pipeline_sets: Mapping[Options, PricedPipelines], candidate: MixedCandidate
    ) -> None:
        """Simulate a candidate, and keep its plan if it is the best."""
        stage_costs = pipeline_sets[candidate.options].stage_costs
        plan = general_plan(stage_costs, candidate.plan, options=candidate.options)
        self.simulate(plan, candidate.plan)

    def add_simulated(
        self,
        mixed: MixedPlan | None,
        options: Options,
        step: SimulatedStep | None,
        general_form: Callable[[], Plan],
    ) -> float:
        """Count a simulated plan, keep it if it is the best, and return its seconds; inf = no fit.

        Args:
            step: None = the plan does not fit.
            general_form: returns the plan in the general form.
        """
        self.looked_at += 1
        if step is None:
            self.infeasible += 1
            return inf
        self.simulated += 1
        if mixed is not None:
            self.ranked.append((step.seconds, len(self.ranked), mixed, options))
        if self.after is not None:
            assert step.whole is not None
            self.after(general_form(), mixed, step.whole)
        if step.seconds < self.best_s:
            self.best_s, self.best, self.mixed = step.seconds, general_form(), mixed
        return step.seconds

    def simulation_task(
        self, pipelines_index: int, plan: MixedPlan, options: Options
    ) -> SimulationTask:
        """Create the task of simulating a plan."""
        return SimulationTask(
            pipelines_index=pipelines_index,
            plan=plan,
            options=options,
            whole=self.after is not None,
        )

    def drop_slower_candidates(self) -> None:
        """Move waiting candidates whose lower bound is not below the best step time to `behind`."""
        slower = [candidate for candidate in self.waiting if candidate.seconds >= self.best_s]
        self.waiting = [candidate for candidate in self.waiting if candidate.seconds < self.best_s]
        self.behind += slower
        self.bounded += len(slower)
        self.looked_at += len(slower)

    def cut_and_queue(
        self, pipelines: PricedPipelines, lanes: Lanes, limit_s: float, options: Options
    ) -> None:
        """Cut the layers of lanes for the earliest end and queue the plan, unless seen before."""
        if lanes and (options, tuple(sorted(lanes))) not in self.seen:
            self.queue_candidate(lanes, make_candidate(pipelines, lanes, limit_s, options), options)

    def queue_candidate(
        self, lanes: Lanes, candidate: MixedCandidate | None, options: Options
    ) -> None:
        """Queue a candidate, or count None as infeasible, unless its lanes were examined.

        Args:
            candidate: None = no cut of the lanes fits.
        """
        key = (options, tuple(sorted(lanes)))
        if key in self.seen:
            return
        self.seen.add(key)
        if candidate is None:
            self.looked_at += 1
            self.infeasible += 1
        else:
            self.waiting.append(candidate)


def make_candidate(
    pipelines: PricedPipelines, lanes: Lanes, limit_s: float, options: Options
) -> MixedCandidate | None:
    """Cut the layers of some lanes for the earliest end; None where no cut fits."""
    total = sum(replicas for _, replicas, _ in lanes)
    tp = min(int(pipelines.shapes.tp[shape]) for shape, _, _ in lanes)
    sharded = any(bool(pipelines.shapes.sharded[shape]) for shape, _, _ in lanes)
    subspace = Subspace(
        replicas=(total, total),
        tp=tp,
        nodes=(0.0, pipelines.stage_costs.nodes),
        sharded=sharded,
        alone=sharded and len(lanes) == 1,
    )
    cut = cut_lanes(
        pipelines.stage_costs,
        pipelines.terms(subspace),
        pipelines,
        lanes,
        limit_s=limit_s * pipelines.effort.lane_limit_ratio,
    )
    if cut is None:
        return None
    plan, slowest = cut
    seconds = slowest * pipelines.stage_costs.jitter(subspace_of(pipelines.stage_costs.table, plan))
    likely = seconds + estimated_delay_s(pipelines, plan)
    return MixedCandidate(
        seconds=seconds, likely_s=likely, plan=plan, options=options, sharded=sharded
    )


def simulate_feasible(problem: Problem, plan: Plan) -> SimulatedPlan | None:
    """Simulate a plan; None = it does not fit or cannot be lowered to tasks."""
    try:
        done = simulate_plan(problem, plan) if fits_hosts(problem, plan) else None
    except ShardwrightError:
        return None
    return done if done is not None and done.fits else None


def run_simulation_task(inputs: TaskInputs, task: SimulationTask) -> SimulatedStep | None:
    """Run a simulation task; None = the plan does not fit."""
    done = simulate_feasible(
        inputs.problem,
        general_plan(
            inputs.pipeline_sets[task.pipelines_index].stage_costs,
            task.plan,
            options=task.options,
        ),
    )
    return (
        None
        if done is None
        else SimulatedStep(seconds=done.step_time_s, whole=done if task.whole else None)
    )


def simulate_best(
    state: SearchState,
    tasks: SearchTasks,
    stage_costs_of: Mapping[Options, MixedStageCosts],
    *,
    max_simulations: int,
    sharded: bool = False,
) -> None:
    """Simulate the best waiting candidate of each distinct `lane_rows` in turn, round after round.

    At most `max_simulations`, and only candidates whose lower bound is below the best step time.

    Args:
        sharded: True = plans in which some lane shards; False = the others.
    """
    places = {
        options: tasks.index_with_stage_costs(stage_costs)
        for options, stage_costs in stage_costs_of.items()
    }
    tried = 0
    while (
        any(candidate.sharded == sharded for candidate in state.waiting)
        and tried < max_simulations
        and not state.ends()
    ):
        state.drop_slower_candidates()
        turn, begun = (
            islice(_best_of_each_kind(state, sharded=sharded), max_simulations - tried),
            deque[MixedCandidate](),
        )

        def ask(
            turn: Iterator[MixedCandidate] = turn, begun: deque[MixedCandidate] = begun
        ) -> SimulationTask | None:
            """Simulation task of the next candidate; None = none can be best, or time is over."""
            candidate = next(
                (candidate for candidate in turn if candidate.seconds < state.best_s), None
            )
            if candidate is None or state.ends():
                return None
            begun.append(candidate)
            return state.simulation_task(
                places[candidate.options], candidate.plan, candidate.options
            )

        for step in tasks.flow(
            run_simulation_task,
            ask,
            size=tasks.effort.simulations_at_once,
            more=max_simulations - tried,
        ):
            candidate = begun.popleft()
            state.add_simulated(
                candidate.plan,
                candidate.options,
                step,
                partial(
                    general_plan,
                    stage_costs_of[candidate.options],
                    candidate.plan,
                    options=candidate.options,
                ),
            )
            state.waiting.remove(candidate)
            tried += 1


def _best_of_each_kind(state: SearchState, *, sharded: bool) -> Iterator[MixedCandidate]:
    """Waiting candidates of least `likely_s`, one of each `lane_rows`, the fastest rows first.

    Kinds with simulated plans are ranked by their fastest plan, other kinds by the lower bound.
    """
    done: dict[object, float] = {}
    for seconds, _, plan, options in state.ranked:
        lane_rows = MixedCandidate(
            seconds=seconds, likely_s=seconds, plan=plan, options=options
        ).lane_rows
        done[lane_rows] = min(done.get(lane_rows, inf), seconds)
    best: dict[object, MixedCandidate] = {}
    for one in sorted(
        (one for one in state.waiting if one.sharded == sharded), key=lambda one: one.likely_s
    ):
        best.setdefault(one.lane_rows, one)
    return iter(sorted(best.values(), key=lambda one: done.get(one.lane_rows, one.likely_s)))
