"""Collectives of torch.distributed (NCCL or gloo) for requests of groups, and sends for messages.

Tensors stay on the device.

Headers of messages go over the host (`torch_distributed.DistributedTransport`), in an order that
both ranks of a pair see without agreeing on it beforehand. The tensors follow on communicators of
their own, one for each direction, by threads with streams of their own. A send therefore never
waits, arriving tensors are received before a task asks for them, and two ranks may send to each
other at once. No call here waits for an accelerator: a stream waits for another stream.
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
    TransferRequest,
    answer_requests,
)
from shardwright.execute.transport.create_named_process_group import named_group
from shardwright.execute.transport.run_side_tasks_on_stream_or_thread import (
    SideTasks,
    StreamSideTasks,
    ThreadSideTasks,
)

T = TypeVar("T")
NCCL, GLOO = "nccl", "gloo"
# torch 2.13 renamed it; older releases have the old name only.
_ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_PROCESS_GROUPS: dict[
    tuple[int, str, tuple[int, ...], bool], tuple[dist.ProcessGroup, dist.ProcessGroup]
] = {}
"""(world, group) by world, backend, ranks and True for side tasks; kept for the next network of
this process, because torch.distributed creates no second group of the same name."""
OPERATIONS = {Reduction.SUM: dist.ReduceOp.SUM, Reduction.MAX: dist.ReduceOp.MAX}


@dataclass(slots=True)
class Communicators:
    """Process groups of one rank: one for each device group, and two of all ranks for messages.

    A group's communicator is created at its first request.

    Each rank has one device. Communicators of groups stay with the process until they are aborted.
    All members make a group's requests in the same order; side tasks run one after another on
    communicators of their own.

    Args:
        backend: of torch.distributed, ``nccl`` or ``gloo``.
        on: this rank's torch device.
        rank_of_device: the rank of each device.
        timeout_s: longest wait for another rank, in seconds.

    Leaves out: one order of additions (a sum is equal on all members, but may differ in the last
    bits from the sum by messages, which add in the order of the devices); a check of keys (members
    of a group that make different requests are detected by their shapes, if at all); a rank that
    ends before a group's first request (its other members wait for `timeout_s`, unless the launcher
    ends them).
    """

    backend: str
    on: torch.device
    rank_of_device: dict[int, int]
    timeout_s: float
    rank: int
    _directions: list[dist.ProcessGroup] = field(default_factory=list)
    _side_tasks: SideTasks | None = None

    def connect(self) -> None:
        """Create two process groups of all ranks, one per message direction; all ranks call it."""
        self._directions = [
            dist.new_group(backend=self.backend, timeout=self._timeout) for _ in range(2)
        ]

    def close(self) -> None:
        """Destroy the process groups of messages, and end the side tasks."""
        self._end_side_tasks()
        while self._directions:
            dist.destroy_process_group(self._directions.pop())

    def abandon(self) -> None:
        """Abort running communication and destroy all groups, so that other ranks notice."""
        self._end_side_tasks()
        for group in (*(group for _, group in _PROCESS_GROUPS.values()), *self._directions):
            if self.backend == NCCL:
                group.abort()
            dist.destroy_process_group(group)
        _PROCESS_GROUPS.clear()
        self._directions.clear()

    def _end_side_tasks(self) -> None:
        """Close the runner of side tasks, if there is one."""
        if self._side_tasks is not None:
            self._side_tasks.close()
            self._side_tasks = None

    @property
    def _timeout(self) -> timedelta:
        """The longest wait for another rank."""
        return timedelta(seconds=self.timeout_s)

    def _side_task_runner(self) -> SideTasks:
        """The runner of side tasks, created at first use: a CUDA stream, or a thread on a CPU."""
        if self._side_tasks is None:
            self._side_tasks = (
                StreamSideTasks(self.on)
                if self.on.type == "cuda"
                else ThreadSideTasks(name=f"beside-{self.rank}")
            )
        return self._side_tasks

    def in_groups(
        self, task: Task[T], *, device: int, trace: CommunicationRecord | None = None
    ) -> Task[T]:
        """Wrap a task: torch.distributed runs its collectives; only messages are passed on.

        Args:
            device: the device that runs the task.
            trace: receives a record of each request of the task.
        """

        def record(request: TransferRequest) -> None:
            """Add a device's request to the communication record, if there is one."""
            if trace is not None:
                trace.add(device, request)

        def answer_side_request(request: Reduce | GroupExchange) -> Answer:
            """Record and run a side task's collective, on the communicators of side tasks."""
            record(request)
            return self.collective(request, device, beside=True)

        def answer(request: Request) -> Generator[Request, Answer, Answer]:
            """Run a collective, or begin or end a side task; pass messages on."""
            if isinstance(request, Begin):
                return self._side_task_runner().begin(request.task, answer_side_request)
            if isinstance(request, End):
                return self._side_task_runner().end(request.begun)
            record(request)
            return (
                (yield request)
                if isinstance(request, Post | Take)
                else self.collective(request, device)
            )

        return answer_requests(task, answer)

    def collective(
        self, request: Reduce | GroupExchange, device: int, *, beside: bool = False
    ) -> Answer:
        """Run an all-reduce or an exchange of a device group, and return its result.

        `beside`: use the communicators of side tasks.
        """
        if isinstance(request, Reduce):
            return self.reduce(request, beside=beside)
        return self.exchange(request, device, beside=beside)

    def reduce(self, request: Reduce, *, beside: bool = False) -> torch.Tensor:
        """All-reduce a request's tensor over its group; in place only if the request allows it."""
        total = request.tensor.detach()
        if not (request.used_up and total.is_contiguous()):
            total = total.clone(memory_format=torch.contiguous_format)
        if len(request.group) > 1 and total.numel():
            with self._communication_errors(request):
                dist.all_reduce(
                    total,
                    op=OPERATIONS[request.reduction],
                    group=self._group(request.group, beside),
                )
        return total

    def exchange(
        self, request: GroupExchange, device: int, *, beside: bool = False
    ) -> dict[int, torch.Tensor]:
        """Run an exchange as all-gather if it is one, else all-to-all: tensors by sender.

        An all-gather needs tensors of one shape, each sent to all members.
        """
        members = request.group
        dtype = request.dtype or next(
            (tensor.dtype for tensor in request.sends.values()), torch.get_default_dtype()
        )
        if is_all_gather(request, device):
            local_tensor = (
                next(tensor for peer, tensor in request.sends.items() if peer != device)
                .detach()
                .contiguous()
            )
            output = request.into
            output_fits = (
                output is not None
                and output.is_contiguous()
                and output.numel() == len(members) * local_tensor.numel()
                and output.dtype == local_tensor.dtype
            )
            gathered = (
                output.view(len(members), *local_tensor.shape)
                if output is not None and output_fits
                else local_tensor.new_empty((len(members), *local_tensor.shape))
            )
            with self._communication_errors(request):
                _ALL_GATHER(
                    gathered.view(-1), local_tensor.view(-1), group=self._group(members, beside)
                )
            received_by_device = dict(zip(members, gathered.unbind(), strict=True))
        else:
            received_by_device = self._all_to_all(request, device, dtype, beside)
        answer = {peer: received_by_device[peer] for peer in request.receives if peer != device}
        if device in request.receives:
            answer[device] = request.sends[device].clone()
        return answer

    def _all_to_all(
        self, request: GroupExchange, device: int, dtype: torch.dtype, beside: bool
    ) -> dict[int, torch.Tensor]:
        """Exchange tensors with a group's other members by an all-to-all of bytes; by sender."""
        peers = [peer for peer in request.group if peer != device]
        sends = {
            peer: request.sends[peer].detach().reshape(-1)
            for peer in peers
            if peer in request.sends
        }
        send_counts = [sends[peer].numel() if peer in sends else 0 for peer in request.group]
        receive_counts = [
            prod(request.receives[peer]) if peer != device and peer in request.receives else 0
            for peer in request.group
        ]
        sent = (
            torch.cat(list(sends.values()))
            if sends
            else torch.empty(0, dtype=dtype, device=self.on)
        )
        received = torch.empty(sum(receive_counts), dtype=dtype, device=self.on)
        sizes = [[dtype.itemsize * n for n in counts] for counts in (receive_counts, send_counts)]
        with self._communication_errors(request):
            dist.all_to_all_single(
                received.view(torch.uint8),
                sent.view(torch.uint8),
                *sizes,
                group=self._group(request.group, beside),
            )
        parts = dict(zip(request.group, received.split(receive_counts), strict=True))
        return {
            peer: parts[peer].reshape(request.receives[peer])
            for peer in peers
            if peer in request.receives
        }

    @contextmanager
    def _communication_errors(self, request: Reduce | GroupExchange) -> Iterator[None]:
        """Context manager that turns backend errors into `StrategyError` (rule ``run.peer``)."""
        try:
            yield
        except RuntimeError as error:
            raise StrategyError(
                f"rank {self.rank}: {request.key!r} of devices {request.group[:8]}:"
                f" {error_on_one_line(error)}",
                hint="see the other ranks' own errors; resume from the last checkpoint",
                rule="run.peer",
            ) from error

    def _group(self, devices: tuple[int, ...], beside: bool) -> dist.ProcessGroup:
        """Process group (cached) of some devices' ranks; only its members create it."""
        ranks = tuple(self.rank_of_device[device] for device in devices)
        # Groups end with the world that they are of.
        world = dist.group.WORLD
        assert world is not None, "the process group is initialised"
        key = id(world), self.backend, ranks, beside
        if key not in _PROCESS_GROUPS:
            # Only members create the group: other ranks may never make a request of it.
            name = (
                f"shardwright {self.backend}"
                f" {'beside ' if beside else ''}{' '.join(map(str, ranks))}"
            )
            _PROCESS_GROUPS[key] = (
                world,
                named_group(name, ranks, backend=self.backend, timeout=self._timeout),
            )
        return _PROCESS_GROUPS[key][1]

    def work_event(self) -> torch.cuda.Event | None:
        """CUDA event after all work queued by this thread, for a sending thread; None on a CPU.

        The sending thread waits for the event.
        """
        if self.on.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.on))
        return event

    def own_stream(self) -> AbstractContextManager[object]:
        """Context in which this thread works on a new CUDA stream; without effect on a CPU."""
        if self.on.type != "cuda":
            return nullcontext()
        torch.cuda.set_device(self.on)
        return cast("AbstractContextManager[object]", torch.cuda.stream(torch.cuda.Stream(self.on)))

    def send(self, tensor: torch.Tensor, rank: int, ready: torch.cuda.Event | None) -> dist.Work:
        """Begin to send a tensor to a rank after an event; called by one thread for each rank."""
        if ready is not None:
            torch.cuda.current_stream(self.on).wait_event(ready)
            tensor.record_stream(torch.cuda.current_stream(self.on))
        work = dist.isend(tensor, rank, group=self._directions[rank > self.rank])
        assert work is not None, "every rank belongs to the group"
        return work

    def receive(self, tensor: torch.Tensor, rank: int) -> dist.Work:
        """Begin to receive from a rank into `tensor`; called by one thread for each rank."""
        work = dist.irecv(tensor, rank, group=self._directions[rank < self.rank])
        assert work is not None, "every rank belongs to the group"
        return work


def is_all_gather(request: GroupExchange, device: int) -> bool:
    """True if an exchange is an all-gather: tensors of one shape, to and from all members.

    Otherwise tensors differ in size, or some member sends or receives none: an all-to-all.
    """
    peers = set(request.group) - {device}
    sent_shapes = {
        peer: tuple(tensor.shape) for peer, tensor in request.sends.items() if peer != device
    }
    received_shapes = {
        peer: tuple(shape) for peer, shape in request.receives.items() if peer != device
    }
    complete = bool(peers) and sent_shapes.keys() == peers == received_shapes.keys()
    return (
        request.kind == "all_gather"
        and complete
        and len({*sent_shapes.values(), *received_shapes.values()}) == 1
    )


def error_on_one_line(error: RuntimeError) -> str:
    """A backend's error message on one line, without source positions and guessed causes."""
    return re.sub(r"\[/\S*\] |\. This is typically.*", "", " ".join(str(error).split()))
