"""Requests of groups as messages between two devices, for transports that know nothing else. No
subgroups, and every copy of a sum is equal to the last bit, because one member makes each part of
it, in the order of the devices.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from typing import TypeVar, cast

import torch

from shardwright.execute.transport.communication_record import Trace
from shardwright.execute.transport.requests import (
    Answer,
    Begin,
    End,
    Exchange,
    Post,
    Reduce,
    Reduction,
    Request,
    Take,
    Task,
    answered,
)
from shardwright.execute.transport.side_tasks_in_turn import one_by_one
from shardwright.program.transition.transition_steps import even_ranges

T = TypeVar("T")


def as_messages(task: Task[T], *, device: int, trace: Trace | None = None) -> Task[T]:
    """The same task, asking only `Post` and `Take`.

    Args:
        device: that runs the task.
        trace: gets a record of each request of the task.
    """

    def by(request: Request) -> Generator[Request, Answer, Answer]:
        assert not isinstance(request, Begin | End), "one runs behind another here"
        if trace is not None:
            trace.add(device, request)
        if isinstance(request, Reduce):
            return (yield from _reduced(request, device))
        if isinstance(request, Exchange):
            return (yield from _exchanged(request, device))
        return (yield request)

    return answered(one_by_one(task), by)


def reduced(parts: Mapping[int, torch.Tensor], reduction: Reduction) -> torch.Tensor:
    """The reduction of the devices' tensors in the order of the devices, as a tensor of its own."""
    devices = sorted(parts)
    total = parts[devices[0]].clone()
    for device in devices[1:]:
        total = (
            total + parts[device]
            if reduction is Reduction.SUM
            else torch.maximum(total, parts[device])
        )
    return total


def _reduced(request: Reduce, device: int) -> Generator[Request, Answer, torch.Tensor]:
    """Each member reduces an even share and gives it to all: 2 (n - 1) / n of the tensor out and
    in, in two rounds.
    """
    flat = request.tensor.reshape(-1)
    shares = dict(zip(request.group, even_ranges(0, flat.numel(), len(request.group)), strict=True))
    low, high = shares[device]
    given = {other: flat[a:b] for other, (a, b) in shares.items() if other != device and a < b}
    asked = (
        {other: (high - low,) for other in request.group if other != device} if low < high else {}
    )
    parts = yield from _swapped(
        given, asked, key=("parts", request.group, request.key), dtype=flat.dtype
    )
    own = reduced({device: flat[low:high], **parts}, request.reduction)
    given = {other: own for other in request.group if other != device} if low < high else {}
    asked = {other: (b - a,) for other, (a, b) in shares.items() if other != device and a < b}
    sums = yield from _swapped(
        given, asked, key=("sums", request.group, request.key), dtype=flat.dtype
    )
    sums[device] = own
    return torch.cat([sums[other] for other in request.group if other in sums]).reshape(
        request.tensor.shape
    )


def _exchanged(
    request: Exchange, device: int
) -> Generator[Request, Answer, dict[int, torch.Tensor]]:
    dtype = request.dtype or next((tensor.dtype for tensor in request.gives.values()), None)
    given = {other: tensor for other, tensor in request.gives.items() if other != device}
    asked = {other: shape for other, shape in request.receives.items() if other != device}
    came = yield from _swapped(
        given, asked, key=(request.kind, request.group, request.key), dtype=dtype
    )
    if device in request.receives:
        came[device] = request.gives[device].clone()
    return came


def _swapped(
    given: Mapping[int, torch.Tensor],
    asked: Mapping[int, tuple[int, ...]],
    *,
    key: Hashable,
    dtype: torch.dtype | None,
) -> Generator[Request, Answer, dict[int, torch.Tensor]]:
    """All messages out, then all in."""
    for other, tensor in given.items():
        yield Post(to=other, tensor=tensor, key=key)
    came: dict[int, torch.Tensor] = {}
    for other, shape in asked.items():
        came[other] = cast(
            torch.Tensor, (yield Take(source=other, shape=shape, key=key, dtype=dtype))
        )
    return came
