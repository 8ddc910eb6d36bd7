"""Requests of a device to its transport: its task yields a request and is sent the answer.

Keys are made of strings, integers and tuples of them, so that they are the same on all ranks.
Messages between two devices under one key come in the order in which they were posted. A posted
tensor may be changed once the post is answered; an answer belongs to who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar, cast

import torch

from shardwright.lazy_dataclass import dataclass

T = TypeVar("T")


class Reduction(StrEnum):
    """The reduction of the members' tensors to one."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce:
    """All members give a tensor of one shape and get their reduction. Answer: a tensor.

    Args:
        group: sorted devices.
        key: the same on all members, different from what else they may ask at that point.
        used_up: nobody reads the tensor again: a transport may write the answer over it.
    """

    group: tuple[int, ...]
    tensor: torch.Tensor
    key: Hashable
    reduction: Reduction = Reduction.SUM
    used_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Each member gives one tensor (or none) for each member of the group and gets one from each.
    Answer: {device: tensor}.

    An all_gather gives everyone the same tensor, an all_to_all each its own. `receives`: shape of
    what comes from each device; shapes are known on both sides, so nothing is negotiated.

    Args:
        dtype: of what comes; None: that of what is given.
        into: room for what all members give, one behind the other in the order of the group: a
            transport may write there, its own part too, and answers with views of it.
        kind: words of `Collective`, for the trace.
        elements: full buffer as in `Collective`, for the trace.
    """

    group: tuple[int, ...]
    gives: dict[int, torch.Tensor]
    receives: dict[int, tuple[int, ...]]
    key: Hashable
    kind: str
    elements: int
    dtype: torch.dtype | None = None
    into: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Send a tensor to another device; the sender goes on at once. Answer: None."""

    to: int
    tensor: torch.Tensor
    key: Hashable


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Receive what another device posts under the same key. Answer: a tensor. dtype: None: torch's
    default.
    """

    source: int
    shape: tuple[int, ...]
    key: Hashable
    dtype: torch.dtype | None = None


class Beside(Generic[T]):
    """A task that was begun beside its device's own and returns a T. What it is made of is its
    transport's.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Begin:
    """Run a task of requests of groups beside what the device does next. Answer: its `Beside`.

    Tasks that a device begins run one behind another. Members of a group begin those that meet in
    it in one order. Tensors that a task reads are not changed before it has ended.

    Args:
        late: where everything runs one behind another (`one_by_one`), the task runs when it is
            waited for; else at once. That is its place in the order of all devices, which must be
            one without these requests.
    """

    task: Task[Any]
    late: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class End:
    """Wait for a task that was begun. Answer: what it returned."""

    begun: Beside[Any]


Moving: TypeAlias = "Reduce | Exchange | Post | Take"
"""A request that moves something."""
Request: TypeAlias = "Moving | Begin | End"
Answer: TypeAlias = Any
"""A tensor, tensors by device, a `Beside`, what a task returned, or None, as the request says."""
Task: TypeAlias = Generator[Request, Answer, T]
"""A piece of a device's work: yields requests, returns a T."""


def begun(task: Task[T], *, late: bool = False) -> Task[Beside[T]]:
    """Begin a task; see `Begin`."""
    return cast(Beside[T], (yield Begin(task=task, late=late)))


def ended(beside: Beside[T]) -> Task[T]:
    """Wait for what was begun."""
    return cast(T, (yield End(begun=beside)))


def answered(task: Task[T], by: Callable[[Request], Generator[Request, Answer, Answer]]) -> Task[T]:
    """The same task, asking what `by` asks to answer each of its requests."""
    answer: Answer = None
    try:
        while True:
            try:
                request = task.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            answer = yield from by(request)
    finally:
        task.close()
