"""Transport for all devices of a plan in one process: it answers requests and finds deadlocks.

The proofs of plans use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch

from shardwright.errors import StrategyError
from shardwright.execute.transport.collectives_as_messages import reduce_in_order
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import (
    Answer,
    Begin,
    End,
    GroupExchange,
    Post,
    Reduce,
    Take,
    Task,
    TransferRequest,
)
from shardwright.execute.transport.run_side_tasks_in_turn import side_tasks_in_turn

T = TypeVar("T")
GroupRequest = tuple[type, tuple[int, ...], Hashable]
"""(kind of request, group, key): equal for all members of a collective."""


def run_in_process(
    tasks: Mapping[int, Task[T]], *, trace: CommunicationRecord | None = None
) -> dict[int, T]:
    """Run all devices' tasks to their end in this process, and return their results by device.

    Deterministic: devices run in order, each until it must wait.

    Args:
        tasks: the task of each device, including all devices that they communicate with.
        trace: receives a record of each request.

    Raises:
        StrategyError: run.deadlock if every device waits, with the request of each; run.mismatch if
        two devices disagree on a shape, a dtype or a group; run.untaken if a message is never
        received. Errors of a task pass, with its device in a note.
    """
    state = _Scheduler[T](
        tasks={device: side_tasks_in_turn(task) for device, task in sorted(tasks.items())},
        trace=trace,
    )
    try:
        while state.tasks:
            if not state.ready:
                raise _deadlock_error(state.waiting)
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
class _Scheduler(Generic[T]):
    """State of the scheduler: tasks that can run, devices that wait, and unreceived messages."""

    tasks: dict[int, Task[T]]
    trace: CommunicationRecord | None
    ready: list[int] = field(default_factory=list)
    answers: dict[int, Answer] = field(default_factory=dict)
    waiting: dict[int, TransferRequest] = field(default_factory=dict)
    posted: dict[tuple[int, int, Hashable], deque[torch.Tensor]] = field(default_factory=dict)
    collectives: dict[GroupRequest, dict[int, Reduce | GroupExchange]] = field(default_factory=dict)
    returned: dict[int, T] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ready = list(self.tasks)

    def answer(self, device: int, answer: Answer) -> None:
        """Keep the answer to a device's request, and queue the device to go on."""
        self.waiting.pop(device, None)
        self.answers[device] = answer
        self.ready.append(device)

    def advance(self, device: int) -> None:
        """Run a device's task up to its next request, and handle that request."""
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
            self._collective(device, request)

    def _post(self, device: int, request: Post) -> None:
        """Keep a copy of a message, let the sender go on, and answer a waiting receiver."""
        place = device, request.to, request.key
        self.posted.setdefault(place, deque()).append(request.tensor.clone())
        self.answer(device, None)
        taker = self.waiting.get(request.to)
        if isinstance(taker, Take) and (taker.source, taker.key) == (device, request.key):
            self._take(request.to, taker)

    def _take(self, device: int, request: Take) -> None:
        """Give a receiver the oldest message with its source and key, after a shape check."""
        messages = self.posted[request.source, device, request.key]
        tensor = messages.popleft()
        _require_shape_and_dtype(
            tensor,
            request.shape,
            request.dtype or torch.get_default_dtype(),
            what=f"{request.key!r} from device {request.source} to {device}",
        )
        self.answer(device, tensor)

    def _collective(self, device: int, request: Reduce | GroupExchange) -> None:
        """Add a device to a collective; the last member's request runs it and answers all."""
        if device not in request.group or list(request.group) != sorted(set(request.group)):
            raise StrategyError(
                f"device {device} asks in a group {request.group}",
                hint="a group is sorted and contains the device that asks",
                rule="run.mismatch",
            )
        meeting = type(request), request.group, request.key
        members = self.collectives.setdefault(meeting, {})
        members[device] = request
        if len(members) < len(request.group):
            return
        del self.collectives[meeting]
        requests = {member: members[member] for member in request.group}
        for member, answer in (_all_reduce if isinstance(request, Reduce) else _exchange)(
            requests
        ).items():
            self.answer(member, answer)


def _all_reduce(members: Mapping[int, Reduce | GroupExchange]) -> dict[int, Answer]:
    """Device -> own copy of the reduction of all members' tensors, in ascending device order."""
    requests = {
        device: request for device, request in members.items() if isinstance(request, Reduce)
    }
    first = next(iter(requests.values()))
    for device, request in requests.items():
        _require_shape_and_dtype(
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
    total = reduce_in_order(
        {device: request.tensor for device, request in requests.items()}, first.reduction
    )
    return {device: total.clone() for device in requests}


def _exchange(members: Mapping[int, Reduce | GroupExchange]) -> dict[int, Answer]:
    """Device -> tensors sent to it, by sender; StrategyError where sends and receives differ."""
    requests = {
        device: request for device, request in members.items() if isinstance(request, GroupExchange)
    }
    for device, request in requests.items():
        for peer in request.sends:
            if peer not in requests or device not in requests[peer].receives:
                raise StrategyError(
                    f"{request.key!r}: device {device} sends to device {peer},"
                    " which expects nothing",
                    rule="run.mismatch",
                )
    result: dict[int, Answer] = {}
    for device, request in requests.items():
        received: dict[int, torch.Tensor] = {}
        for peer, shape in request.receives.items():
            if peer not in requests or device not in requests[peer].sends:
                raise StrategyError(
                    f"{request.key!r}: device {device} expects from device {peer},"
                    " which sends nothing",
                    rule="run.mismatch",
                )
            tensor = requests[peer].sends[device]
            dtype = request.dtype or next(
                (sent_tensor.dtype for sent_tensor in request.sends.values()), tensor.dtype
            )
            _require_shape_and_dtype(
                tensor, shape, dtype, what=f"{request.key!r} from device {peer} to {device}"
            )
            received[peer] = tensor.clone()
        result[device] = received
    return result


def _require_shape_and_dtype(
    tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, *, what: str
) -> None:
    """Raise `StrategyError` unless a tensor has the shape and dtype that the receiver expects."""
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
        raise StrategyError(
            f"{what}: {tuple(tensor.shape)} {tensor.dtype} is sent, {tuple(shape)} {dtype}"
            " expected",
            hint="both sides derive shapes from the same layouts",
            rule="run.mismatch",
        )


def _deadlock_error(waiting: Mapping[int, TransferRequest]) -> StrategyError:
    """Error that names each waiting device and the devices that have not made the same request."""
    lines = []
    for device, request in sorted(waiting.items()):
        if isinstance(request, Take):
            lines.append(
                f"device {device} for message {request.key!r} from device {request.source}"
            )
            continue
        assert not isinstance(request, Post), "a post never waits"
        present = [
            member
            for member, other_request in waiting.items()
            if isinstance(other_request, type(request))
            and (other_request.group, other_request.key) == (request.group, request.key)
        ]
        missing = ", ".join(str(member) for member in request.group if member not in present)
        collective = request.kind if isinstance(request, GroupExchange) else "all_reduce"
        lines.append(f"device {device} for {missing} in {collective} {request.key!r}")
    rest = f"; and {len(lines) - 8} more" if len(lines) > 8 else ""
    return StrategyError(
        f"every device waits: {'; '.join(lines[:8])}{rest}",
        hint="orders of devices must agree on what they exchange",
        rule="run.deadlock",
    )
