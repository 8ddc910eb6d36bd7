"""Transport between devices on the ranks of torch.distributed.

Requests become messages over gloo (`gloo_message_threads_between_ranks`) or, with a backend, its
collectives (`torch_distributed_collectives`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from hashlib import blake2b
from math import prod
from types import TracebackType
from typing import Self, TypeVar

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.transport.collectives_as_messages import as_messages
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import Answer, Post, Take, Task
from shardwright.execute.transport.gloo_message_threads_between_ranks import RankConnections
from shardwright.execute.transport.message_inbox import Inbox, ReceivedMessage
from shardwright.execute.transport.torch_distributed_collectives import Communicators

T = TypeVar("T")


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
        communicators = (
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
        self._inbox = Inbox(rank_of_device=self.rank_of_device)
        self._connections = RankConnections(
            self._inbox,
            rank=self.rank,
            ranks=ranks,
            timeout_s=timeout_s,
            on=self.on,
            communicators=communicators,
        )

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
        communicators = self._connections.communicators
        messages = as_messages if communicators is None else communicators.in_groups
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
        """Wait for sent messages and disconnect; raise if one was never taken. All ranks call it.

        Raises:
            StrategyError: run.peer if a rank has ended or does not receive its messages;
            run.untaken if a message that arrived was not taken.
        """
        self._connections.close()
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
        self._connections.abandon()

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
        """Run a task to its next `Take`, sending messages on the way; StopIteration at its end."""
        while True:
            request = task.send(answer)
            if isinstance(request, Take):
                source_rank = self.rank_of_device[request.source]
                if source_rank != self.rank:
                    self._connections.listen(source_rank)
                return request
            assert isinstance(request, Post), "collectives have become messages"
            self._post(device, request)
            answer = None

    def _await(self, waiting: Mapping[int, Take]) -> list[tuple[int, Answer]]:
        """Wait for at least one message; (device, message) of each device whose message arrived."""
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
            self._inbox.raise_failure()
        return [
            (device, self._message_tensor(message, waiting[device], device))
            for device, message in sorted(received.items())
        ]

    def _message_tensor(self, message: ReceivedMessage, take: Take, device: int) -> torch.Tensor:
        """The tensor of a received message, checked against the request, on this rank's device."""
        tensor, dtype = message.octets.view(message.dtype), message.dtype
        expected_dtype = take.dtype or dtype
        if tensor.numel() != prod(take.shape) or dtype != expected_dtype:
            raise StrategyError(
                f"{take.key!r} from device {take.source} to {device}: {tensor.numel()} of {dtype}"
                f" came, {take.shape} of {expected_dtype} expected",
                hint="both sides derive shapes from the same layouts",
                rule="run.mismatch",
            )
        if message.arrived is not None:
            stream = torch.cuda.current_stream(self.on)
            stream.wait_event(message.arrived)
            message.octets.record_stream(stream)
        return tensor.reshape(take.shape).to(self.on)

    def _post(self, device: int, request: Post) -> None:
        """Send a device's message to the rank of its receiver, or put it into this rank's inbox."""
        tensor = request.tensor.detach()
        place = (device, request.to, *_key_digest(request.key))
        rank = self.rank_of_device[request.to]
        if rank == self.rank:
            self._inbox.put(
                place, ReceivedMessage(tensor.dtype, tensor.reshape(-1).clone().view(torch.uint8))
            )
        else:
            self._connections.send(rank, place, tensor)


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
