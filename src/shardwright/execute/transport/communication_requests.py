"""Requests that a device's task yields to its transport, and the answers that are sent back.

Keys are made of strings, integers and tuples of them, so that they are the same on all ranks.
Messages between two devices under one key arrive in the order in which they were posted. A posted
tensor may be changed once the post is answered. The device that made a request owns the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar, cast

import torch

from shardwright.lazily_compiled_dataclass import dataclass

T = TypeVar("T")


class Reduction(StrEnum):
    """The operation that reduces the members' tensors to one tensor."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """Request of an all-reduce: all members give a tensor of one shape and receive the reduction.

    Answer: a tensor.

    Args:
        group: sorted devices.
        key: the same on all members, and different from the keys of other requests that they may
            make at that point.
        used_up: the tensor is not read again, so that a transport may overwrite it with the answer.
    """

    group: tuple[int, ...]
    tensor: torch.Tensor
    key: Hashable
    reduction: Reduction = Reduction.SUM
    used_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExchange:
    """Request of an all-gather or all-to-all: a tensor to and from each member of the group.

    Answer: {device: tensor}. In an all_gather a member sends the same tensor to all, in an
    all_to_all a different one to each. `receives`: shape of the tensor from each device. Both sides
    know the shapes, so none are sent.

    Args:
        dtype: format of the received tensors; None: the format of the sent tensors.
        into: a buffer for the tensors of all members in the order of the group; a transport may
            write there, the member's own part too, and answer with views of it.
        kind: the kind of `Collective`, for the record.
        elements: elements of the full buffer as in `Collective`, for the record.
    """

    group: tuple[int, ...]
    sends: dict[int, torch.Tensor]
    receives: dict[int, tuple[int, ...]]
    key: Hashable
    kind: str
    elements: int
    dtype: torch.dtype | None = None
    into: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Send a tensor to another device without waiting; the answer is None."""

    to: int
    tensor: torch.Tensor
    key: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Receive the tensor that another device posts under the same key.

    Answer: a tensor. `dtype` None: torch's default format.
    """

    source: int
    shape: tuple[int, ...]
    key: Hashable
    dtype: torch.dtype | None = None


class SideTask(Generic[T]):
    """Handle of a side task, which runs concurrently with the device's own task and returns a T.

    Each transport has its own subclass.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begin:
    """Request to start a side task: group requests concurrent with the device's next work.

    Answer: its `SideTask`.

    A device's side tasks run one after another. All members of a group begin their side tasks with
    requests of this group in the same order. Tensors that a task reads are not changed before it
    has ended.

    Args:
        late: for transports that run tasks in turn (`side_tasks_in_turn`): the task runs when the
            device waits for it; False: at once. The order of all devices with the task at that
            place must be free of deadlocks.
    """

    task: Task[Any]
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """Wait for a side task; the answer is the task's result."""

    begun: SideTask[Any]


TransferRequest: TypeAlias = "Reduce | GroupExchange | Post | Take"
"""A request that moves data between devices."""
Request: TypeAlias = "TransferRequest | Begin | End"
Answer: TypeAlias = Any
"""The answer to a request: a tensor, tensors by device, a `SideTask`, a task's result, or None."""
Task: TypeAlias = Generator[Request, Answer, T]
"""A part of a device's work: a generator that yields requests and returns a T."""


def begin_side_task(task: Task[T], *, late: bool = False) -> Task[SideTask[T]]:
    """Start a task of collectives beside this one, and return its handle.

    See `Begin`.
    """
    return cast(SideTask[T], (yield Begin(task=task, late=late)))


def end_side_task(side_task: SideTask[T]) -> Task[T]:
    """Wait until a side task has ended, and return its result."""
    return cast(T, (yield End(begun=side_task)))


def answer_requests(
    task: Task[T], handler: Callable[[Request], Generator[Request, Answer, Answer]]
) -> Task[T]:
    """Run a task; `handler` answers each request, and may make requests of its own."""
    answer: Answer = None
    try:
        while True:
            try:
                request = task.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = yield from handler(request)
    finally:
        task.close()
