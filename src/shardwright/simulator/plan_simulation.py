"""Simulation of the step of a general plan: resolve, price, lower and simulate its tasks."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field, replace
from functools import lru_cache

from shardwright.arrays import IntArray
from shardwright.cost.bounds.longest_path import jitter_factor_of_devices
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.network.lane_edges import lane_edges
from shardwright.cost.network.plan_process_groups import group_problem, plan_units, working_problem
from shardwright.cost.network.tensor_parallel_overlap import with_overlap_of
from shardwright.cost.step.device_family_costs import Shape, family_costs
from shardwright.cost.step.model_flops import model_flops
from shardwright.cost.step.stage_action_seconds import (
    FamilyCosts,
    Sharing,
    StageCosts,
    slice_lengths,
)
from shardwright.cost.tables.plan_block_costs import blocking_groups, divided_by_work, network_unit
from shardwright.errors import StrategyError
from shardwright.hardware.device_topology import counts_by_group, group_ends
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.program.identity_cache_keys import Same
from shardwright.program.orders.plan_action_rows import ActionRows, action_rows
from shardwright.program.plan_lowering import lower_plan
from shardwright.program.plan_program import (
    DeviceClass,
    Program,
    TaskShape,
    chunks_of,
    device_classes,
)
from shardwright.program.stages.device_families import StageDevices, refine_families
from shardwright.program.stages.device_traits import Grouping
from shardwright.program.stages.held_parameters import (
    HeldParameters,
    Holdings,
    Summing,
    parameter_sums,
)
from shardwright.program.stages.stage_messages import (
    LaneEdge,
)
from shardwright.program.stages.stage_segments import (
    Segment,
    StageParts,
    plan_stages,
    working_devices,
)
from shardwright.program.training_problem import Problem, under
from shardwright.program.zero_sharding import shard_rules
from shardwright.simulator.equal_stages import PlacedKind, StageKind, stage_kinds
from shardwright.simulator.kernel.event_kernel import simulate
from shardwright.simulator.kernel_tasks import plan_kernel_tasks
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.peak_host_memory import host_memory, may_offload
from shardwright.simulator.prediction import HostMemory, StageMemory
from shardwright.simulator.simulation_memory_limit import ACTION_BYTES, num_actions, require_room
from shardwright.strategy.grid.grid_rules import LoneStages
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_size_facts import lone_stages
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check_plan import require_valid
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and finish of every task instance, and its uncontended work, in picoseconds."""

    start: IntArray
    finish: IntArray
    work: IntArray

    @property
    def seconds(self) -> float:
        """Seconds from the step's start to the end of the last task."""
        return int(self.finish.max()) / PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    """The simulated step of a plan: its time, memory and timeline.

    Args:
        program, costs, timeline: the tasks, their prices and their times.
        step_time_s: seconds, with jitter.
        memory: peak memory of each class of devices.
        host_memory: host memory of nodes with offloading devices, the fullest first.
    """

    program: Program
    costs: StageCosts
    timeline: Timeline
    step_time_s: float
    memory: tuple[StageMemory, ...]
    host_memory: tuple[HostMemory, ...]
    mfu_causal: float

    @property
    def fits(self) -> bool:
        """True if every device and every node's host memory has room."""
        return all(m.reserved <= m.capacity for m in self.memory) and self.fits_hosts

    @property
    def fits_hosts(self) -> bool:
        """True if no node needs more host memory than it has."""
        return not any(host.lacking for host in self.host_memory)

    def fits_in(self, capacity: float) -> bool:
        """True if no device needs more than `capacity` bytes, and host memory suffices."""
        return self.need <= capacity and self.fits_hosts

    @property
    def need(self) -> int:
        """Bytes that the fullest device holds."""
        return max(m.reserved for m in self.memory)


def lower(
    problem: Problem, plan: Plan, *, unfolded: bool = False, verified: bool = False
) -> tuple[Program, StageCosts]:
    """Lower `plan` to the program of its tasks, and compute the costs of the tasks.

    Args:
        unfolded: True = every device is a class of its own (for a proof, or the exact form if
            replicas lie unequally in nodes).
        verified: True = the plan is known to break no rule, as it was written from a legal grid.

    Raises:
        StrategyError: the plan breaks a rule, or has a feature that lowering does not support.
    """
    problem = under(problem, plan.options)
    laid_out = _resolved_plan(_LayoutKey.of(problem, plan, unfolded=unfolded, verified=verified))
    costs = price_stages(problem, plan, laid_out.stages, laid_out.kinds)
    shape = TaskShape(
        tied=costs.holders_of(laid_out.classes, tied=True),
        pieces=costs.pieces,
        coupled=costs.coupled,
        holders=costs.holders_of(laid_out.classes),
        gathers=costs.gathers,
        blocking=_blocks_sends(problem, laid_out.classes, laid_out.rows),
        reduces_last=not problem.runtime.overlap_grad_reduce,
    )
    return replace(_program(Same(laid_out), shape), plan=plan), costs


