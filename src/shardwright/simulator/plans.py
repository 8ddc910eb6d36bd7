"""From a problem and any general plan to its simulated step: resolve, price, lower, simulate, add up."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from shardwright.cost.critical_path import jitter
from shardwright.cost.model_flops import model_flops
from shardwright.cost.plan_costs import FamilyCosts, Same, family_costs, place_in_network, slice_lengths
from shardwright.cost.plan_network import plan_tiers
from shardwright.cost.stage_costs import PlanCosts
from shardwright.cost.tables import problem_machine
from shardwright.errors import StrategyError
from shardwright.program.action_rows import action_rows
from shardwright.program.families import Ground, refine_families
from shardwright.program.lower_plan import lower_plan
from shardwright.program.plan_program import LaneEdge, PlanProgram, PlanShape, device_classes
from shardwright.program.plan_sync import Holdings, plan_holdings
from shardwright.program.problem import Problem
from shardwright.program.stage_edges import edge_extents, edge_messages, edge_segments, stage_edges
from shardwright.program.stage_parts import Segment, StageParts, plan_stages
from shardwright.simulator.kernel.events import simulate
from shardwright.simulator.kernel.longest_path import longest_path
from shardwright.simulator.plan_memory import plan_memory
from shardwright.simulator.plan_tasks import plan_kernel_tasks
from shardwright.simulator.prediction import StageMemory
from shardwright.strategy.grid import Grid
from shardwright.strategy.grid_plan import plan_of
from shardwright.strategy.plan import Plan
from shardwright.strategy.verify import require_valid
from shardwright.units import PICOSECONDS_PER_SECOND

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When every instance ran, in picoseconds, and what it takes uncontended."""

    start: Int64
    finish: Int64
    work: Int64

    @property
    def seconds(self) -> float:
        """End of the last task."""
        return int(self.finish.max()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanResult:
    """A simulated plan.

    Args:
        program, costs, timeline: how it came about. step_time_s: with jitter. memory: of each class of devices.
    """

    program: PlanProgram
    costs: PlanCosts
    timeline: Timeline
    step_time_s: float
    memory: tuple[StageMemory, ...]
    mfu_causal: float

    @property
    def path_s(self) -> float:
        """Longest path with uncontended durations (a lower bound of the step), with jitter."""
        graph = self.program.instances
        ends = longest_path(self.timeline.work, graph.indegree, graph.successor_start, graph.successor)[1]
        return int(ends.max()) / PICOSECONDS_PER_SECOND * (self.step_time_s / self.timeline.seconds)

    @property
    def fits(self) -> bool:
        """No class of devices needs more than its devices have."""
        return all(m.reserved <= m.capacity for m in self.memory)

    @property
    def need(self) -> int:
        """Bytes that the fullest device holds."""
        return max(m.reserved for m in self.memory)


def lower(problem: Problem, plan: Plan, *, unfolded: bool = False) -> tuple[PlanProgram, PlanCosts]:
    """The Program of `plan`, and what its tasks cost.

    Args:
        unfolded: every device is a class of its own (a proof, or the exact form where replicas lie unequally in nodes).

    Raises:
        StrategyError: the plan breaks a rule, or says what lowering leaves out.
    """
    require_valid(plan, model=problem.model, global_batch=problem.job.global_batch, seq_len=problem.job.sequence_length)
    stages = plan_stages(plan, model=problem.model, unfolded=unfolded)
    edges = tuple(edge for lane in stages for edge in lane_edges(problem, lane))
    if not unfolded:
        stages = refined(problem, plan, stages, edges)
    rows = action_rows(plan)
    costs = price_stages(problem, plan, stages)
    classes = device_classes(stages, rows)
    shape = PlanShape(
        tied=costs.holders_of(classes, tied=True),
        pieces=costs.pieces,
        coupled=costs.coupled,
        holders=costs.holders_of(classes),
        gathers=costs.gathers,
        blocking=not problem.runtime.overlap_p2p,
        reduces_last=not problem.runtime.overlap_grad_reduce,
    )
    return lower_plan(plan, stages=stages, rows=rows, classes=classes, edges=edges, shape=shape), costs


def refined(
    problem: Problem, plan: Plan, stages: tuple[tuple[StageParts, ...], ...], edges: tuple[LaneEdge, ...]
) -> tuple[tuple[StageParts, ...], ...]:
    """The stages with families of devices that hold as much and lie alike on the network."""
    job, cluster = problem.job, problem.cluster

    def lengths(lane: int, segment: Segment) -> tuple[int, ...]:
        whole = job.tokens(segment.block.sequence) or job.sequence_length
        return slice_lengths(plan, lane, length=whole)

    ground = Ground(
        model=problem.model,
        length=job.sequence_length,
        lengths=lengths,
        units=tuple(tier.num_devices for tier in plan_tiers(problem)),
        island=cluster.tiers()[0].num_devices,
        kinds=() if cluster.is_uniform else tuple(accumulate(g.count * g.kind.num_devices for g in cluster.groups)),
    )
    return refine_families(stages, crossings=[m for e in edges for m in (e.forward, e.backward)], ground=ground)


def price_stages(problem: Problem, plan: Plan, stages: tuple[tuple[StageParts, ...], ...]) -> PlanCosts:
    """Every family of every stage, priced; stages that differ only by their place in whole units of the network are priced once."""
    island = problem.cluster.tiers()[0].num_devices
    holdings = plan_holdings(stages, model=problem.model, length=problem.job.sequence_length, island=island)
    sets = {stage.devices for lane in stages for stage in lane}
    shape = (plan.devices, len(sets))
    groups: dict[tuple[int, int], tuple[int, ...]] = {}
    families: dict[tuple[int, int, int], FamilyCosts] = {}
    for stage in (stage for lane in stages for stage in lane):
        place = place_in_network(problem, stage.base)
        segments = tuple((s.cells, Same(s.block), s.count, s.keeps) for s in stage.segments)
        for index in range(len(stage.families)):
            device = stage.families[index][0]
            keys = [(stage.lane, stage.chunk, number, device) for number in range(len(segments))]
            held = {key: holdings[key] for key in keys if key in holdings}
            for h in (h for items in held.values() for h in items):
                for group in (h.group, h.near):
                    if (id(group), stage.base) not in groups:
                        groups[id(group), stage.base] = tuple(d - stage.base for d in group)
            sums = tuple(
                (key[2], h.klass, h.elements, h.trainable, h.layers, groups[id(h.group), stage.base], groups[id(h.near), stage.base])
                for key, items in held.items()
                for h in items
            )
            alike = (Same(problem), plan.shards, plan.lanes[stage.lane].slices, shape, place, device - stage.base, segments, sums)
            asked = _Asked(alike=alike, problem=problem, plan=plan, stage=stage, family=index, held=held, shape=shape)
            families[stage.lane, stage.chunk, index] = _priced(asked)
    return PlanCosts.of(problem, plan, stages, families, holdings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A family to be priced; equal where `alike` is, which has all that its costs depend on, devices counted from the stage's first."""

    alike: Hashable
    problem: Problem = field(compare=False)
    plan: Plan = field(compare=False)
    stage: StageParts = field(compare=False)
    family: int = field(compare=False)
    held: Holdings = field(compare=False)
    shape: tuple[int, int] = field(compare=False)


@lru_cache(maxsize=4096)
def _priced(one: _Asked) -> FamilyCosts:
    return family_costs(one.problem, one.plan, one.stage, one.family, holdings=one.held, shape=one.shape)


def lane_edges(problem: Problem, lane: tuple[StageParts, ...]) -> tuple[LaneEdge, ...]:
    """The edges of a lane with their messages."""
    model, job = problem.model, problem.job
    island = plan_tiers(problem)[0].num_devices
    found = []
    for edge in stage_edges(lane, model=model):
        block = model.blocks[model.runs[edge.run].block]
        forward, backward = edge_messages(
            lane[edge.source],
            lane[edge.target],
            segments=edge_segments(edge, lane[edge.source], lane[edge.target], model=model),
            extents=edge_extents(edge, model=model),
            length=job.tokens(block.sequence) or job.sequence_length,
            island=island,
            minimal=problem.runtime.p2p_scatter_gather,
        )
        found.append(LaneEdge(lane=lane[0].lane, edge=edge, forward=forward, backward=backward))
    return tuple(found)


def simulate_plan(problem: Problem, plan: Plan, *, unfolded: bool = False) -> PlanResult:
    """Tier S of a general plan: its step time and the memory of each class of devices.

    Raises:
        StrategyError: as `lower`; or the order deadlocks (rule ``order.deadlock``).
    """
    if plan.devices > problem.cluster.num_devices:
        raise StrategyError(f"the plan is for {plan.devices} devices, the cluster has {problem.cluster.num_devices}", rule="plan.devices")
    program, costs = lower(problem, plan, unfolded=unfolded)
    tasks = plan_kernel_tasks(problem, program, costs)
    start, finish, finished = simulate(*tasks)
    if finished != len(start):
        raise StrategyError(
            "the order deadlocks: some action waits for one that stands behind it",
            hint="actions that share devices or collectives stand in one relative order in all rows",
            rule="order.deadlock",
        )
    factor = jitter(problem, plan.devices)
    seconds = int(finish.max()) / PICOSECONDS_PER_SECOND * factor
    causal, _ = model_flops(problem)
    return PlanResult(
        program=program,
        costs=costs,
        timeline=Timeline(start=start, finish=finish, work=tasks[0]),
        step_time_s=seconds,
        memory=plan_memory(problem, program, costs),
        mfu_causal=causal / seconds / (problem_machine(problem).peak * plan.devices),
    )


def plan_of_grid(problem: Problem, grid: Grid) -> Plan:
    """The plan that a grid is for the problem's model and batch."""
    return plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)


def simulate_grid(problem: Problem, grid: Grid) -> PlanResult:
    """Tier S of a grid: of the plan that it is."""
    return simulate_plan(problem, plan_of_grid(problem, grid))


def memory_of_grid(problem: Problem, grid: Grid) -> tuple[StageMemory, ...]:
    """The exact peak of each class of devices of a grid, without its time."""
    return plan_memory(problem, *lower(problem, plan_of_grid(problem, grid)))
