"""Plans to compare with: those that wait for their simulation, those that were simulated, and the
best so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from itertools import islice
from math import inf

from shardwright.errors import ShardwrightError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks, TaskInputs
from shardwright.search.mixed.plans.reduction_estimates import likely_later
from shardwright.search.mixed.plans.replica_counts import cut_lanes
from shardwright.search.mixed.plans.write_plan import MixedPlan, frame_of, general_plan
from shardwright.search.mixed.stages.frame_terms import StageCosts
from shardwright.search.mixed_certificate import Frame
from shardwright.search.search_limit import Limit
from shardwright.simulator.plan_simulation import SimulatedPlan, fits_hosts, simulate_plan
from shardwright.strategy.plan.plan import Plan

Lanes = list[tuple[int, int, int]]
"""(shape, replicas, microbatches) of each lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCandidate:
    """A plan that was not simulated yet.

    Args:
        seconds: that its stages leave at least.
        likely_s: the same with sums as slow as the slowest lane's; by these it waits its turn.
            kinds: the rows of its lanes, which are tried in turn.
        sharded: some lane shards.
    """

    seconds: float
    likely_s: float
    plan: MixedPlan
    options: Options
    sharded: bool = False

    @property
    def kinds(self) -> tuple[tuple[int, ...], ...]:
        """Rows of the stages of each lane, which say what its gradient sums are like."""
        return tuple(sorted({lane.rows for lane in self.plan.lanes}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulating:
    """A plan to be simulated.

    Args:
        pipelines_index: place of pipelines with its stage costs in `TaskInputs.pipeline_sets`.
        whole: all of the simulation is asked for, not its seconds alone.
    """

    pipelines_index: int
    plan: MixedPlan
    options: Options
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """A plan that was simulated and fits. Args: whole: None = it was not asked for."""

    seconds: float
    whole: SimulatedPlan | None


@dataclass(slots=True)
class Standing:
    """The best plan so far, and the plans that were examined.

    Args:
        seen: plans that were examined.
        ranked: (seconds, turn, plan, options) of all that were simulated and fit.
        waiting: candidates.
        behind: those that cannot be the best.
        limit: past it the best so far stands.
        after: called with every plan that was simulated and
        fits.
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
        """Check the clock; True = the search for plans ends. Raises as
        `search.limit.Limit.ends`.
        """
        return self.limit.ends(found=self.best is not None)

    def attempt(self, plan: Plan, mixed: MixedPlan | None) -> float:
        """Simulate a plan, and keep it if it fits and is faster. Its seconds; inf = it does not
        fit, or says what lowering leaves out.
        """
        done = simulated(self.problem, plan)
        return self.take(
            mixed,
            plan.options,
            None if done is None else SimulatedStep(seconds=done.step_time_s, whole=done),
            lambda: plan,
        )

    def take(
        self,
        mixed: MixedPlan | None,
        options: Options,
        step: SimulatedStep | None,
        written: Callable[[], Plan],
    ) -> float:
        """Keep a plan that was simulated if it is faster. Its seconds; inf = it does not fit.

        Args:
            written: the plan in the general form.
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
            self.after(written(), mixed, step.whole)
        if step.seconds < self.best_s:
            self.best_s, self.best, self.mixed = step.seconds, written(), mixed
        return step.seconds

    def simulating(self, pipelines_index: int, plan: MixedPlan, options: Options) -> Simulating:
        """The task of simulating a plan; the arguments are those of `Simulating`."""
        return Simulating(
            pipelines_index=pipelines_index,
            plan=plan,
            options=options,
            whole=self.after is not None,
        )

    def set_aside(self) -> None:
        """Plans that cannot be faster than the best wait no longer."""
        slower = [one for one in self.waiting if one.seconds >= self.best_s]
        self.waiting = [one for one in self.waiting if one.seconds < self.best_s]
        self.behind += slower
        self.bounded += len(slower)
        self.looked_at += len(slower)

    def consider(
        self, pipelines: PricedPipelines, lanes: Lanes, limit_s: float, options: Options
    ) -> None:
        """Cut some lanes as well as can be, and let the plan wait for its simulation."""
        if lanes and (options, tuple(sorted(lanes))) not in self.seen:
            self.wait(lanes, candidate(pipelines, lanes, limit_s, options), options)

    def wait(self, lanes: Lanes, one: MixedCandidate | None, options: Options) -> None:
        """Let lanes that were cut wait for their simulation, unless they were looked at. Args: one:
        None = no cut of them fits.
        """
        key = (options, tuple(sorted(lanes)))
        if key in self.seen:
            return
        self.seen.add(key)
        if one is None:
            self.looked_at += 1
            self.infeasible += 1
        else:
            self.waiting.append(one)


def candidate(
    pipelines: PricedPipelines, lanes: Lanes, limit_s: float, options: Options
) -> MixedCandidate | None:
    """The plan of some lanes, each with the cut that ends first; None where no cut fits."""
    total = sum(replicas for _, replicas, _ in lanes)
    tp = min(int(pipelines.shapes.tp[shape]) for shape, _, _ in lanes)
    sharded = any(bool(pipelines.shapes.sharded[shape]) for shape, _, _ in lanes)
    frame = Frame(
        replicas=(total, total),
        tp=tp,
        nodes=(0.0, pipelines.stage_costs.nodes),
        sharded=sharded,
        alone=sharded and len(lanes) == 1,
    )
    cut = cut_lanes(
        pipelines.stage_costs,
        pipelines.terms(frame),
        pipelines,
        lanes,
        limit_s=limit_s * pipelines.effort.lane_limit_ratio,
    )
    if cut is None:
        return None
    plan, slowest = cut
    seconds = slowest * pipelines.stage_costs.jitter(frame_of(pipelines.stage_costs.table, plan))
    likely = seconds + likely_later(pipelines, plan)
    return MixedCandidate(
        seconds=seconds, likely_s=likely, plan=plan, options=options, sharded=sharded
    )


def simulated(problem: Problem, plan: Plan) -> SimulatedPlan | None:
    """A plan's step; None = it does not fit, or says what lowering leaves out."""
    try:
        done = simulate_plan(problem, plan) if fits_hosts(problem, plan) else None
    except ShardwrightError:
        return None
    return done if done is not None and done.fits else None


def simulated_there(inputs: TaskInputs, asked: Simulating) -> SimulatedStep | None:
    """The simulated step of a plan in terms of shapes; None = it does not fit."""
    done = simulated(
        inputs.problem,
        general_plan(
            inputs.pipeline_sets[asked.pipelines_index].stage_costs,
            asked.plan,
            options=asked.options,
        ),
    )
    return (
        None
        if done is None
        else SimulatedStep(seconds=done.step_time_s, whole=done if asked.whole else None)
    )


def simulate_best(
    standing: Standing,
    tasks: SearchTasks,
    stage_costs_of: Mapping[Options, StageCosts],
    *,
    most: int,
    sharded: bool = False,
) -> None:
    """Simulate the most promising of the waiting plans, at most so many: the best of each kind in
    turn, as long as it may be the best.

    Args:
        sharded: of those plans in which some lane shards, or else in which none does.
    """
    places = {
        options: tasks.place_of(stage_costs) for options, stage_costs in stage_costs_of.items()
    }
    tried = 0
    while (
        any(one.sharded == sharded for one in standing.waiting)
        and tried < most
        and not standing.ends()
    ):
        standing.set_aside()
        turn, begun = (
            islice(_in_turn(standing, sharded=sharded), most - tried),
            deque[MixedCandidate](),
        )

        def ask(
            turn: Iterator[MixedCandidate] = turn, begun: deque[MixedCandidate] = begun
        ) -> Simulating | None:
            one = next((one for one in turn if one.seconds < standing.best_s), None)
            if one is None or standing.ends():
                return None
            begun.append(one)
            return standing.simulating(places[one.options], one.plan, one.options)

        for step in tasks.flow(
            simulated_there, ask, size=tasks.effort.simulations_at_once, more=most - tried
        ):
            one = begun.popleft()
            standing.take(
                one.plan,
                one.options,
                step,
                partial(general_plan, stage_costs_of[one.options], one.plan, options=one.options),
            )
            standing.waiting.remove(one)
            tried += 1


def _in_turn(standing: Standing, *, sharded: bool) -> Iterator[MixedCandidate]:
    """The best waiting plan of each kind: kinds of which a plan was simulated by their fastest,
    others by the least that theirs take.
    """
    done: dict[object, float] = {}
    for seconds, _, plan, options in standing.ranked:
        kinds = MixedCandidate(seconds=seconds, likely_s=seconds, plan=plan, options=options).kinds
        done[kinds] = min(done.get(kinds, inf), seconds)
    best: dict[object, MixedCandidate] = {}
    for one in sorted(
        (one for one in standing.waiting if one.sharded == sharded), key=lambda one: one.likely_s
    ):
        best.setdefault(one.kinds, one)
    return iter(sorted(best.values(), key=lambda one: done.get(one.kinds, one.likely_s)))