def _blocks_sends(problem: Problem, classes: tuple[DeviceClass, ...], rows: ActionRows) -> bool:
    """True if a rank computes nothing while it sends.

    With paired actions a rank computes one action while the other communicates.
    """
    chunks = chunks_of(classes)
    return problem.runtime.blocks_sends(chunks if rows.overlapped is None else max(chunks, 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayoutKey:
    """Cache key of a plan's layout: equal for plans with equal inputs of the layout.

    Fits, folds and sensitivities request the layout of one plan under many prices.
    """

    alike: Hashable
    problem: Problem = field(compare=False)
    plan: Plan = field(compare=False)
    unfolded: bool
    verified: bool

    @staticmethod
    def of(problem: Problem, plan: Plan, *, unfolded: bool, verified: bool) -> _LayoutKey:
        """Build the key of a plan from its stages, orders, network units and rules.

        Neither the placement of states nor the speed of links is part of the key, only the units
        that links join.
        """
        units, kinds = plan_units(problem), _kind_ends(problem)
        plan_key = (
            plan.devices,
            Same(plan.lanes),
            Same(plan.orders),
            None if verified else plan.shards,
            shard_rules(plan).parties,
        )
        alike = (
            plan_key,
            Same(problem.model),
            problem.job,
            units,
            kinds,
            problem.runtime.p2p_scatter_gather,
        )
        return _LayoutKey(
            alike=alike, problem=problem, plan=plan, unfolded=unfolded, verified=verified
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ResolvedPlan:
    """The parts of a plan on a cluster that do not depend on prices."""

    plan: Plan
    stages: tuple[tuple[StageParts, ...], ...]
    edges: tuple[LaneEdge, ...]
    kinds: tuple[PlacedKind, ...]
    rows: ActionRows
    classes: tuple[DeviceClass, ...]


@lru_cache(maxsize=8)
def _resolved_plan(question: _LayoutKey) -> _ResolvedPlan:
    """Resolve a plan's stages, edges, families and action rows, cached by their inputs."""
    problem, plan = question.problem, question.plan
    if not question.verified:
        require_valid(
            plan,
            model=problem.model,
            global_batch=problem.job.global_batch,
            seq_len=problem.job.sequence_length,
        )
    stages = plan_stages(plan, model=problem.model, unfolded=question.unfolded)
    edges = tuple([edge for lane in stages for edge in lane_edges(problem, lane)])
    summings = summings_of(problem, stages)
    if not question.unfolded:
        stages = with_refined_families(problem, plan, stages, edges, summings)
    actions = num_actions(
        plan, {(stage.lane, stage.chunk): len(stage.families) for lane in stages for stage in lane}
    )
    require_room(actions, action_bytes=ACTION_BYTES, doing=f"a simulation of {actions:,} actions")
    rows = action_rows(plan)
    kinds = stage_kinds(problem, stages, summings)
    return _ResolvedPlan(
        plan=plan,
        stages=stages,
        edges=edges,
        kinds=kinds,
        rows=rows,
        classes=device_classes(stages, rows),
    )


@lru_cache(maxsize=8)
def _program(laid_plan: Same[_ResolvedPlan], shape: TaskShape) -> Program:
    """Lower a resolved plan to its tasks, cached."""
    laid = laid_plan.value
    return lower_plan(
        laid.plan,
        stages=laid.stages,
        rows=laid.rows,
        classes=laid.classes,
        edges=laid.edges,
        shape=shape,
    )


def summings_of(
    problem: Problem, stages: tuple[tuple[StageParts, ...], ...]
) -> tuple[Summing, ...]:
    """The gradient reductions of all stages: the devices that reduce each parameter."""
    islands = plan_units(problem)[0]
    return tuple(
        parameter_sums(
            stages, model=problem.model, length=problem.job.sequence_length, islands=islands
        )
    )


def _kind_ends(problem: Problem) -> tuple[int, ...]:
    """First device after each node group; empty if the cluster is uniform."""
    return () if problem.cluster.is_uniform else group_ends(problem.cluster)


def with_refined_families(
    problem: Problem,
    plan: Plan,
    stages: tuple[tuple[StageParts, ...], ...],
    edges: tuple[LaneEdge, ...],
    summings: tuple[Summing, ...],
) -> tuple[tuple[StageParts, ...], ...]:
    """Divide the families of all stages until devices of a family have equal costs.

    Devices of one family hold as many parameters, have equal network placement and equal work.
    """
    job = problem.job

    def lengths(lane: int, segment: Segment) -> tuple[int, ...]:
        """Tokens of each sequence slice in a segment of a lane."""
        length = job.tokens(segment.block.sequence) or job.sequence_length
        return slice_lengths(plan, lane, length=length)

    ground = StageDevices(
        lengths=lengths,
        units=plan_units(problem),
        kinds=_kind_ends(problem),
        parties=shard_rules(plan).parties if shard_rules(plan).devices else (),
    )
    count, exchanges = 0, list[Grouping]()
    while count != (count := sum(len(stage.families) for lane in stages for stage in lane)):
        stages = refine_families(
            stages, edges=edges, summings=summings, ground=ground, exchanges=exchanges
        )
        exchanges = [
            grouping
            for lane in stages
            for stage in lane
            if (grouping := blocking_groups(problem, stage)) is not None
        ]
        before_work_split, stages = (
            stages,
            tuple(tuple([divided_by_work(problem, stage) for stage in lane]) for lane in stages),
        )
        if not exchanges and False not in [
            before is after
            for lanes in zip(before_work_split, stages, strict=True)
            for before, after in zip(*lanes, strict=True)
        ]:
            break
    return stages


def price_stages(
    problem: Problem,
    plan: Plan,
    stages: tuple[tuple[StageParts, ...], ...],
    kinds: tuple[PlacedKind, ...],
) -> StageCosts:
    """Costs of every family of every stage; stages of one kind are priced once."""
    working = working_devices(Same(stages))
    problem = with_overlap_of(
        working_problem(problem, working), [stage for lane in stages for stage in lane]
    )
    shape = Shape(
        devices=working,
        sets=len(
            set({id(stage.devices): stage.devices for lane in stages for stage in lane}.values())
        ),
    )
    families: dict[tuple[int, int, int], FamilyCosts] = {}
    sharings: list[Sharing] = []
    costs_of_kinds: dict[int, list[FamilyCosts]] = {}
    for stage, kind, sums in kinds:
        if id(kind) not in costs_of_kinds:
            costs_of_kinds[id(kind)] = [
                _family_costs(problem, plan, kind, index, shape=shape)
                for index in range(len(kind.first.families))
            ]
        for index, cost in enumerate(costs_of_kinds[id(kind)]):
            families[stage.lane, stage.chunk, index] = cost
        offset = stage.base - kind.first.base
        sharings += [
            ((stage.lane, stage.chunk, index), h, offset, sums[number].uses)
            for index, number, h in kind.sample
        ]
    return StageCosts.of(problem, plan, stages, families, sharings)


def _family_costs(
    problem: Problem, plan: Plan, kind: StageKind, index: int, *, shape: Shape
) -> FamilyCosts:
    """Costs of one family of a stage kind, cached for families with equal inputs."""
    stage, unit = kind.first, network_unit(problem)
    base, device = stage.base, stage.families[index][0]
    place = base % unit if unit else base
    own_holdings = {key: items for key, items in kind.held.items() if key[3] == device}
    groups: dict[int, DeviceList] = {}
    for items in own_holdings.values():
        for h in items:
            groups[id(h.group)], groups[id(h.near)] = h.group, h.near
    number_of_group = {key: index for index, key in enumerate(groups)}
    sums = tuple(
        [
            (
                n,
                h.klass,
                h.elements,
                h.trainable,
                h.backward,
                h.layers,
                number_of_group[id(h.group)],
                number_of_group[id(h.near)],
            )
            for (_, _, n, _), items in own_holdings.items()
            for h in items
        ]
    )
    groups_from_stage = tuple([group.shifted(-base) for group in groups.values()])
    segments = tuple((s.cells, Same(s.block), s.count, s.keeps) for s in stage.segments)
    shards = _shard_key(plan, stage, [h for items in own_holdings.values() for h in items])
    cost_key = (
        shards,
        plan.lanes[stage.lane].slices,
        shape,
        place,
        device - base,
        segments,
        sums,
        groups_from_stage,
    )
    return _priced_family(
        _FamilyKey(
            alike=cost_key,
            problem=Same(problem),
            plan=plan,
            stage=stage,
            family=index,
            held=own_holdings,
            shape=shape,
        )
    )


def _shard_key(plan: Plan, stage: StageParts, held: list[HeldParameters]) -> Hashable:
    """Key that is equal for stages with equal state sharding, relative to their first device."""
    rules = shard_rules(plan)
    if not rules.devices:
        return plan.shards
    groups_of_parameters = [rules.sharing(h.klass, h.near).parties for h in held if h.trainable]
    groups_from_stage = [
        [(p.devices.shifted(-stage.base), p.reduced, p.gradient, p.parameter) for p in sum_groups]
        for sum_groups in groups_of_parameters
    ]
    return plan.shards, plan.lanes[stage.lane].name, tuple(map(tuple, groups_from_stage))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FamilyKey:
    """Cache key of a family's costs: equal if the problem and `alike` are equal.

    `alike` holds all other inputs of the costs, with devices counted from the stage's first.
    """

    alike: Hashable
    problem: Same[Problem]
    plan: Plan = field(compare=False)
    stage: StageParts = field(compare=False)
    family: int = field(compare=False)
    held: Holdings = field(compare=False)
    shape: Shape = field(compare=False)


@lru_cache(maxsize=4096)
def _priced_family(family: _FamilyKey) -> FamilyCosts:
    """Costs of a family, cached by its key."""
    return family_costs(
        family.problem.value,
        family.plan,
        family.stage,
        family.family,
        holdings=family.held,
        shape=family.shape,
        alike=family.alike,
    )


def simulate_plan(
    problem: Problem, plan: Plan, *, unfolded: bool = False, verified: bool = False
) -> SimulatedPlan:
    """Simulate the step of a general plan (tier S): step time and memory of each device class.

    Raises:
        StrategyError: as `lower`; or the order deadlocks (rule ``order.deadlock``).
    """
    if plan.devices > problem.cluster.num_devices:
        raise StrategyError(
            f"the plan is for {plan.devices} devices, the cluster has"
            f" {problem.cluster.num_devices}",
            rule="plan.devices",
        )
    problem = under(problem, plan.options)
    program, costs = lower(problem, plan, unfolded=unfolded, verified=verified)
    tasks = plan_kernel_tasks(problem, program, costs)
    start, finish, finished = simulate(*tasks)
    if finished != len(start):
        raise StrategyError(
            "the order deadlocks: some action waits for an action that stands after it",
            hint=(
                "actions that share devices or collectives stand in one relative order in all rows"
                if not _blocks_sends(problem, program.classes, program.rows)
                else (
                    f"{problem.runtime.name} computes nothing while it sends: ranks that send to"
                    " each other at once need one that does"
                )
            ),
            rule="order.deadlock",
        )
    devices = working_devices(Same(program.stages))
    seconds = (
        int(finish.max()) / PICOSECONDS_PER_SECOND * jitter_factor_of_devices(problem, devices)
    )
    causal, _ = model_flops(problem)
    mfu = causal / seconds / peak_flops(problem, devices)
    assert 0 < mfu <= 1, f"a step at {mfu:.3g} of the devices' peak"
    return SimulatedPlan(
        program=program,
        costs=costs,
        timeline=Timeline(start=start, finish=finish, work=tasks[0]),
        step_time_s=seconds,
        memory=plan_memory(problem, program, costs),
        host_memory=host_memory(problem, program, costs),
        mfu_causal=mfu,
    )


def peak_flops(problem: Problem, devices: Sequence[int]) -> float:
    """Sum of the peak FLOP/s of the devices."""
    counts = enumerate(counts_by_group(problem.cluster, devices))
    return sum(
        problem_machine(group_problem(problem, group)).peak * count
        for group, count in counts
        if count
    )


def plan_of_grid(problem: Problem, grid: Grid) -> Plan:
    """The general plan of a grid, for the problem's model and batch."""
    return _plan_of(
        Same(problem.model), grid, problem.job.global_batch, lone_stages(problem.runtime)
    )


@lru_cache(maxsize=64)
def _plan_of(model: Same[Model], grid: Grid, global_batch: int, lone: LoneStages) -> Plan:
    """Cached `plan_of` for a model, grid, batch and lone ZeRO stages."""
    return plan_of(grid, model=model.value, global_batch=global_batch, lone=lone)


def simulate_grid(problem: Problem, grid: Grid) -> SimulatedPlan:
    """Simulate the step of the plan of a grid (tier S)."""
    return simulate_plan(problem, plan_of_grid(problem, grid), verified=True)


def fits_hosts(problem: Problem, plan: Plan) -> bool:
    """True if every node has enough host memory for the offload of a plan, without simulation."""
    problem_with_options = under(problem, plan.options)
    return not may_offload(problem_with_options.runtime, plan) or not any(
        host.lacking for host in host_memory(problem_with_options, *lower(problem, plan))
    )


def footprint_of_grid(
    problem: Problem, grid: Grid
) -> tuple[tuple[StageMemory, ...], tuple[HostMemory, ...]]:
    """Exact peak memory of each device class of a grid and of its nodes, without step time."""
    problem_with_options, lowered = (
        under(problem, grid.options),
        lower(problem, plan_of_grid(problem, grid), verified=True),
    )
    return plan_memory(problem_with_options, *lowered), host_memory(problem_with_options, *lowered)
