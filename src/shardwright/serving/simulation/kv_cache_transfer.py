"""KV cache transfers from prefill workers to decode workers, which share a link's bandwidth."""

from __future__ import annotations

from dataclasses import field
from heapq import heappop, heappush
from math import inf

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLink:
    """Link from a prefill worker to decode workers, for KV caches.

    Args:
        bandwidth: bytes a second out of a prefill worker.
        latency_s: seconds of latency of a transfer.
        bytes_per_token, bytes_per_sequence: bytes of the cache.
        layers: parts in which a prompt's cache is sent: each is sent when it is computed, so only
            the last is waited for; 1 = all of it after the prompt.
    """

    bandwidth: float
    latency_s: float
    bytes_per_token: float
    bytes_per_sequence: float = 0.0
    layers: int = 1


@dataclass(slots=True)
class CacheTransfers:
    """Cache transfers under way on one link, which share its bandwidth equally.

    The link has a clock that runs at 1 / (number of transfers under way); on this clock each
    transfer takes as long as it would alone (processor sharing).

    Args:
        now, link_now: seconds, and seconds of the link's clock, when a transfer last began or
            ended.
        under_way: heap of (end on the link's clock, transfer number).
    """

    now: float = 0.0
    link_now: float = 0.0
    under_way: list[tuple[float, int]] = field(default_factory=list)

    @property
    def next_end(self) -> float:
        """Time in seconds at which the first transfer ends if none begins before; inf if none."""
        if not self.under_way:
            return inf
        return max(
            self.now, self.now + (self.under_way[0][0] - self.link_now) * len(self.under_way)
        )

    def pop_ended(self, *, until: float) -> list[tuple[float, int]]:
        """Remove transfers that end by `until` seconds; return (time in seconds, number) of each.

        No other transfer may begin before `until`.
        """
        ended: list[tuple[float, int]] = []
        while self.under_way and (end := self.next_end) <= until:
            link_end, transfer = heappop(self.under_way)
            self.now, self.link_now = end, link_end
            ended.append((end, transfer))
        return ended

    def begin(self, at: float, *, alone: float, transfer: int) -> None:
        """Start `transfer` at `at` seconds on an equally shared link; `alone` = seconds unshared.

        Transfers that end before must have been removed (`pop_ended`).

        Args:
            alone: seconds of the transfer without others.
            transfer: its number.
        """
        if self.under_way:
            self.link_now += (at - self.now) / len(self.under_way)
        self.now = at
        heappush(self.under_way, (self.link_now + alone, transfer))
