"""All devices of a plan in one process: a scheduler that matches what they ask of each other. It
proves, and it finds deadlocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from shardwright.errors import StrategyError
from shardwright.execute.transport.communication_record import Trace
from shardwright.execute.transport.group_messages import reduced
from shardwright.execute.transport.requests import (
    Answer,
    Begin,
    End,
    Exchange,
    Moving,
    Post,
    Reduce,
    Take,
    Task,
)
from shardwright.execute.transport.side_tasks_in_turn import one_by_one

T = TypeVar("T")
Meeting = tuple[type, tuple[int, ...], Hashable]
"""(kind of request, group, key): what members of a group meet under."""


def run(tasks: Mapping[int, Task[T]], *, trace: Trace | None = None) -> dict[int, T]:
    """The result of each device's task, once all are done. Deterministic: devices run in order,
    each as far as it can.

    Args:
        tasks: by device; all devices that they ask anything of are among them.
        trace: gets a record of each request.

    Raises:
        StrategyError: run.deadlock if nobody can go on, with what each device waits for;
            run.mismatch if two sides disagree on a shape, a dtype or a group; run.untaken if a
            message is never taken. Errors of a task pass, with its device in a note.
    """
    state = _State[T](
        tasks={device: one_by_one(task) for device, task in sorted(tasks.items())}, trace=trace
    )
    try:
        while state.tasks:
            if not state.ready:
                raise _deadlock(state.waiting)
            state.ready.sort()
            device = state.ready.pop(0)
            state.advance(device)
    finally:
        for task in state.tasks.values():
            task.close()
    left = [
        f"{key!r} from device {source} to {to}"
        for (source, to, key), messages in state.posted.items()
        if messages
    ]
    if left:
        raise StrategyError(
            f"{len(left)} messages are never taken: {'; '.join(left[:4])}",
            hint="each post has its take",
            rule="run.untaken",
        )
    return state.returned


@dataclass(slots=True)
class _State(Generic[T]):
    tasks: dict[int, Task[T]]
    trace: Trace | None
    ready: list[int] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    waiting: dict[int, Moving] = field(default_factory=dict)
    posted: dict[tuple[int, int, Hashable], deque[torch.Tensor]] = field(default_factory=dict)
    meetings: dict[Meeting, dict[int, Reduce | Exchange]] = field(default_factory=dict)
    returned: dict[int, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ready = list(self.tasks)

    def answer(self, device: int, answer: Answer) -> None:
        self.waiting.pop(device, None)
        self.answers[device] = answer
        self.ready.append(device)

    def advance(self, device: int) -> None:
        """The device goes on until it waits or returns."""
        try:
            request = self.tasks[device].send(self.answers.pop(device, None))
        except StopIteration as end:
            self.returned[device] = end.value
            del self.tasks[device]
            return
        except Exception as error:
            error.add_note(f"on device {device}")
            raise
        assert not isinstance(request, Begin | End), "one runs behind another here"
        if self.trace is not None:
            self.trace.add(device, request)
        self.waiting[device] = request
        if isinstance(request, Post):
            self._post(device, request)
        elif isinstance(request, Take):
            if self.posted.get((request.source, device, request.key)):
                self._take(device, request)
        else:
            self._meet(device, request)

    def _post(self, device: int, request: Post) -> None:
        place = device, request.to, request.key
        self.posted.setdefault(place, deque()).append(request.tensor.clone())
        self.answer(device, None)
        taker = self.waiting.get(request.to)
        if isinstance(taker, Take) and (taker.source, taker.key) == (device, request.key):
            self._take(request.to, taker)

    def _take(self, device: int, request: Take) -> None:
        messages = self.posted[request.source, device, request.key]
        tensor = messages.popleft()
        _agree(
            tensor,
            request.shape,
            request.dtype or torch.get_default_dtype(),
            what=f"{request.key!r} from device {request.source} to {device}",
        )
        self.answer(device, tensor)

    def _meet(self, device: int, request: Reduce | Exchange) -> None:
        if device not in request.group or list(request.group) != sorted(set(request.group)):
            raise StrategyError(
                f"device {device} asks in a group {request.group}",
                hint="a group is sorted and has who asks",
                rule="run.mismatch",
            )
        meeting = type(request), request.group, request.key
        members = self.meetings.setdefault(meeting, {})
        members[device] = request
        if len(members) < len(request.group):
            return
        del self.meetings[meeting]
        given = {member: members[member] for member in request.group}
        for member, answer in (_reduced if isinstance(request, Reduce) else _exchanged)(
            given
        ).items():
            self.answer(member, answer)


def _reduced(members: Mapping[int, Reduce | Exchange]) -> dict[int, Answer]:
    asked = {device: request for device, request in members.items() if isinstance(request, Reduce)}
    first = next(iter(asked.values()))
    for device, request in asked.items():
        _agree(
            request.tensor,
            tuple(first.tensor.shape),
            first.tensor.dtype,
            what=f"{request.key!r} of device {device}",
        )
        if request.reduction is not first.reduction:
            raise StrategyError(
                f"{request.key!r}: {request.reduction} on device {device}, not {first.reduction}",
                rule="run.mismatch",
            )
    total = reduced({device: request.tensor for device, request in asked.items()}, first.reduction)
    return {device: total.clone() for device in asked}


def _exchanged(members: Mapping[int, Reduce | Exchange]) -> dict[int, Answer]:
    asked = {
        device: request for device, request in members.items() if isinstance(request, Exchange)
    }
    for device, request in asked.items():
        for other in request.gives:
            if other not in asked or device not in asked[other].receives:
                raise StrategyError(
                    f"{request.key!r}: device {device} gives what device {other} does not receive",
                    rule="run.mismatch",
                )
    result: dict[int, Answer] = {}
    for device, request in asked.items():
        came: dict[int, torch.Tensor] = {}
        for other, shape in request.receives.items():
            if other not in asked or device not in asked[other].gives:
                raise StrategyError(
                    f"{request.key!r}: device {device} receives what device {other} does not give",
                    rule="run.mismatch",
                )
            tensor = asked[other].gives[device]
            dtype = request.dtype or next(
                (own.dtype for own in request.gives.values()), tensor.dtype
            )
            _agree(tensor, shape, dtype, what=f"{request.key!r} from device {other} to {device}")
            came[other] = tensor.clone()
        result[device] = came
    return result


def _agree(tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, *, what: str) -> None:
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        raise StrategyError(
            f"{what}: {tuple(tensor.shape)} {tensor.dtype} is given, {tuple(shape)} {dtype}"
            " expected",
            hint="both sides derive shapes from the same layouts",
            rule="run.mismatch",
        )


def _deadlock(waiting: Mapping[int, Moving]) -> StrategyError:
    """An error that names the waiting devices and the members of their groups that have not made
    the same request.
    """
    lines = []
    for device, request in sorted(waiting.items()):
        if isinstance(request, Take):
            lines.append(
                f"device {device} for message {request.key!r} from device {request.source}"
            )
            continue
        assert not isinstance(request, Post), "a post never waits"
        here = [
            d
            for d, o in waiting.items()
            if isinstance(o, type(request)) and (o.group, o.key) == (request.group, request.key)
        ]
        missing = ", ".join(str(d) for d in request.group if d not in here)
        what = request.kind if isinstance(request, Exchange) else "all_reduce"
        lines.append(f"device {device} for {missing} in {what} {request.key!r}")
    more = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    return StrategyError(
        f"nobody can go on: {'; '.join(lines[:8])}{more}",
        hint="orders of devices must agree on what they exchange",
        rule="run.deadlock",
    )
