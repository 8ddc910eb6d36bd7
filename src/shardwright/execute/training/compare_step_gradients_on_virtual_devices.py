"""One step of a plan on virtual devices in this process: loss and gradients for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf, isnan

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    ParameterStore,
    Source,
    whole_shape,
)
from shardwright.execute.device_state.sum_each_parameter_gradient_over_devices import (
    Groups,
    sum_gradients,
)
from shardwright.execute.interpreter.prepared_step import Batch, PreparedStep
from shardwright.execute.interpreter.run_device_actions_of_step import DeviceOutcome, device_task
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.execute.training.unsupported_router_settings import require_trainable
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import Task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import Item, Placement, Selector, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Loss and gradients of one step on virtual devices.

    Args:
        loss: mean over the step's tokens.
        stores: by device, its parameters with their gradients.
    """

    loss: torch.Tensor
    stores: Mapping[int, ParameterStore]


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
    """Run one step of `plan` on virtual devices: its loss and gradients.

    Args:
        batch: token ids of every sequence, (samples, positions), and ``labels`` of the text.
        trace: receives a record of each request.

    Raises:
        StrategyError: as `prepare_step`; run.* if devices do not agree on what they exchange.
    """
    chosen_settings = settings or model.settings
    require_trainable(model, chosen_settings)
    work, groups = prepare_step(model, job, plan)
    stores = {
        d: ParameterStore(model=model, source=source, settings=chosen_settings)
        for devices in work.rows.devices
        for d in devices
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other
    try:
        outcomes = run_in_process(
            {
                d: _step_with_summed_gradients(d, work, groups, batch, store)
                for d, store in stores.items()
            },
            trace=trace,
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


def _step_with_summed_gradients(
    device: int, work: PreparedStep, groups: Groups, batch: Batch, store: ParameterStore
) -> Task[DeviceOutcome]:
    """Run a device's actions of a step, then sum its gradients over the devices."""
    outcome = yield from device_task(device, work, batch=batch, store=store)
    yield from sum_gradients(device, groups, store)
    return outcome


def single_device_plan(model: Model, job: TrainingJob, *, microbatches: int = 1) -> Plan:
    """The plan in which one device runs everything."""
    items = tuple(
        Item(name=run.name, count=run.count if run.count > 1 else 0) for run in model.runs
    )
    stage = Stage(items=items, base=0, placements=(Placement(select=Selector(), split=None),))
    lane = Lane(name="main", samples=job.global_batch, microbatches=microbatches, stages=(stage,))
    return Plan(devices=1, lanes=(lane,), orders=(NamedOrder(schedule="gpipe", lanes=("main",)),))


def reference_plan(model: Model, job: TrainingJob, plan: Plan) -> Plan:
    """Single-device plan of equal loss and gradients; a balancing loss keeps the microbatches.

    It has the plan's microbatches where the loss depends on microbatches, else one.

    Raises:
        StrategyError: execute.balance: the loss depends on microbatches, and lanes have
        microbatches of different sizes.
    """
    if not model.settings.load_balancing:
        return single_device_plan(model, job)
    sizes = {lane.samples // lane.microbatches for lane in plan.lanes}
    if len(sizes) > 1:
        raise StrategyError(
            "the load-balancing loss depends on microbatches, and lanes have microbatches of"
            f" {' and '.join(map(str, sorted(sizes)))} samples",
            hint="prove a plan whose lanes have microbatches of one size",
            rule="execute.balance",
        )
    return single_device_plan(model, job, microbatches=job.global_batch // sizes.pop())


def step_differences(
    result: StepResult, reference_result: StepResult
) -> Iterator[tuple[Key, int, float]]:
    """Iterate over (parameter, device, largest gradient difference); -1 and inf for missing parts.

    Compares all parts of the devices of `result` with the unsplit model's step `reference_result`.

    A part without a gradient counts as zeros, as does a parameter that no token reached. A
    parameter with an element that no device of `result` holds differs by infinity (device -1).
    """
    (reference_store,) = reference_result.stores.values()
    covered: dict[Key, torch.Tensor] = {}
    for device, store in result.stores.items():
        for key, boxes in store.held.items():
            (reference,) = reference_store.held[key].values()
            assert tuple(reference.value.shape) == whole_shape(store.model, key)
            covered_elements = covered.setdefault(
                key, torch.zeros(reference.value.shape, dtype=torch.bool)
            )
            reference_gradient = (
                reference.gradient
                if reference.gradient is not None
                else torch.zeros_like(reference.value)
            )
            for stored in boxes.values():
                place = torch.meshgrid(
                    *(torch.cat([torch.arange(a, b) for a, b in dim]) for dim in stored.box),
                    indexing="ij",
                )
                covered_elements[place] = True
                gradient = (
                    stored.gradient
                    if stored.gradient is not None
                    else torch.zeros_like(stored.value)
                )
                difference = (
                    float((gradient - reference_gradient[place]).abs().max())
                    if gradient.numel()
                    else 0.0
                )
                yield key, device, inf if isnan(difference) else difference
    for key in reference_store.held:
        if key not in covered or not covered[key].all():
            yield key, -1, inf
