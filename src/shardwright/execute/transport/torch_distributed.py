"""Transport between devices on the ranks of torch.distributed.

Requests become messages over gloo or, with a backend, its collectives.

A message is a header (sender, receiver, a digest of the key, dtype, bytes) and its bytes. One
thread for each source rank receives messages when they arrive, so that sends never wait, receives
need no agreement on order, and data arrives while the devices compute. Without a backend, tensors
of an accelerator pass through host memory; with a backend (`group_collectives`) only headers do.
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
from shardwright.execute.transport.collectives_as_messages import as_messages
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import Answer, Post, Take, Task
from shardwright.execute.transport.group_collectives import Communicators, error_on_one_line
from shardwright.lazy_dataclass import dataclass

T = TypeVar("T")
MessageAddress = tuple[int, int, int, int]
"""(sender, receiver, two integers of the key's digest)."""

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
"""Minimum seconds that ranks have to connect, also where `timeout_s` is shorter: ranks start at
different times."""
MESSAGE, GOODBYE = 1, 0


@dataclass(frozen=True, slots=True)
class _ReceivedMessage:
    """Format and bytes of a received message, and the event to wait for before reading them.

    `arrived`: the event that a stream must wait for; None = the bytes have arrived.
    """

    dtype: torch.dtype
    octets: torch.Tensor
    arrived: torch.cuda.Event | None = None


@dataclass(frozen=True, slots=True)
class _SentMessage:
    """A message being sent, kept until it has left.

    `work` None: the backend begins to send it after the event `ready`.
    """

    tensor: torch.Tensor
    work: dist.Work | None = None
    ready: torch.cuda.Event | None = None


@dataclass(slots=True)
class _Inbox:
    """Received messages, and the state of the ranks that send them.

    `failed`: why a rank can no longer be received from. `left`: ranks that have ended. `changed`:
    notified at all changes.
    """

    messages: dict[MessageAddress, deque[_ReceivedMessage]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    changed: Condition = field(default_factory=Condition)

    def put(self, place: MessageAddress, parcel: _ReceivedMessage) -> None:
        """Add a received message."""
        with self.changed:
            self.messages.setdefault(place, deque()).append(parcel)
            self.changed.notify_all()

    def fail(self, rank: int, why: str) -> None:
        """Record the first reason why a rank can no longer be received from."""
        with self.changed:
            self.failed.setdefault(rank, why)
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        """Record that a rank has ended in order."""
        with self.changed:
            self.left.add(rank)
            self.changed.notify_all()


class DistributedTransport:
    """Transport that runs this rank's device tasks and sends their messages to other ranks.

    All ranks enter and leave it together.

    Args:
        rank_of_device: the rank of each device of the plan; several devices may share a rank.
        timeout_s: longest wait for a message in seconds.
        on: this rank's torch device, which holds the answers.
        backend: backend of torch.distributed, ``nccl`` or ``gloo``, whose communicators carry
            tensors and collectives, with one device on each rank; empty = messages through the
            host.

    Raises:
        StrategyError: run.world if the process group has fewer ranks than the devices need, or a
        backend's ranks have several devices.

    Leaves out: a bound on the messages that wait to be received.
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
        # One connection for each direction between two ranks: gloo's receiver announces that it is
        # ready, which would otherwise wait behind the tensors that it sends.
        self._groups = self._connect() if ranks > 1 else []
        self._inbox = _Inbox()
        self._listeners: dict[int, Thread] = {}
        self._pending: dict[Thread, dist.Work] = {}
        self._sent: dict[int, tuple[Thread, SimpleQueue[_SentMessage | None]]] = {}

    def _connect(self) -> list[dist.ProcessGroup]:
        """Create the process groups of both message directions, and wait for all ranks."""
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
                f"rank {self.rank}: not all ranks connected: {error_on_one_line(error)}",
                hint="see the other ranks' own errors, and that they reach each other's host",
                rule="run.peer",
            ) from error

    def run_tasks(
        self, tasks: Mapping[int, Task[T]], *, trace: CommunicationRecord | None = None
    ) -> dict[int, T]:
        """Run the tasks of this rank's devices to their end, and return their results by device.

        All ranks call it, each with its own devices.

        Args:
            tasks: the task of each device of this rank.
            trace: receives a record of each request of these devices.

        Raises:
            StrategyError: run.peer if another rank has ended; run.timeout if a message does not
            arrive in time; run.deadlock if devices of this rank wait only for each other;
            run.mismatch if a message has an unexpected shape or dtype; run.place if a task's device
            does not run on this rank. Errors of a task pass, with its device in a note.
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
        """Wait until all sent messages have arrived, and disconnect; all ranks must call it.

        Raises:
            StrategyError: run.peer if a rank has ended or does not receive its messages;
            run.untaken if a message that arrived was not taken.
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
        """Close all connections without waiting for other ranks, so that they notice."""
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
        """(rank, thread) of all threads that send or receive."""
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
        """Run a task to its next `Take`, and send its messages on the way."""
        while True:
            request = task.send(answer)
            if isinstance(request, Take):
                self._listen(request.source)
                return request
            assert isinstance(request, Post), "collectives have become messages"
            self._post(device, request)
            answer = None

    def _await(self, waiting: Mapping[int, Take]) -> list[tuple[int, Answer]]:
        """Wait for messages; (device, message) of each device whose message has arrived."""
        places = {
            device: (take.source, device, *_key_digest(take.key))
            for device, take in waiting.items()
        }
        inbox = self._inbox

        def can_continue() -> bool:
            """True if a message has arrived, or a source rank has failed or ended."""
            over = inbox.failed or any(
                self.rank_of_device[take.source] in inbox.left for take in waiting.values()
            )
            return bool(over) or any(inbox.messages.get(place) for place in places.values())

        with inbox.changed:
            if not can_continue() and all(
                self.rank_of_device[take.source] == self.rank for take in waiting.values()
            ):
                raise StrategyError(
                    f"every device waits: {_waiting_devices(waiting)}",
                    hint="orders of devices must agree",
                    rule="run.deadlock",
                )
            if not inbox.changed.wait_for(can_continue, self.timeout_s):
                raise StrategyError(
                    f"rank {self.rank}: no message in {self.timeout_s:g} s:"
                    f" {_waiting_devices(waiting)}",
                    hint="another rank hangs, or orders of devices do not agree",
                    rule="run.timeout",
                )
            received = {
                device: inbox.messages[place].popleft()
                for device, place in places.items()
                if inbox.messages.get(place)
            }
            for place in [place for place, messages in inbox.messages.items() if not messages]:
                del inbox.messages[place]
        if not received:
            for take in waiting.values():
                if self.rank_of_device[take.source] in inbox.left:
                    inbox.fail(
                        self.rank_of_device[take.source],
                        f"it ended before {_waiting_devices(waiting)}",
                    )
            self._raise_failure()
        return [
            (device, self._message_tensor(parcel, waiting[device], device))
            for device, parcel in sorted(received.items())
        ]

    def _message_tensor(self, parcel: _ReceivedMessage, take: Take, device: int) -> torch.Tensor:
        """The tensor of a received message, checked against the request, on this rank's device."""
        tensor, dtype = parcel.octets.view(parcel.dtype), parcel.dtype
        expected_dtype = take.dtype or dtype
        if tensor.numel() != prod(take.shape) or dtype != expected_dtype:
            raise StrategyError(
                f"{take.key!r} from device {take.source} to {device}: {tensor.numel()} of {dtype}"
                f" came, {take.shape} of {expected_dtype} expected",
                hint="both sides derive shapes from the same layouts",
                rule="run.mismatch",
            )
        if parcel.arrived is not None:
            stream = torch.cuda.current_stream(self.on)
            stream.wait_event(parcel.arrived)
            parcel.octets.record_stream(stream)
        return tensor.reshape(take.shape).to(self.on)

    def _raise_failure(self) -> None:
        """Raise `StrategyError` (rule ``run.peer``) if a rank can no longer be received from."""
        for rank, why in sorted(self._inbox.failed.items()):
            devices = ", ".join(
                str(device)
                for device, device_rank in sorted(self.rank_of_device.items())
                if device_rank == rank
            )
            raise StrategyError(
                f"rank {rank} (devices {devices}) is gone: {why}",
                hint="see that rank's own error; resume from the last checkpoint",
                rule="run.peer",
            )

    def _post(self, device: int, request: Post) -> None:
        """Send a device's message to the rank of its receiver, or put it into this rank's inbox."""
        tensor = request.tensor.detach()
        place = (device, request.to, *_key_digest(request.key))
        rank = self.rank_of_device[request.to]
        if rank == self.rank:
            self._inbox.put(
                place, _ReceivedMessage(tensor.dtype, tensor.reshape(-1).clone().view(torch.uint8))
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
            self._sent[rank][1].put(_SentMessage(octets, ready=self._communicators.work_event()))

    def _send(self, rank: int, tensor: torch.Tensor) -> None:
        """Begin to send a tensor to a rank; the tensor is kept until it has left."""
        if rank not in self._sent:
            queue: SimpleQueue[_SentMessage | None] = SimpleQueue()
            thread = Thread(
                target=self._send_queued, args=(rank, queue), daemon=True, name=f"sent-to-{rank}"
            )
            self._sent[rank] = thread, queue
            thread.start()
        try:
            work = dist.isend(tensor, rank, group=self._groups[rank > self.rank])
        except RuntimeError as error:
            self._inbox.fail(rank, error_on_one_line(error))
            self._raise_failure()
        else:
            assert work is not None, "every rank belongs to the group"
            self._sent[rank][1].put(_SentMessage(tensor, work))

    def _send_queued(self, rank: int, queue: SimpleQueue[_SentMessage | None]) -> None:
        """Work of a sending thread: wait for queued messages to leave, or begin to send them."""
        try:
            with self._own_stream():
                while (message := queue.get()) is not None:
                    if message.work is not None:
                        self._wait(message.work)
                    elif self._communicators is not None:
                        self._wait_for_backend(
                            self._communicators.send(message.tensor, rank, message.ready)
                        )
        except RuntimeError as error:
            self._inbox.fail(rank, error_on_one_line(error))

    def _listen(self, device: int) -> None:
        """Start the thread that receives messages from a device's rank, unless it runs."""
        rank = self.rank_of_device[device]
        if rank == self.rank or rank in self._listeners:
            return
        self._listeners[rank] = Thread(
            target=self._receive_messages, args=(rank,), daemon=True, name=f"hears-{rank}"
        )
        self._listeners[rank].start()

    def _receive_messages(self, rank: int) -> None:
        """Work of a receiving thread: put a rank's messages into the inbox until the rank ends."""
        try:
            with self._own_stream():
                while True:
                    kind, source, target, first, second, dtype, size = self._receive(
                        rank, 7, torch.int64
                    ).tolist()
                    if kind == GOODBYE:
                        return self._inbox.leave(rank)
                    self._inbox.put(
                        (source, target, first, second),
                        self._message_body(rank, size, DTYPES[dtype]),
                    )
        except RuntimeError as error:
            self._inbox.fail(rank, error_on_one_line(error))

    def _message_body(self, rank: int, size: int, dtype: torch.dtype) -> _ReceivedMessage:
        """Receive the bytes that follow a message's header."""
        if self._communicators is None:
            return _ReceivedMessage(dtype, self._receive(rank, size, torch.uint8))
        octets = torch.empty(size, dtype=torch.uint8, device=self.on)
        if size:
            self._wait_for_backend(self._communicators.receive(octets, rank))
        return _ReceivedMessage(dtype, octets, self._communicators.work_event())

    def _own_stream(self) -> AbstractContextManager[object]:
        """Context manager with a CUDA stream of this thread; no stream without a backend."""
        return nullcontext() if self._communicators is None else self._communicators.own_stream()

    def _wait_for_backend(self, work: dist.Work) -> None:
        """Wait for a backend's operation: this thread's CUDA stream waits, or the host."""
        if self.on.type == "cuda":
            work.wait()
        else:
            self._wait(work)

    def _receive(self, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Receive a tensor of known size from a rank over gloo."""
        tensor = torch.empty(size, dtype=dtype)
        if size:
            work = dist.irecv(tensor, rank, group=self._groups[rank < self.rank])
            assert work is not None, "every rank belongs to the group"
            self._wait(work)
        return tensor

    def _wait(self, work: dist.Work) -> None:
        """Wait for an operation without a time limit; `abandon` can end the wait."""
        self._pending[current_thread()] = work
        work.wait(FOREVER)


def _waiting_devices(waiting: Mapping[int, Take]) -> str:
    """List of waiting devices and their messages, for error texts; at most eight."""
    return "; ".join(
        f"device {device} for message {take.key!r} from device {take.source}"
        for device, take in sorted(waiting.items())[:8]
    )


def _key_digest(key: Hashable) -> tuple[int, int]:
    """Two 64-bit integers of a key's BLAKE2 digest."""
    octets = blake2b(repr(key).encode(), digest_size=16).digest()
    return int.from_bytes(octets[:8], "big", signed=True), int.from_bytes(
        octets[8:], "big", signed=True
    )
