"""Training steps under a plan: the task of one device, and the loop over batches of a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch

from shardwright.execute.device_state.exchange_with_optimizer_shard_owners import (
    new_values,
    owned_gradient,
    owned_gradient_of_sums,
)
from shardwright.execute.device_state.stored_parameter_parts import (
    parameter_of,
    whole_shape,
)
from shardwright.execute.device_state.zero_bucket_collectives import (
    Bucket,
)
from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import ExpertLoads
from shardwright.execute.interpreter.gather_and_reduce_hooks import (
    BucketHooks,
    bucket_gradients,
    drop_values,
    gather_sharded,
)
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.interpreter.run_device_actions_of_step import device_task
from shardwright.execute.interpreter.step_recorder import STEP_LEVEL, Recorder, ignore_event
from shardwright.execute.numerics.base.run_precision import RunPrecision
from shardwright.execute.training.adamw_optimizer import (
    AdamW,
    clip_factor,
    square_sum,
    update,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    bucket_hooks,
    buckets_of_device,
)
from shardwright.execute.training.router_bias_updates import update_router_biases
from shardwright.execute.training.weight_decay_exemptions import is_exempt
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import (
    Reduce,
    SideTask,
    Task,
    begin_side_task,
    end_side_task,
)
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind

Batches = Callable[[int], Batch]
"""Gives the batch of a step, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Results of a training step, equal on all ranks.

    Number (1 for the first), mean loss before the update, gradient norm before clipping, and
    whether to stop.
    """

    step: int
    loss: float
    norm: float
    stopped: bool = False


def step_task(
    state: DeviceState,
    training: PreparedTraining,
    *,
    batch: Batch,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Task[StepReport]:
    """One training step of a device: gather, run the actions, reduce, clip, update, gather.

    Args:
        stop: called once; if true on any device, all reports have `stopped`.
        recorder: records the actions that begin.

    `BucketHooks` gather the parameters that the plan gathers at every use, and sum the gradients
    that it sums after every microbatch.
    """
    device = state.device
    local_buckets = list(buckets_of_device(training, device))
    trained = [bucket for bucket in local_buckets if bucket.trainable]
    tell = recorder.tell(device) if recorder is not None else ignore_event
    if state.pieces:
        tell(TaskKind.GATHER, STEP_LEVEL)
    hooks = bucket_hooks(state, tuple(local_buckets), training.shards.of(device))
    for bucket in local_buckets:
        if bucket.number in state.pieces and not hooks.gathers_each_use(bucket):
            yield from gather_sharded(
                device, bucket, state.views[bucket.number], state.pieces[bucket.number]
            )
    for bucket in trained:
        if not hooks.sums_each_microbatch(bucket):
            state.views[bucket.number].allocate_gradients(training.precision.gradient)
    loads = ExpertLoads(device=device, length=training.length) if training.bias_rate else None
    outcome = yield from device_task(
        device, training.work, batch=batch, store=state.store, tell=tell, hooks=hooks, loads=loads
    )
    tell(TaskKind.REDUCE, STEP_LEVEL)
    yield from hooks.wait_for_sums()
    gradients = {}
    for bucket in trained:
        gradients[bucket.number] = yield from _gradient(
            state, bucket, hooks, precision=training.precision
        )
    tell(TaskKind.STEP, STEP_LEVEL)
    squares = [square_sum(gradients[b.number]) for b in trained if b.counts_piece(device)]
    stop_request = torch.tensor(float(stop is not None and stop()), device=training.on)
    balance = [] if outcome.balance is None else [outcome.balance / training.work.scale]
    losses = device_loss_sum(outcome.losses, device, training) + _sum_of(balance, training)
    sums = torch.stack([losses, _sum_of(squares, training), _sum_of([stop_request], training)])
    if len(training.devices) > 1:
        sums = cast(torch.Tensor, (yield Reduce(group=training.devices, tensor=sums, key="norm")))
    norm = sums[1].sqrt()
    state.steps += 1
    factor = clip_factor(norm, training.rule)
    updates: list[tuple[Bucket, SideTask[torch.Tensor]]] = []
    for bucket in trained:
        piece = _updated_piece(
            state, bucket, gradients.pop(bucket.number), training=training, factor=factor
        )
        updates.append(
            (
                bucket,
                (
                    yield from begin_side_task(
                        new_values(
                            device, bucket, piece, want=3 if bucket.number in state.pieces else 0
                        )
                    )
                ),
            )
        )
        if len(updates) > 1:
            yield from _wait_for_parameter(state, *updates.pop(0))
    for update_in_flight in updates:
        yield from _wait_for_parameter(state, *update_in_flight)
    if loads is not None and training.bias_rate:
        sizes = {key: whole_shape(training.work.model, key)[0] for key in training.biases}
        yield from update_router_biases(
            training.devices, state.store, loads.counts, sizes=sizes, rate=training.bias_rate
        )
    for boxes in state.store.held.values():
        for stored in boxes.values():
            stored.gradient = None
    drop_values(set(state.pieces), state.views)
    tell(None, STEP_LEVEL)
    return StepReport(
        step=state.steps,
        loss=float(sums[0]) * training.work.scale,
        norm=float(norm),
        stopped=bool(sums[2] > 0),
    )


def device_loss_sum(
    losses: Mapping[object, torch.Tensor], device: int, training: PreparedTraining
) -> torch.Tensor:
    """Unscaled sum of a device's token losses, without losses that another device counts."""
    return _sum_of(
        [
            loss
            for key, loss in losses.items()
            if (cast(tuple[int, int], key)[0], device) in training.counts
        ],
        training,
    )


