"""Messages that this rank has received, and the ranks that can send no more."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from threading import Condition

import torch

from shardwright.errors import StrategyError
from shardwright.lazily_compiled_dataclass import dataclass

MessageAddress = tuple[int, int, int, int]
"""(sender, receiver, two integers of the key's digest)."""


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """Format and bytes of a received message, and the event to wait for before reading them.

    `arrived`: the event that a stream must wait for; None = the bytes have arrived.
    """

    dtype: torch.dtype
    octets: torch.Tensor
    arrived: torch.cuda.Event | None = None


@dataclass(slots=True)
class Inbox:
    """Received messages, and the state of the ranks that send them.

    `failed`: why a rank can no longer be received from. `left`: ranks that have ended. `changed`:
    notified at all changes.
    """

    rank_of_device: Mapping[int, int]
    messages: dict[MessageAddress, deque[ReceivedMessage]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    left: set[int] = field(default_factory=set)
    changed: Condition = field(default_factory=Condition)

    def put(self, address: MessageAddress, message: ReceivedMessage) -> None:
        """Append a received message to the queue of its address, and wake waiting threads."""
        with self.changed:
            self.messages.setdefault(address, deque()).append(message)
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

    def raise_failure(self) -> None:
        """Raise `StrategyError` (rule ``run.peer``) for the lowest rank recorded as failed."""
        for rank, why in sorted(self.failed.items()):
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
