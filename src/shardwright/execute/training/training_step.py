"""One step of a plan on virtual devices in this process: loss and gradients, to be compared with
the unsplit model's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isnan

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.device_parameters import (
    Key,
    ParameterStore,
    Source,
    whole_shape,
)
from shardwright.execute.device_state.gradient_reduction import (
    Groups,
    gradient_groups,
    sum_gradients,
)
from shardwright.execute.interpreter.device_walk import Batch, DeviceWork, Outcome, device_task
from shardwright.execute.interpreter.load_balancing_counts import lane_balances
from shardwright.execute.training.image_checks import require_images
from shardwright.execute.training.key_selection_checks import require_selections
from shardwright.execute.training.router_checks import require_trainable
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process import run_in_process
from shardwright.execute.transport.requests import Task
from shardwright.hardware.device_topology import Units
from shardwright.job.training_job import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.block import TEACHER
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.layout.device_cells import largest_remainder
from shardwright.program.orders.action_rows import action_rows
from shardwright.program.stages.stage_messages import stage_edges
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.strategy.plan.lane import Lane
from shardwright.strategy.plan.order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stages import Item, Placement, Selector, Stage
from shardwright.strategy.verify.check_plan import require_valid


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Results of a step.

    Args:
        loss: mean over the step's tokens.
        stores: by device, its parameters with their gradients.
    """

    loss: torch.Tensor
    stores: Mapping[int, ParameterStore]


def device_work(
    model: Model, job: TrainingJob, plan: Plan, *, islands: Units | None = None
) -> tuple[DeviceWork, Groups]:
    """Facts of a step of `plan` that all devices share.

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_valid(plan, model=model, global_batch=job.global_batch)
    _require_executable(model)
    stages = plan_stages(plan, model=model, unfolded=True)
    require_images(model, job, stages)
    require_selections(
        stages, slices=[len(lane.slices) for lane in plan.lanes], length=job.sequence_length
    )
    lengths = {s.name: s.tokens for s in job.sequences} | {TEACHER: job.tokens(TEACHER)}
    first, begins = 0, []
    for lane in plan.lanes:
        begins.append(first)
        first += lane.samples
    length = job.sequence_length
    work = DeviceWork(
        model=model,
        lanes=plan.lanes,
        slices=tuple(
            largest_remainder(length, lane.slices) if lane.slices else (length,)
            for lane in plan.lanes
        ),
        stages=stages,
        rows=action_rows(plan),
        edges=tuple(stage_edges(lane, model=model) for lane in stages),
        lengths=lengths,
        widths=tuple(_width(model, run.block) for run in model.runs),
        first_sample=tuple(begins),
        scale=1.0 / (job.global_batch * length),
        islands=islands,
        balances=lane_balances(model, plan.lanes, stages, length=length, samples=job.global_batch),
    )
    return work, gradient_groups(stages, model=model, length=length, islands=islands)


def forward_work(model: Model, plan: Plan, *, length: int = 1) -> DeviceWork:
    """Facts of a forward pass of `plan` that all devices share, over sequences of `length`
    positions.

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_valid(plan, model=model, global_batch=sum(lane.samples for lane in plan.lanes))
    _require_executable(model)
    stages = plan_stages(plan, model=model, unfolded=True)
    return DeviceWork(
        model=model,
        lanes=plan.lanes,
        slices=((length,),) * len(plan.lanes),
        stages=stages,
        rows=action_rows(plan),
        edges=tuple(stage_edges(lane, model=model) for lane in stages),
        lengths={block.sequence: length for block in model.blocks},
        widths=tuple(_width(model, run.block) for run in model.runs),
        first_sample=(0,) * len(plan.lanes),
        scale=1.0,
        islands=None,
    )


def _require_executable(model: Model) -> None:
    """Raise for what no device could compute: towers of which only sizes are known, and blocks that
    read several streams.
    """
    numbers = {run.name: i for i, run in enumerate(model.runs)}
    for number, one in enumerate(model.runs):
        block = model.blocks[one.block]
        first = block.operators[0]
        streams = [name for name in one.inputs if not model.is_memory(number, numbers[name])]
        reason = ""
        if (
            not one.inputs
            and first.kind is not OperatorKind.EMBEDDING
            and model.settings.image is None
        ):
            reason = (
                f"{one.name}.{first.name} reads features of {block.sequence}, and of this tower"
                " only the sizes are known"
            )
        elif len(streams) > 1 or (
            streams and first.kind is OperatorKind.EMBEDDING and first.inputs
        ):
            reason = f"{one.name}.{first.name} merges {' and '.join(streams)}"
        if reason:
            raise StrategyError(
                f"{reason}: that cannot be executed yet",
                hint=(
                    "choose a model of text alone, a LLaVA, Kimi-K2.5, MiniMax-M3, Qwen3-VL or"
                    " Gemma 4, or simulate the plan instead"
                ),
                rule="execute.operator",
                path=one.name,
            )


