"""Options of one stage of a small plan: a split tree on its devices, with seconds and memory.

The functions that price general plans price the stage.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace

import numpy as np

from shardwright.arrays import IntArray, distinct
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import picoseconds
from shardwright.cost.network.disable_fused_overlap_beyond_nvlink import (
    with_overlap_of,
    without_fused_overlap,
)
from shardwright.cost.network.networks_of_plan_devices import plan_units, working_problem
from shardwright.cost.step.device_family_synchronisation import Shape
from shardwright.cost.step.price_one_stage_device_family import family_costs
from shardwright.cost.step.stage_action_seconds import FamilyCosts, StageCosts, sharings_of_stage
from shardwright.errors import StrategyError
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.device_classes_with_equal_actions import TaskShape, device_classes
from shardwright.program.lower_plan_to_tasks import lower_plan
from shardwright.program.orders.plan_action_rows import TABLE_SEARCH
from shardwright.program.stages.held_parameters import Holdings, plan_holdings
from shardwright.program.stages.stage_messages import border_layout
from shardwright.program.stages.stage_segments import StageParts, plan_stages
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.search.exact.build_1f1b_rows_by_microbatches_in_flight import one_f_one_b_rows
from shardwright.search.exact.stage_of_block_range import chain_blocks, stage_of_blocks
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.peak_host_memory import host_memory
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan, Shards
from shardwright.strategy.plan.stage_splits_and_policies import Stage
from shardwright.strategy.verify.check_structural_plan_rules import verify

LANE = "main"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageOption:
    """One stage of a plan under one split tree, with its seconds, memory room and cost key.

    Equal only to itself.

    Args:
        stage: stage as in a plan.
        parts: resolved stage, as chunk 0.
        families, holdings: arguments of `StageCosts`, of chunk 0.
        forward, backward: picoseconds of a microbatch on each family.
        reduced: picoseconds of reducing the last gradient bucket on each family.
        update: picoseconds of the optimizer update, of the slowest family.
        own_update: picoseconds of the update that depend on no other device, if states are not
            sharded.
        room: most microbatches in flight that fit in every device's memory; at most all.
        alike: key that is equal for options that cost the same in every plan.
        leaves: True if a tensor-parallel group of the stage leaves its island, so that no stage of
            its plan has fused overlap.
        plain: the same stage without fused overlap; None = the same price.
    """

    stage: Stage
    parts: StageParts
    families: tuple[FamilyCosts, ...]
    holdings: Holdings
    forward: IntArray
    backward: IntArray
    reduced: IntArray
    update: int
    own_update: int
    room: int
    alike: object
    leaves: bool = False
    plain: StageOption | None = None

    @property
    def copies(self) -> bool:
        """True if several devices may compute the same result; readers wait for one of them."""
        return any(_copies(placement.split) for placement in self.stage.placements)


def _copies(split: Split | None) -> bool:
    """True if a split tree has a replicating cut."""
    return split is not None and (split.dim is Dim.REPLICATE or any(map(_copies, split.children)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Illegal:
    """The rule that a stage breaks."""

    rule: str


def capacities(cluster: Cluster) -> tuple[int, ...]:
    """Bytes of each device's memory in the cluster: the user's reserve is off, the context in."""
    return tuple(
        g.kind.accelerator.memory_bytes
        for g in cluster.groups
        for _ in range(g.count * g.kind.num_devices)
    )


def price_stage(
    problem: Problem,
    stage: Stage,
    *,
    first: int,
    end: int,
    microbatches: int,
    working: tuple[int, ...],
    shards: tuple[Shards, ...] = (),
) -> StageOption | Illegal:
    """Price the stage of blocks first .. end - 1 alone; an `Illegal` with the broken rule if any.

    Args:
        microbatches: number of microbatches of the global batch.
        working: numbers of the devices of all stages.
    """
    plan, chunk = _plan_around(
        problem, stage, first=first, end=end, microbatches=microbatches, shards=shards
    )
    path = f"lane {LANE} / stage {chunk}"
    violations = verify(
        plan,
        model=problem.model,
        global_batch=problem.job.global_batch,
        seq_len=problem.job.sequence_length,
    )
    violation = next(
        (
            v
            for v in violations
            if not v.path.startswith(f"lane {LANE} / stage") or f"{v.path} ".startswith(f"{path} ")
        ),
        None,
    )
    if violation is not None:
        return Illegal(rule=violation.rule)
    try:
        # One family a device: which devices are alike depends on the stages around them.
        parts = replace(plan_stages(plan, model=problem.model, unfolded=True)[0][chunk], chunk=0)
        islands = plan_units(problem)[0]
        holdings = plan_holdings(
            ((parts,),), model=problem.model, length=problem.job.sequence_length, islands=islands
        )
        option = _stage_option(
            problem, plan, stage, parts, holdings, microbatches=microbatches, working=working
        )
        if (
            not _has_islands(problem)
            or (without_overlap := without_fused_overlap(problem)) is problem
        ):
            return option
        plain = _stage_option(
            without_overlap,
            plan,
            stage,
            parts,
            holdings,
            microbatches=microbatches,
            working=working,
        )
    except StrategyError as error:
        return Illegal(rule=error.rule or "lower")
    leaves = with_overlap_of(problem, (parts,)) is not problem
    return replace(
        plain if leaves else option,
        plain=plain,
        leaves=leaves,
        alike=(leaves, option.alike, plain.alike),
    )


def options_in_one_plan(options: tuple[StageOption, ...]) -> tuple[StageOption, ...]:
    """Stage options in one plan: without fused overlap if any stage leaves its island."""
    if not any(option.leaves for option in options):
        return options
    return tuple(option.plain or option for option in options)


def _has_islands(problem: Problem) -> bool:
    """True if the devices lie in more than one island."""
    return len(distinct(plan_units(problem)[0].of(np.arange(problem.cluster.num_devices)))) > 1


def _stage_option(
    problem: Problem,
    plan: Plan,
    stage: Stage,
    parts: StageParts,
    holdings: Holdings,
    *,
    microbatches: int,
    working: tuple[int, ...],
) -> StageOption:
    """Price of a legal stage: its families' seconds, update, memory room and cost key."""
    # A stage's costs depend on whether there are other stages (a pipeline's communicator), on the
    # devices that reduce the gradient norm, and on the devices that share network cards.
    problem = working_problem(problem, working)
    shape = Shape(
        devices=DeviceList.of(working), sets=1 if len(parts.devices) == len(working) else 2
    )
    families = tuple(
        family_costs(problem, plan, parts, index, holdings=holdings, shape=shape)
        for index in range(len(parts.families))
    )
    costs = StageCosts.of(
        problem,
        plan,
        ((parts,),),
        {(0, 0, i): cost for i, cost in enumerate(families)},
        sharings_of_stage(parts, holdings),
    )
    numbers = range(len(families))
    steps = [costs.step(0, 0, i) for i in numbers]
    update = [
        float(s.optimizer_s[0]) - float(s.update_s[0]) + float(s.update_s[0] + s.after_s[0])
        for s in steps
    ]
    pieces = costs.pieces[0, 0]
    reduced = picoseconds(np.array([float(s.reduce_s[0]) for s in steps]))
    return StageOption(
        stage=stage,
        parts=parts,
        families=families,
        holdings=holdings,
        forward=picoseconds(np.array([costs.seconds(0, 0, i, 0, TaskKind.F) for i in numbers])),
        backward=picoseconds(np.array([costs.seconds(0, 0, i, 0, TaskKind.B) for i in numbers])),
        reduced=reduced - reduced * (pieces - 1) // pieces,
        update=int(picoseconds(np.array(update)).max()),
        own_update=int(picoseconds(np.array([float(s.update_s[0]) for s in steps])).max()),
        room=_room(problem, plan, costs, parts, microbatches=microbatches),
        alike=_cost_key(problem, parts, families, holdings),
    )


