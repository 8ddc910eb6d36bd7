"""Connections of this rank to the others: threads that send and receive messages over gloo.

A message is a header (sender, receiver, a digest of the key, dtype, bytes) and its bytes. One
thread for each source rank receives messages when they arrive, so that sends never wait, receives
need no agreement on order, and data arrives while the devices compute. Without a backend, tensors
of an accelerator pass through host memory; with a backend (`torch_distributed_collectives`) only
headers do.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import timedelta
from queue import SimpleQueue
from threading import Thread, current_thread

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.transport.message_inbox import Inbox, MessageAddress, ReceivedMessage
from shardwright.execute.transport.torch_distributed_collectives import (
    Communicators,
    error_on_one_line,
)
from shardwright.lazily_compiled_dataclass import dataclass

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
class _SentMessage:
    """A message being sent, kept until it has left.

    `work` None: the backend begins to send it after the event `ready`.
    """

    tensor: torch.Tensor
    work: dist.Work | None = None
    ready: torch.cuda.Event | None = None


class RankConnections:
    """Connections of this rank to the others, with a thread for each rank and direction.

    Args:
        inbox: receives the messages of other ranks.
        ranks: number of ranks.
        timeout_s: longest wait for another rank in seconds.
        on: this rank's torch device.
        communicators: carry the tensors of messages; None: gloo carries them, through the host.
    """

    def __init__(
        self,
        inbox: Inbox,
        *,
        rank: int,
        ranks: int,
        timeout_s: float,
        on: torch.device,
        communicators: Communicators | None,
    ) -> None:
        self._inbox = inbox
        self.rank = rank
        self.timeout_s = timeout_s
        self.on = on
        self.communicators = communicators
        # One connection for each direction between two ranks: gloo's receiver announces that it is
        # ready, which would otherwise wait behind the tensors that it sends.
        self._groups = self._connect() if ranks > 1 else []
        self._listeners: dict[int, Thread] = {}
        self._pending: dict[Thread, dist.Work] = {}
        self._sent: dict[int, tuple[Thread, SimpleQueue[_SentMessage | None]]] = {}

    def _connect(self) -> list[dist.ProcessGroup]:
        """Create two gloo groups of all ranks, one per message direction, and wait for all."""
        limit = max(self.timeout_s, CONNECTING_S)
        try:
            groups = [
                dist.new_group(backend="gloo", timeout=timedelta(seconds=limit)) for _ in range(2)
            ]
            if self.communicators is not None:
                self.communicators.connect()
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

    def close(self) -> None:
        """Wait until all sent messages have arrived, and disconnect; all ranks must call it.

        Raises:
            StrategyError: run.peer if a rank has ended or does not receive its messages.
        """
        try:
            self._inbox.raise_failure()
            for rank, (_, queue) in self._sent.items():
                self._send_tensor(rank, torch.tensor([GOODBYE, 0, 0, 0, 0, 0, 0]))
                queue.put(None)
            for rank, thread in self._threads():
                thread.join(self.timeout_s)
                if thread.is_alive():
                    self._inbox.fail(rank, f"still silent after {self.timeout_s:g} s")
            if self.communicators is not None and not self._inbox.failed:
                self.communicators.close()
                self.communicators = None
        finally:
            self.abandon()
        self._inbox.raise_failure()

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
        if self.communicators is not None:
            self.communicators.abandon()
        while self._groups:
            dist.destroy_process_group(self._groups.pop())

    def _threads(self) -> list[tuple[int, Thread]]:
        """(rank, thread) of all threads that send or receive."""
        return [(rank, thread) for rank, (thread, _) in self._sent.items()] + list(
            self._listeners.items()
        )

    def send(self, rank: int, address: MessageAddress, tensor: torch.Tensor) -> None:
        """Copy a tensor, and begin to send the copy to another rank as the message of `address`."""
        octets = torch.empty(
            tensor.numel(),
            dtype=tensor.dtype,
            device="cpu" if self.communicators is None else self.on,
        )
        octets.copy_(tensor.reshape(-1))
        octets = octets.view(torch.uint8)
        self._send_tensor(
            rank, torch.tensor([MESSAGE, *address, DTYPES.index(tensor.dtype), octets.numel()])
        )
        if octets.numel() and self.communicators is None:
            self._send_tensor(rank, octets)
        elif octets.numel():
            assert self.communicators is not None
            self._sent[rank][1].put(_SentMessage(octets, ready=self.communicators.work_event()))

    def _send_tensor(self, rank: int, tensor: torch.Tensor) -> None:
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
            self._inbox.raise_failure()
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
                    elif self.communicators is not None:
                        self._wait_for_backend(
                            self.communicators.send(message.tensor, rank, message.ready)
                        )
        except RuntimeError as error:
            self._inbox.fail(rank, error_on_one_line(error))

    def listen(self, rank: int) -> None:
        """Start the thread that receives messages from another rank, unless it runs."""
        if rank in self._listeners:
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

    def _message_body(self, rank: int, size: int, dtype: torch.dtype) -> ReceivedMessage:
        """Receive a message's body of `size` bytes, by the GPU backend if there is one."""
        if self.communicators is None:
            return ReceivedMessage(dtype, self._receive(rank, size, torch.uint8))
        octets = torch.empty(size, dtype=torch.uint8, device=self.on)
        if size:
            self._wait_for_backend(self.communicators.receive(octets, rank))
        return ReceivedMessage(dtype, octets, self.communicators.work_event())

    def _own_stream(self) -> AbstractContextManager[object]:
        """Context manager with a CUDA stream of this thread; no stream without a backend."""
        return nullcontext() if self.communicators is None else self.communicators.own_stream()

    def _wait_for_backend(self, work: dist.Work) -> None:
        """Wait for a backend's operation: this thread's CUDA stream waits, or the host."""
        if self.on.type == "cuda":
            work.wait()
        else:
            self._wait(work)

    def _receive(self, rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Receive a 1-D tensor of `size` elements from a rank over gloo, and wait for it."""
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
