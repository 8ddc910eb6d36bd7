"""Transfers of KV caches out of a prefill worker; those under way at once share its bandwidth
equally.
"""

from __future__ import annotations

from dataclasses import field
from heapq import heappop, heappush
from math import inf

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLink:
    """Link between prefill and decode workers.

    Args:
        bandwidth: bytes a second out of a prefill worker.
        latency_s: seconds of latency of a transfer.
        bytes_per_token, bytes_per_sequence: bytes of the cache.
        layers: parts in which a prompt's cache is sent: each is sent when it is computed, so only
            the
            last is waited for; 1 = all of it after the prompt.
    """

    bandwidth: float
    latency_s: float
    bytes_per_token: float
    bytes_per_sequence: float = 0.0
    layers: int = 1


@dataclass(slots=True)
class Transfers:
    """Transfers under way on one link, up to the last one that began.

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
        """Time in seconds at which the first transfer ends, if no other begins before; another
        makes it later.
        """
        if not self.under_way:
            return inf
        return max(
            self.now, self.now + (self.under_way[0][0] - self.link_now) * len(self.under_way)
        )

    def ended(self, *, until: float) -> list[tuple[float, int]]:
        """(time in seconds, transfer number) of the transfers that end by `until`, which are
        removed.

        No other transfer may begin before `until`.
        """
        ended: list[tuple[float, int]] = []
        while self.under_way and (end := self.next_end) <= until:
            link_end, transfer = heappop(self.under_way)
            self.now, self.link_now = end, link_end
            ended.append((end, transfer))
        return ended

    def begin(self, at: float, *, alone: float, transfer: int) -> None:
        """Start a transfer at a time; transfers that end before must have been removed
        (`ended`).

        Args:
            alone: seconds of the transfer without others.
            which: its number.
        """
        if self.under_way:
            self.link_now += (at - self.now) / len(self.under_way)
        self.now = at
        heappush(self.under_way, (self.link_now + alone, transfer))