def _plan_around(
    problem: Problem,
    stage: Stage,
    *,
    first: int,
    end: int,
    microbatches: int,
    shards: tuple[Shards, ...],
) -> tuple[Plan, int]:
    """A plan with this stage, other blocks on the stage's first device; and the stage's number."""
    blocks = chain_blocks(problem)
    before = (
        ()
        if not first
        else (stage_of_blocks(problem, first=0, end=first, tree=None, first_device=stage.base),)
    )
    after = (
        ()
        if end == blocks
        else (stage_of_blocks(problem, first=end, end=blocks, tree=None, first_device=stage.base),)
    )
    lane = Lane(
        name=LANE,
        samples=problem.job.global_batch,
        microbatches=microbatches,
        stages=(*before, stage, *after),
    )
    order = NamedOrder(schedule=TABLE_SEARCH, lanes=(LANE,))
    return Plan(
        devices=problem.cluster.num_devices, lanes=(lane,), orders=(order,), shards=shards
    ), len(before)


def _room(
    problem: Problem, plan: Plan, costs: StageCosts, parts: StageParts, *, microbatches: int
) -> int:
    """Most microbatches in flight that fit in device and host memory; 0 = not even one fits."""
    capacity = capacities(problem.cluster)
    alone = replace(plan, lanes=(replace(plan.lanes[0], stages=plan.lanes[0].stages[:1]),))
    rows = one_f_one_b_rows((parts.devices,), microbatches, in_flight=microbatches)
    classes = device_classes(((parts,),), rows)
    shape = TaskShape(
        tied={},
        pieces={},
        coupled={},
        holders={},
        gathers=False,
        blocking=False,
        reduces_last=False,
    )
    program = lower_plan(
        alone, stages=((parts,),), rows=rows, classes=classes, edges=(), shape=shape
    )
    for in_flight in range(microbatches, 0, -1):
        in_flight_program = replace(
            program, rows=one_f_one_b_rows((parts.devices,), microbatches, in_flight=in_flight)
        )
        memory = plan_memory(problem, in_flight_program, costs)
        hosts = host_memory(problem, in_flight_program, costs)
        if all(
            m.reserved <= capacity[c.devices[0]] for m, c in zip(memory, classes, strict=True)
        ) and not any(h.lacking for h in hosts):
            return in_flight
    return 0


def _cost_key(
    problem: Problem, parts: StageParts, families: tuple[FamilyCosts, ...], holdings: Holdings
) -> object:
    """Cost key of a stage: equal stages cost the same in all plans.

    The key has the costs of its families, the groups of its reductions, and the layouts of its
    input and output.
    """
    width, length = problem.model.hidden, problem.job.sequence_length
    ends = (
        border_layout(parts.segments[0], width=width, length=length, out=False),
        border_layout(parts.segments[-1], width=width, length=length, out=True),
    )
    return (
        parts.base,
        parts.families,
        ends,
        _hashable(families),
        tuple(sorted(holdings.items(), key=lambda item: item[0])),
    )


def _hashable(value: object) -> object:
    """Hashable key of a value of dataclasses, tuples and arrays, bit by bit."""
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, tuple):
        return tuple(_hashable(item) for item in value)
    if is_dataclass(value):
        return tuple(_hashable(getattr(value, field.name)) for field in fields(value))
    return value
