"""The loss of batches that nothing is learnt from, under the plan that trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import torch

from shardwright.execute.interpreter.device_walk import Batch, forward_task
from shardwright.execute.interpreter.layer_hooks import drop_values, gather_sharded
from shardwright.execute.training.training_loop import (
    DeviceState,
    Training,
    bucket_hooks,
    device_loss_sum,
)
from shardwright.execute.transport.requests import Reduce, Task
from shardwright.execute.transport.torch_distributed import DistributedTransport


def evaluation_task(own: DeviceState, known: Training, *, batch: Batch) -> Task[float]:
    """The mean loss of a batch with a device's parameters as they are: the step's forward actions
    alone, the same number on every device.

    Parameters that are sharded between steps are gathered as in a step, and dropped again.
    """
    device = own.device
    mine = [bucket for bucket in known.buckets if device in bucket.devices]
    around = bucket_hooks(own, tuple(mine), known.shards.of(device))
    for bucket in mine:
        if bucket.number in own.pieces and not around.gathers_each_use(bucket):
            yield from gather_sharded(
                device, bucket, own.views[bucket.number], own.pieces[bucket.number]
            )
    outcome = yield from forward_task(
        device, known.work, batch=batch, store=own.store, hooks=around
    )
    total = device_loss_sum(outcome.losses, device, known)
    if len(known.devices) > 1:
        total = cast(
            torch.Tensor, (yield Reduce(group=known.devices, tensor=total, key="evaluation"))
        )
    drop_values(set(own.pieces), own.views)
    return float(total) * known.work.scale


def evaluate_rank(
    network: DistributedTransport,
    members: Mapping[int, DeviceState],
    known: Training,
    batches: Iterable[Batch],
) -> float:
    """Mean loss of all batches, over the ranks of a network; `members`: devices of this rank."""
    losses = []
    for batch in batches:
        found = network.run_tasks(
            {d: evaluation_task(own, known, batch=batch) for d, own in members.items()}
        )
        losses.append(next(iter(found.values())))
    return sum(losses) / len(losses)