def _width(model: Model, block: int) -> int:
    return model.blocks[block].output_width or model.hidden


def run_step(
    model: Model,
    job: TrainingJob,
    plan: Plan,
    *,
    batch: Batch,
    source: Source,
    settings: Settings | None = None,
    trace: CommunicationRecord | None = None,
) -> StepResult:
    """Run one step of `plan` on virtual devices.

    Args:
        batch: token ids of every sequence, (samples, positions), and ``labels`` of the text.
        trace: gets a record of each request.

    Raises:
        StrategyError: as `device_work`; run.* if devices do not agree on what they exchange.
    """
    chosen = settings or model.settings
    require_trainable(model, chosen)
    work, groups = device_work(model, job, plan)
    stores = {
        d: ParameterStore(model=model, source=source, settings=chosen)
        for devices in work.rows.devices
        for d in devices
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other
    try:
        outcomes = run_in_process(
            {d: _whole(d, work, groups, batch, store) for d, store in stores.items()}, trace=trace
        )
    finally:
        torch.set_num_threads(threads)
    losses: dict[object, torch.Tensor] = {}
    for outcome in outcomes.values():
        losses |= outcome.losses
    balances = [outcome.balance for outcome in outcomes.values() if outcome.balance is not None]
    return StepResult(
        loss=torch.stack(list(losses.values())).sum() * work.scale + sum(balances), stores=stores
    )


def _whole(
    device: int, work: DeviceWork, groups: Groups, batch: Batch, store: ParameterStore
) -> Task[Outcome]:
    outcome = yield from device_task(device, work, batch=batch, store=store)
    yield from sum_gradients(device, groups, store)
    return outcome


def single_device_plan(model: Model, job: TrainingJob, *, microbatches: int = 1) -> Plan:
    """The plan of one device that runs everything."""
    items = tuple(
        Item(name=run.name, count=run.count if run.count > 1 else 0) for run in model.runs
    )
    stage = Stage(items=items, base=0, placements=(Placement(select=Selector(), split=None),))
    lane = Lane(name="main", samples=job.global_batch, microbatches=microbatches, stages=(stage,))
    return Plan(devices=1, lanes=(lane,), orders=(NamedOrder(schedule="gpipe", lanes=("main",)),))


def reference_plan(model: Model, job: TrainingJob, plan: Plan) -> Plan:
    """The unsplit model whose step a plan's must equal: with the plan's microbatches where the loss
    is of microbatches, else with one.

    Raises:
        StrategyError: execute.balance: the loss is of microbatches, and lanes have some of unlike
        sizes.
    """
    if not model.settings.load_balancing:
        return single_device_plan(model, job)
    sizes = {lane.samples // lane.microbatches for lane in plan.lanes}
    if len(sizes) > 1:
        raise StrategyError(
            "the load-balancing loss is of microbatches, and lanes have some of"
            f" {' and '.join(map(str, sorted(sizes)))} samples",
            hint="prove a plan whose lanes have microbatches of one size",
            rule="execute.balance",
        )
    return single_device_plan(model, job, microbatches=job.global_batch // sizes.pop())


def step_differences(one: StepResult, other: StepResult) -> Iterator[tuple[Key, int, float]]:
    """(parameter, device, largest difference of its gradient) of every part that a device of `one`
    holds, against the unsplit `other`.

    A part without a gradient has zeros; so has a parameter that no token reached. One that no
    device of `one` holds differs by infinity (device -1), and so does one of which no device holds
    some element.
    """
    (whole,) = other.stores.values()
    covered: dict[Key, torch.Tensor] = {}
    for device, store in one.stores.items():
        for key, boxes in store.held.items():
            (reference,) = whole.held[key].values()
            assert tuple(reference.value.shape) == whole_shape(store.model, key)
            seen = covered.setdefault(key, torch.zeros(reference.value.shape, dtype=torch.bool))
            wanted = (
                reference.gradient
                if reference.gradient is not None
                else torch.zeros_like(reference.value)
            )
            for held in boxes.values():
                place = torch.meshgrid(
                    *(torch.cat([torch.arange(a, b) for a, b in dim]) for dim in held.box),
                    indexing="ij",
                )
                seen[place] = True
                got = held.gradient if held.gradient is not None else torch.zeros_like(held.value)
                difference = float((got - wanted[place]).abs().max()) if got.numel() else 0.0
                yield key, device, inf if isnan(difference) else difference
    for key in whole.held:
        if key not in covered or not covered[key].all():
            yield key, -1, inf
