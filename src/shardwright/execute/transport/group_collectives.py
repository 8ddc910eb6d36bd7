"""Requests of groups as collectives of torch.distributed, and messages as its point-to-point:
tensors stay on the device. NCCL, or gloo.

Headers of messages go over the host (`distributed.Network`), which gives both ends of a pair one
order that nobody agrees on beforehand; the tensors behind them go over communicators of their own,
one for each direction, by threads with streams of their own. So a post never waits, what comes is
taken off the wire before anyone asks for it, and two ranks may send to each other at once. No call
here waits for an accelerator: a stream waits for another stream.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Final, TypeVar, cast

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.transport.communication_record import Trace
from shardwright.execute.transport.requests import (
    Answer,
    Begin,
    End,
    Exchange,
    Moving,
    Post,
    Reduce,
    Reduction,
    Request,
    Take,
    Task,
    answered,
)
from shardwright.execute.transport.side_tasks import Asides, StreamAsides, ThreadAsides
from shardwright.execute.transport.torch_private import named_group

T = TypeVar("T")
NCCL, GLOO = "nccl", "gloo"
# torch 2.13 renamed it; older releases have the old name only.
_ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_MADE: dict[
    tuple[int, str, tuple[int, ...], bool], tuple[dist.ProcessGroup, dist.ProcessGroup]
] = {}
"""(world, group) by world, backend, ranks and whether it is for what runs beside, for the next
network of this process: torch.distributed makes no group of a name twice.
"""
OPERATIONS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


@dataclass(slots=True)
class Communicators:
    """A communicator for each group that this rank is of, made when the group first meets, and two
    of all ranks for messages.

    One device a rank. Communicators of groups stay with the process until they are broken off.
    Members of a group meet in one order, as a device does one thing after another; what it begins
    beside that runs one behind another on communicators of its own.

    Args:
        backend: of torch.distributed, ``nccl`` or ``gloo``.
        on: this rank's device.
        rank_of_device: where devices run.
        timeout_s: longest wait for another rank, in seconds.

    Leaves out: one order of additions. A sum is the same on all members, but not to the last bit
    that of messages, whose order is that of the devices. What was sent under which key: members of
    a group that disagree are found by their shapes, if at all. A rank that ends before a group has
    met once: its other members wait for `timeout_s`, unless whoever started them ends them.
    """

    backend: str
    on: torch.device
    rank_of_device: dict[int, int]
    timeout_s: float
    rank: int
    _directions: list[dist.ProcessGroup] = field(default_factory=list)
    _asides: Asides | None = None

    def connect(self) -> None:
        """Make the communicators of messages. All ranks call it."""
        self._directions = [
            dist.new_group(backend=self.backend, timeout=self._timeout) for _ in range(2)
        ]

    def close(self) -> None:
        """Give the communicators of messages back."""
        self._end_asides()
        while self._directions:
            dist.destroy_process_group(self._directions.pop())

    def abandon(self) -> None:
        """Break off what is under way, so that other ranks learn of it."""
        self._end_asides()
        for group in (*(group for _, group in _MADE.values()), *self._directions):
            if self.backend == NCCL:
                group.abort()
            dist.destroy_process_group(group)
        _MADE.clear()
        self._directions.clear()

    def _end_asides(self) -> None:
        if self._asides is not None:
            self._asides.close()
            self._asides = None

    @property
    def _timeout(self) -> timedelta:
        return timedelta(seconds=self.timeout_s)

    def _beside(self) -> Asides:
        """The runner of tasks that the device begins."""
        if self._asides is None:
            self._asides = (
                StreamAsides(self.on)
                if self.on.type == "cuda"
                else ThreadAsides(name=f"beside-{self.rank}")
            )
        return self._asides

    def in_groups(self, task: Task[T], *, device: int, trace: Trace | None = None) -> Task[T]:
        """The same task, asking only `Post` and `Take`: requests of groups are answered here.

        Args:
            device: that runs the task.
            trace: gets a record of each request of the task.
        """

        def traced(request: Moving) -> None:
            if trace is not None:
                trace.add(device, request)

        def beside(request: Reduce | Exchange) -> Answer:
            traced(request)
            return self.meet(request, device, beside=True)

        def by(request: Request) -> Generator[Request, Answer, Answer]:
            if isinstance(request, Begin):
                return self._beside().begin(request.task, beside)
            if isinstance(request, End):
                return self._beside().end(request.begun)
            traced(request)
            return (
                (yield request) if isinstance(request, Post | Take) else self.meet(request, device)
            )

        return answered(task, by)

    def meet(self, request: Reduce | Exchange, device: int, *, beside: bool = False) -> Answer:
        """The answer to a request of a group;
        `beside`: on the communicators of what runs beside.
        """
        if isinstance(request, Reduce):
            return self.reduce(request, beside=beside)
        return self.exchange(request, device, beside=beside)

    def reduce(self, request: Reduce, *, beside: bool = False) -> torch.Tensor:
        """The reduction of all members' tensors; the group's all-reduce."""
        total = request.tensor.detach()
        if not (request.used_up and total.is_contiguous()):
            total = total.clone(memory_format=torch.contiguous_format)
        if len(request.group) > 1 and total.numel():
            with self._meeting(request):
                dist.all_reduce(
                    total,
                    op=OPERATIONS[request.reduction],
                    group=self._group(request.group, beside),
                )
        return total

    def exchange(
        self, request: Exchange, device: int, *, beside: bool = False
    ) -> dict[int, torch.Tensor]:
        """The tensors that each member gives this one: an all-gather where all give tensors of the
        same shape to all, else an all-to-all.
        """
        members = request.group
        dtype = request.dtype or next(
            (tensor.dtype for tensor in request.gives.values()), torch.get_default_dtype()
        )
        if gathers(request, device):
            own = (
                next(tensor for other, tensor in request.gives.items() if other != device)
                .detach()
                .contiguous()
            )
            room = request.into
            fits = (
                room is not None
                and room.is_contiguous()
                and room.numel() == len(members) * own.numel()
                and room.dtype == own.dtype
            )
            whole = (
                room.view(len(members), *own.shape)
                if room is not None and fits
                else own.new_empty((len(members), *own.shape))
            )
            with self._meeting(request):
                _ALL_GATHER(whole.view(-1), own.view(-1), group=self._group(members, beside))
            found = dict(zip(members, whole.unbind(), strict=True))
        else:
            found = self._dealt(request, device, dtype, beside)
        came = {other: found[other] for other in request.receives if other != device}
        if device in request.receives:
            came[device] = request.gives[device].clone()
        return came

    def _dealt(
        self, request: Exchange, device: int, dtype: torch.dtype, beside: bool
    ) -> dict[int, torch.Tensor]:
        others = [other for other in request.group if other != device]
        gives = {
            other: request.gives[other].detach().reshape(-1)
            for other in others
            if other in request.gives
        }
        out = [gives[other].numel() if other in gives else 0 for other in request.group]
        back = [
            prod(request.receives[other]) if other != device and other in request.receives else 0
            for other in request.group
        ]
        sent = (
            torch.cat(list(gives.values()))
            if gives
            else torch.empty(0, dtype=dtype, device=self.on)
        )
        came = torch.empty(sum(back), dtype=dtype, device=self.on)
        sizes = [[dtype.itemsize * n for n in one] for one in (back, out)]
        with self._meeting(request):
            dist.all_to_all_single(
                came.view(torch.uint8),
                sent.view(torch.uint8),
                *sizes,
                group=self._group(request.group, beside),
            )
        parts = dict(zip(request.group, came.split(back), strict=True))
        return {
            other: parts[other].reshape(request.receives[other])
            for other in others
            if other in request.receives
        }

    @contextmanager
    def _meeting(self, request: Reduce | Exchange) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise StrategyError(
                f"rank {self.rank}: {request.key!r} of devices {request.group[:8]}:"
                f" {one_line(error)}",
                hint="see the other ranks' own errors; resume from the last checkpoint",
                rule="run.peer",
            ) from error

    def _group(self, devices: tuple[int, ...], beside: bool) -> dist.ProcessGroup:
        ranks = tuple(self.rank_of_device[device] for device in devices)
        # Groups end with the world that they are of.
        world = dist.group.WORLD
        assert world is not None, "ranks have met"
        key = id(world), self.backend, ranks, beside
        if key not in _MADE:
            # Members alone meet: others are at other work, and may never hear of this group.
            name = (
                f"shardwright {self.backend}"
                f" {'beside ' if beside else ''}{' '.join(map(str, ranks))}"
            )
            _MADE[key] = (
                world,
                named_group(name, ranks, backend=self.backend, timeout=self._timeout),
            )
        return _MADE[key][1]

    def ready(self) -> torch.cuda.Event | None:
        """The event that a sending thread waits for, after all work that this thread has queued on
        the device; None on the host.
        """
        if self.on.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.on))
        return event

    def aside(self) -> AbstractContextManager[object]:
        """A stream of this thread's own, so that what comes does not wait for what is computed."""
        if self.on.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self.on)
        return cast("AbstractContextManager[object]", torch.cuda.stream(torch.cuda.Stream(self.on)))

    def send(self, tensor: torch.Tensor, rank: int, ready: torch.cuda.Event | None) -> dist.Work:
        """Begin to send a tensor to a rank behind an event. Called by one thread for each rank."""
        if ready is not None:
            torch.cuda.current_stream(self.on).wait_event(ready)
            tensor.record_stream(torch.cuda.current_stream(self.on))
        work = dist.isend(tensor, rank, group=self._directions[rank > self.rank])
        assert work is not None, "every rank is of the group"
        return work

    def receive(self, tensor: torch.Tensor, rank: int) -> dist.Work:
        """Begin to take a tensor from a rank. Called by one thread for each rank."""
        work = dist.irecv(tensor, rank, group=self._directions[rank < self.rank])
        assert work is not None, "every rank is of the group"
        return work


def gathers(request: Exchange, device: int) -> bool:
    """True if an exchange is an all-gather of parts of one shape, judged by one member's knowledge;
    all members agree.

    Else parts differ in size, or some member gives or gets nothing: an all-to-all carries that.
    """
    others = set(request.group) - {device}
    given = {
        other: tuple(tensor.shape) for other, tensor in request.gives.items() if other != device
    }
    received = {other: tuple(shape) for other, shape in request.receives.items() if other != device}
    whole = bool(others) and given.keys() == others == received.keys()
    return (
        request.kind == "all_gather" and whole and len({*given.values(), *received.values()}) == 1
    )


def one_line(error: RuntimeError) -> str:
    """A backend's error message on one line, without source positions and guesses."""
    return re.sub(r"\[/\S*\] |\. This is typically.*", "", " ".join(str(error).split()))