def _sum_of(terms: Sequence[torch.Tensor], training: PreparedTraining) -> torch.Tensor:
    """Sum of scalar tensors in float64; 0 for none."""
    return torch.stack(
        [torch.zeros((), dtype=torch.float64, device=training.on), *(t.double() for t in terms)]
    ).sum()


def _gradient(
    state: DeviceState, bucket: Bucket, hooks: BucketHooks, *, precision: RunPrecision
) -> Task[torch.Tensor]:
    """The step's gradient for the device's optimizer piece of a bucket, reduced if not done yet."""
    if bucket.number in hooks.final_gradients:
        return hooks.final_gradients[bucket.number]
    total = hooks.gradient_sums.get(bucket.number)
    if total is not None:
        return (yield from owned_gradient_of_sums(state.device, bucket, total, precision=precision))
    return (
        yield from owned_gradient(
            state.device,
            bucket,
            bucket_gradients(state.views[bucket.number], precision),
            precision=precision,
        )
    )


def _wait_for_parameter(
    state: DeviceState, bucket: Bucket, side_task: SideTask[torch.Tensor]
) -> Task[None]:
    """Wait for a bucket's new values, and store them in place of the old ones."""
    values = yield from end_side_task(side_task)
    if bucket.number in state.pieces:
        state.pieces[bucket.number] = values
    else:
        state.views[bucket.number].set_values(values)


def _updated_piece(
    state: DeviceState,
    bucket: Bucket,
    gradient: torch.Tensor,
    *,
    training: PreparedTraining,
    factor: torch.Tensor,
) -> torch.Tensor:
    """Apply AdamW in place to the device's optimizer piece of a bucket, and return the piece."""
    low, _ = bucket.sharing(state.device).piece(state.device, bucket.elements, 1)
    piece = state.owned(bucket)
    for a, b, states in state.shares(bucket):
        for first, end, rule in _rules_by_range(bucket, a, b, training=training):
            in_piece, in_states = slice(first - low, end - low), slice(first - a, end - a)
            update(
                piece[in_piece],
                gradient[in_piece],
                states.part(in_states),
                step=state.steps,
                rule=rule,
                factor=factor,
            )
    return piece


def _rules_by_range(
    bucket: Bucket, low: int, high: int, *, training: PreparedTraining
) -> Iterator[tuple[int, int, AdamW]]:
    """Iterate over (first element, end, AdamW settings) of elements `low` to `high` of a bucket.

    Elements that are exempt from weight decay have settings without it.
    """
    rule, model = training.rule, training.work.model
    if not rule.no_decay or not rule.decay:
        yield low, high, rule
        return
    begin = 0
    for (key, _), size in zip(bucket.boxes, bucket.sizes, strict=True):
        first, end = max(low, begin), min(high, begin + size)
        if first < end:
            yield (
                first,
                end,
                replace(rule, decay=0.0)
                if is_exempt(parameter_of(model, key), rule.no_decay)
                else rule,
            )
        begin += size


def train_rank(
    transport: DistributedTransport,
    members: Mapping[int, DeviceState],
    training: PreparedTraining,
    batches: Iterable[Batch],
    *,
    trace: CommunicationRecord | None = None,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[StepReport]:
    """Train on each batch over a transport's ranks: a report for each; `stop` only marks it.

    `members`: device states of this rank; `recorder` keeps the last step.
    """
    for batch in batches:
        tasks = {
            d: step_task(state, training, batch=batch, stop=stop, recorder=recorder)
            for d, state in members.items()
        }
        reports = transport.run_tasks(
            tasks if recorder is None else recorder.record_tasks(tasks), trace=trace
        )
        yield next(iter(reports.values()))
