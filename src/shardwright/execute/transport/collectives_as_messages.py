"""Collectives of a group made of messages between two devices, for transports without collectives.

One member computes each part of a sum, in the order of the devices, so that every copy is equal to
the last bit.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from typing import TypeVar, cast

import torch

from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import (
    Answer,
    Begin,
    End,
    GroupExchange,
    Post,
    Reduce,
    Reduction,
    Request,
    Take,
    Task,
    answer_requests,
)
from shardwright.execute.transport.run_side_tasks_in_turn import side_tasks_in_turn
from shardwright.program.transition.transition_steps_and_symbolic_proof import even_ranges

T = TypeVar("T")


def as_messages(task: Task[T], *, device: int, trace: CommunicationRecord | None = None) -> Task[T]:
    """Wrap a task: its collectives become `Post` and `Take` messages between devices.

    Args:
        device: the device that runs the task.
        trace: receives a record of each request of the task.
    """

    def answer(request: Request) -> Generator[Request, Answer, Answer]:
        """Run a collective by messages, and record it; pass messages on."""
        assert not isinstance(request, Begin | End), "side tasks run one after another here"
        if trace is not None:
            trace.add(device, request)
        if isinstance(request, Reduce):
            return (yield from _all_reduce(request, device))
        if isinstance(request, GroupExchange):
            return (yield from _exchange(request, device))
        return (yield request)

    return answer_requests(side_tasks_in_turn(task), answer)


def reduce_in_order(parts: Mapping[int, torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """Sum or elementwise maximum of the devices' tensors in ascending device order, as a copy."""
    devices = sorted(parts)
    total = parts[devices[0]].clone()
    for device in devices[1:]:
        total = (
            total + parts[device]
            if reduction is Reduction.SUM
            else torch.maximum(total, parts[device])
        )
    return total


def _all_reduce(request: Reduce, device: int) -> Generator[Request, Answer, torch.Tensor]:
    """All-reduce by messages: each member reduces an even share and sends the result to all.

    Each member sends and receives 2 (n - 1) / n of the tensor in two rounds (reduce-scatter,
    all-gather).
    """
    flat = request.tensor.reshape(-1)
    shares = dict(zip(request.group, even_ranges(0, flat.numel(), len(request.group)), strict=True))
    low, high = shares[device]
    sent = {peer: flat[a:b] for peer, (a, b) in shares.items() if peer != device and a < b}
    received_shapes = (
        {peer: (high - low,) for peer in request.group if peer != device} if low < high else {}
    )
    parts = yield from _send_then_receive(
        sent, received_shapes, key=("parts", request.group, request.key), dtype=flat.dtype
    )
    reduced_share = reduce_in_order({device: flat[low:high], **parts}, request.reduction)
    sent = {peer: reduced_share for peer in request.group if peer != device} if low < high else {}
    received_shapes = {
        peer: (b - a,) for peer, (a, b) in shares.items() if peer != device and a < b
    }
    sums = yield from _send_then_receive(
        sent, received_shapes, key=("sums", request.group, request.key), dtype=flat.dtype
    )
    sums[device] = reduced_share
    return torch.cat([sums[peer] for peer in request.group if peer in sums]).reshape(
        request.tensor.shape
    )


def _exchange(
    request: GroupExchange, device: int
) -> Generator[Request, Answer, dict[int, torch.Tensor]]:
    """Exchange tensors with a group's members by messages; returns tensors by sending device."""
    dtype = request.dtype or next((tensor.dtype for tensor in request.sends.values()), None)
    sent = {peer: tensor for peer, tensor in request.sends.items() if peer != device}
    received_shapes = {peer: shape for peer, shape in request.receives.items() if peer != device}
    received = yield from _send_then_receive(
        sent, received_shapes, key=(request.kind, request.group, request.key), dtype=dtype
    )
    if device in request.receives:
        received[device] = request.sends[device].clone()
    return received


def _send_then_receive(
    sent: Mapping[int, torch.Tensor],
    received_shapes: Mapping[int, tuple[int, ...]],
    *,
    key: Hashable,
    dtype: torch.dtype | None,
) -> Generator[Request, Answer, dict[int, torch.Tensor]]:
    """Post a tensor to each device in `sent`, then take one from each in `received_shapes`."""
    for peer, tensor in sent.items():
        yield Post(to=peer, tensor=tensor, key=key)
    received: dict[int, torch.Tensor] = {}
    for peer, shape in received_shapes.items():
        received[peer] = cast(
            torch.Tensor, (yield Take(source=peer, shape=shape, key=key, dtype=dtype))
        )
    return received
