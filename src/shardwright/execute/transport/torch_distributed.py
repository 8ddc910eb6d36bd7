"""Devices on the ranks of torch.distributed: what tasks ask goes as messages over gloo, or, with a
backend, as its collectives.

A message is a header (who, to whom, a digest of the key, dtype, bytes) and its bytes. A thread for
each rank that is listened to takes messages as they come, so posts never wait, receives need no
agreement on order, and data arrives while the devices compute. Without a backend tensors of an
accelerator pass through host memory; with one (`communicators`) only headers do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import field
from datetime import timedelta
from hashlib import blake2b
from math import prod
from queue import SimpleQueue
from threading import Condition, Thread, current_thread
from types import TracebackType
from typing import Self, TypeVar

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.transport.communication_record import Trace
from shardwright.execute.transport.group_collectives import Communicators, one_line
from shardwright.execute.transport.group_messages import as_messages
from shardwright.execute.transport.requests import Answer, Post, Take, Task
from shardwright.lazy_dataclass import dataclass

T = TypeVar("T")
Place = tuple[int, int, int, int]
"""(from, to, digest of the key in two words)."""

DTYPES = (
    *(
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
FOREVER = timedelta(days=365)
CONNECTING_S = 60.0
"""Least seconds that ranks have to connect, however short a wait for a message is to be: they start
at different times."""
MESSAGE, GOODBYE = 1, 0


@dataclass(frozen=True, slots=True)
class _Parcel:
    """The bytes of a received message. there: the event that a stream waits for; None = it is
    there.
    """

    dtype: torch.dtype
    octets: torch.Tensor
    there: torch.cuda.Event | None = None


@dataclass(frozen=True, slots=True)
class _Going:
    """A message that is being sent, kept until it has gone. work: None = it is still to be begun,
    behind `ready`, on the backend.
    """

    tensor: torch.Tensor
    work: dist.Work | None = None
    ready: torch.cuda.Event | None = None


@dataclass(slots=True)
class _Inbox:
    """Received messages. failed: why a rank is no longer heard. left: ranks that said goodbye.
    `changed` tells of all changes.
    """

    messages: dict[Place, deque[_Parcel]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    changed: Condition = field(default_factory=Condition)

    def put(self, place: Place, parcel: _Parcel) -> None:
        with self.changed:
            self.messages.setdefault(place, deque()).append(parcel)
            self.changed.notify_all()

    def fail(self, rank: int, why: str) -> None:
        with self.changed:
            self.failed.setdefault(rank, why)
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()


class Network:
    """Messages between the devices of all ranks; a context manager, to be entered and left by all
    ranks together.

    Args:
        rank_of_device: where each device of the plan runs; several may share a rank. timeout_s:
        longest wait for a message in seconds. on: where answers are, on this rank. backend: of
        torch.distributed, ``nccl`` or ``gloo``, whose communicators carry tensors and answer
        requests of groups, with one device a rank; empty = all goes as messages, by the host.

    Raises:
        StrategyError: run.world if the process group has fewer ranks than the devices need, or a
        backend's ranks have several devices.

    Leaves out: a bound on what waits to be taken: it is what other ranks have posted.
    """

    def __init__(
        self,
        rank_of_device: Mapping[int, int],
        *,
        timeout_s: float = 300.0,
        on: torch.device | str = "cpu",
        backend: str = "",
    ) -> None:
        started = dist.is_available() and dist.is_initialized()
        self.rank: int = dist.get_rank() if started else 0
        ranks: int = dist.get_world_size() if started else 1
        self.rank_of_device = dict(rank_of_device)
        self.timeout_s = timeout_s
        self.on = torch.device(on)
        needed = max(self.rank_of_device.values(), default=0) + 1
        if needed > ranks:
            raise StrategyError(
                f"the plan's devices need {needed} ranks, {ranks} run",
                hint=f"start {needed} ranks",
                rule="run.world",
            )
        if backend and len(set(self.rank_of_device.values())) < len(self.rank_of_device):
            raise StrategyError(
                "devices of a rank cannot meet in a communicator",
                hint="one rank a device",
                rule="run.world",
            )
        self._communicators = (
            Communicators(
                backend=backend,
                on=self.on,
                rank_of_device=self.rank_of_device,
                timeout_s=timeout_s,
                rank=self.rank,
            )
            if backend
            else None
        )
        # A connection for each direction between two ranks: gloo's receiver says that it is ready,
        # which else waits behind what it sends.
        self._groups = self._connected() if ranks > 1 else []
        self._inbox = _Inbox()
        self._listeners: dict[int, Thread] = {}
        self._pending: dict[Thread, dist.Work] = {}
        self._sent: dict[int, tuple[Thread, SimpleQueue[_Going | None]]] = {}

    def _connected(self) -> list[dist.ProcessGroup]:
        limit = max(self.timeout_s, CONNECTING_S)
        try:
            groups = [
                dist.new_group(backend="gloo", timeout=timedelta(seconds=limit)) for _ in range(2)
            ]
            if self._communicators is not None:
                self._communicators.connect()
            # A rank that has connected may have nothing to send and leave: others that still
            # connect would take its end for a failure.
            dist.barrier(group=groups[-1])
            return groups
        except RuntimeError as error:
            raise StrategyError(
                f"rank {self.rank}: not all ranks connected: {one_line(error)}",
                hint="see the other ranks' own errors, and that they reach each other's host",
                rule="run.peer",
            ) from error

    def drive(self, tasks: Mapping[int, Task[T]], *, trace: Trace | None = None) -> dict[int, T]:
        """The results of the tasks of this rank's devices. All ranks call it, each with its own
        devices.

        Args:
            tasks: by device.
            trace: gets a record of each request of these devices.

        Raises:
            StrategyError: run.peer if another rank is gone; run.timeout if a message does not come
                in time; run.deadlock if devices of this rank wait only for each other; run.mismatch
                if a message has not the shape or dtype that is expected; run.place if a task's
                device is not of this rank. Errors of a task pass, with its device in a note.
        """
        strangers = [device for device in tasks if self.rank_of_device.get(device) != self.rank]
        if strangers:
            raise StrategyError(
                f"device {strangers[0]} does not run on rank {self.rank}",
                hint="give each rank its devices",
                rule="run.place",
            )
        messages = as_messages if self._communicators is None else self._communicators.in_groups
        running = {
            device: messages(tasks[device], device=device, trace=trace) for device in sorted(tasks)
        }
        returned: dict[int, T] = {}
        waiting: dict[int, Take] = {}
        ready: list[tuple[int, Answer]] = [(device, None) for device in running]
        try:
            while running:
                for device, answer in ready:
                    try:
                        waiting[device] = self._advance(device, running[device], answer)
                    except StopIteration as end:
                        returned[device] = end.value
                        del running[device]
                    except Exception as error:
                        error.add_note(f"on device {device}, rank {self.rank}")
                        raise
                ready = self._await(waiting) if running else []
                for device, _ in ready:
                    del waiting[device]
        finally:
            for task in running.values():
                task.close()
        return returned

    def close(self) -> None:
        """Wait until all that was posted has come, and say goodbye. All ranks call it.

        Raises:
            StrategyError: run.peer if a rank is gone or does not take what was posted to it;
                run.untaken if a message that came was not taken.
        """
        try:
            self._raise_failure()
            for rank, (_, queue) in self._sent.items():
                self._send(rank, torch.tensor([GOODBYE, 0, 0, 0, 0, 0, 0]))
                queue.put(None)
            for rank, thread in self._threads():
                thread.join(self.timeout_s)
                if thread.is_alive():
                    self._inbox.fail(rank, f"still silent after {self.timeout_s:g} s")
            if self._communicators is not None and not self._inbox.failed:
                self._communicators.close()
                self._communicators = None
        finally:
            self.abandon()
        self._raise_failure()
        left = [place for place, messages in self._inbox.messages.items() if messages]
        if left:
            raise StrategyError(
                f"{len(left)} messages are never taken, the first from device {left[0][0]} to"
                f" {left[0][1]}",
                hint="each post has its take",
                rule="run.untaken",
            )

    def abandon(self) -> None:
        """Stop without waiting for other ranks: connections are closed,
        so that they learn of it.
        """
        for _, queue in self._sent.values():
            queue.put(None)
        for _, thread in self._threads():
            for _ in range(100):
                if not thread.is_alive():
                    break
                # A wait that times out closes the connection, which ends the thread's own wait;
                # gloo has no other way.
                with suppress(RuntimeError, KeyError):
                    self._pending[thread].wait(timedelta(milliseconds=1))
                thread.join(0.05)
        self._sent.clear()
        self._listeners.clear()
        if self._communicators is not None:
            self._communicators.abandon()
        while self._groups:
            dist.destroy_process_group(self._groups.pop())

    def _threads(self) -> list[tuple[int, Thread]]:
        return [(rank, thread) for rank, (thread, _) in self._sent.items()] + list(
            self._listeners.items()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()

    def _advance(self, device: int, task: Task[T], answer: Answer) -> Take:
        """The task goes on to its next `Take`."""
        while True:
            request = task.send(answer)
            if isinstance(request, Take):
                self._listen(request.source)
                return request
            assert isinstance(request, Post), "groups are messages here"
            self._post(device, request)
            answer = None

    def _await(self, waiting: Mapping[int, Take]) -> list[tuple[int, Answer]]:
        """Devices whose message has come, with the message."""
        places = {
            device: (take.source, device, *_digest(take.key)) for device, take in waiting.items()
        }
        inbox = self._inbox

        def come() -> bool:
            over = inbox.failed or any(
                self.rank_of_device[take.source] in inbox.left for take in waiting.values()
            )
            return bool(over) or any(inbox.messages.get(place) for place in places.values())

        with inbox.changed:
            if not come() and all(
                self.rank_of_device[take.source] == self.rank for take in waiting.values()
            ):
                raise StrategyError(
                    f"nobody can go on: {_waits(waiting)}",
                    hint="orders of devices must agree",
                    rule="run.deadlock",
                )
            if not inbox.changed.wait_for(come, self.timeout_s):
                raise StrategyError(
                    f"rank {self.rank}: nothing came in {self.timeout_s:g} s: {_waits(waiting)}",
                    hint="another rank hangs, or orders of devices do not agree",
                    rule="run.timeout",
                )
            found = {
                device: inbox.messages[place].popleft()
                for device, place in places.items()
                if inbox.messages.get(place)
            }
            for place in [place for place, messages in inbox.messages.items() if not messages]:
                del inbox.messages[place]
        if not found:
            for take in waiting.values():
                if self.rank_of_device[take.source] in inbox.left:
                    inbox.fail(
                        self.rank_of_device[take.source], f"it ended before {_waits(waiting)}"
                    )
            self._raise_failure()
        return [
            (device, self._opened(parcel, waiting[device], device))
            for device, parcel in sorted(found.items())
        ]

    def _opened(self, parcel: _Parcel, take: Take, device: int) -> torch.Tensor:
        tensor, dtype = parcel.octets.view(parcel.dtype), parcel.dtype
        wanted = take.dtype or dtype
        if tensor.numel() != prod(take.shape) or dtype != wanted:
            raise StrategyError(
                f"{take.key!r} from device {take.source} to {device}: {tensor.numel()} of {dtype}"
                f" came, {take.shape} of {wanted} expected",
                hint="both sides derive shapes from the same layouts",
                rule="run.mismatch",
            )
        if parcel.there is not None:
            here = torch.cuda.current_stream(self.on)
            here.wait_event(parcel.there)
            parcel.octets.record_stream(here)
        return tensor.reshape(take.shape).to(self.on)

    def _raise_failure(self) -> None:
        for rank, why in sorted(self._inbox.failed.items()):
            devices = ", ".join(
                str(device)
                for device, other in sorted(self.rank_of_device.items())
                if other == rank
            )
            raise StrategyError(
                f"rank {rank} (devices {devices}) is gone: {why}",
                hint="see that rank's own error; resume from the last checkpoint",
                rule="run.peer",
            )

    def _post(self, device: int, request: Post) -> None:
        tensor = request.tensor.detach()
        place = (device, request.to, *_digest(request.key))
        rank = self.rank_of_device[request.to]
        if rank == self.rank:
            self._inbox.put(
                place, _Parcel(tensor.dtype, tensor.reshape(-1).clone().view(torch.uint8))
            )
            return
        octets = torch.empty(
            tensor.numel(),
            dtype=tensor.dtype,
            device="cpu" if self._communicators is None else self.on,
        )
        octets.copy_(tensor.reshape(-1))
        octets = octets.view(torch.uint8)
        self._send(
            rank,
            torch.tensor(
                [MESSAGE, *place[:2], *place[2:], DTYPES.index(tensor.dtype), octets.numel()]
            ),
        )
        if octets.numel() and self._communicators is None:
            self._send(rank, octets)
        elif octets.numel():
            assert self._communicators is not None
            self._sent[rank][1].put(_Going(octets, ready=self._communicators.ready()))

    def _send(self, rank: int, tensor: torch.Tensor) -> None:
        """Begin to send; the tensor is kept until it has gone."""
        if rank not in self._sent:
            queue: SimpleQueue[_Going | None] = SimpleQueue()
            thread = Thread(
                target=self._keep, args=(rank, queue), daemon=True, name=f"sent-to-{rank}"
            )
            self._sent[rank] = thread, queue
            thread.start()
        try:
            work = dist.isend(tensor, rank, group=self._groups[rank > self.rank])
        except RuntimeError as error:
            self._inbox.fail(rank, one_line(error))
            self._raise_failure()
        else:
            assert work is not None, "every rank is of the group"
            self._sent[rank][1].put(_Going(tensor, work))

    def _keep(self, rank: int, queue: SimpleQueue[_Going | None]) -> None:
        try:
            with self._aside():
                while (going := queue.get()) is not None:
                    if going.work is not None:
                        self._wait(going.work)
                    elif self._communicators is not None:
                        self._settle(self._communicators.send(going.tensor, rank, going.ready))
        except RuntimeError as error:
            self._inbox.fail(rank, one_line(error))

    def _listen(self, device: int) -> None:
        """Take what comes from a device's rank from now on."""
        rank = self.rank_of_device[device]
        if rank == self.rank or rank in self._listeners:
            return
        self._listeners[rank] = Thread(
            target=self._hear, args=(rank,), daemon=True, name=f"hears-{rank}"
        )
        self._listeners[rank].start()

    def _hear(self, rank: int) -> None:
        try:
            with self._aside():
                while True:
                    kind, source, target, first, second, dtype, size = self._receive(
                        rank, 7, torch.int64
                    ).tolist()
                    if kind == GOODBYE:
                        return self._inbox.leave(rank)
                    self._inbox.put(
                        (source, target, first, second), self._parcel(rank, size, DTYPES[dtype])
                    )
        except RuntimeError as error:
            self._inbox.fail(rank, one_line(error))

    def _parcel(self, rank: int, size: int, dtype: torch.dtype) -> _Parcel:
        """The message that follows a header."""
        if self._communicators is None:
            return _Parcel(dtype, self._receive(rank, size, torch.uint8))
        octets = torch.empty(size, dtype=torch.uint8, device=self.on)
        if size:
            self._settle(self._communicators.receive(octets, rank))
        return _Parcel(dtype, octets, self._communicators.ready())

    def _aside(self) -> AbstractContextManager[object]:
        return nullcontext() if self._communicators is None else self._communicators.aside()

    def _settle(self, work: dist.Work) -> None:
        """Wait for what a backend does: this thread's stream does where there is one."""
        if self.on.type == "cuda":
            work.wait()
        else:
            self._wait(work)

    def _receive(self, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty(size, dtype=dtype)
        if size:
            work = dist.irecv(tensor, rank, group=self._groups[rank < self.rank])
            assert work is not None, "every rank is of the group"
            self._wait(work)
        return tensor

    def _wait(self, work: dist.Work) -> None:
        self._pending[current_thread()] = work
        work.wait(FOREVER)


def _waits(waiting: Mapping[int, Take]) -> str:
    return "; ".join(
        f"device {device} for message {take.key!r} from device {take.source}"
        for device, take in sorted(waiting.items())[:8]
    )


def _digest(key: Hashable) -> tuple[int, int]:
    octets = blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(octets[:8], "big", signed=True), int.from_bytes(
        octets[8:], "big", signed=True
    )
