"""Loss of evaluation batches, without training on them, under the plan that trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch

from shardwright.execute.interpreter.gather_and_reduce_hooks import drop_values, gather_sharded
from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.interpreter.run_device_actions_of_step import forward_task
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    bucket_hooks,
)
from shardwright.execute.training.training_loop import device_loss_sum
from shardwright.execute.transport.communication_requests import Reduce, Task
from shardwright.execute.transport.torch_distributed import DistributedTransport


def evaluation_task(
    device_state: DeviceState, training: PreparedTraining, *, batch: Batch
) -> Task[float]:
    """Task of a device: mean loss of a batch with the current parameters, equal on all devices.

    It runs only the step's forward actions.

    Parameters that are sharded between steps are gathered as in a step, and freed again.
    """
    device = device_state.device
    local_buckets = [bucket for bucket in training.buckets if device in bucket.devices]
    hooks = bucket_hooks(device_state, tuple(local_buckets), training.shards.of(device))
    for bucket in local_buckets:
        if bucket.number in device_state.pieces and not hooks.gathers_each_use(bucket):
            yield from gather_sharded(
                device,
                bucket,
                device_state.views[bucket.number],
                device_state.pieces[bucket.number],
            )
    outcome = yield from forward_task(
        device, training.work, batch=batch, store=device_state.store, hooks=hooks
    )
    total = device_loss_sum(outcome.losses, device, training)
    if len(training.devices) > 1:
        total = cast(
            torch.Tensor, (yield Reduce(group=training.devices, tensor=total, key="evaluation"))
        )
    drop_values(set(device_state.pieces), device_state.views)
    return float(total) * training.work.scale


def evaluate_rank(
    transport: DistributedTransport,
    members: Mapping[int, DeviceState],
    training: PreparedTraining,
    batches: Iterable[Batch],
) -> float:
    """Mean over `batches` of the mean loss a token, equal on all ranks of the transport.

    `members`: device states of this rank.
    """
    losses = []
    for batch in batches:
        losses_by_device = transport.run_tasks(
            {d: evaluation_task(state, training, batch=batch) for d, state in members.items()}
        )
        losses.append(next(iter(losses_by_device.values())))
    return sum(losses) / len(losses)
