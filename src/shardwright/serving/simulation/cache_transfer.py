"""The link out of a prefill worker: transfers under way at once each have an equal part of its
bandwidth.
"""

from __future__ import annotations

from dataclasses import field
from heapq import heappop, heappush
from math import inf

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Between prefill and decode workers.

    Args:
        bandwidth: bytes a second out of a prefill worker.
        latency_s: of a transfer.
        bytes_per_token, bytes_per_sequence: of the cache.
        layers: parts that a prompt's cache goes in: each goes when it is computed, so only the last
            is waited for; 1 = the whole behind the prompt.
    """

    bandwidth: float
    latency_s: float
    bytes_per_token: float
    bytes_per_sequence: float = 0.0
    layers: int = 1


@dataclass(slots=True)
class Transfers:
    """Those under way on one link, as far as it is known which begin.

    The link's own clock runs at one over the transfers under way; on it each takes what it takes
    alone (processor sharing).

    Args:
        now, own: seconds, and those of the link's own clock, when a transfer last began or ended.
        under_way: on its own clock, when each ends, and whose it is; a heap.
    """

    now: float = 0.0
    own: float = 0.0
    under_way: list[tuple[float, int]] = field(default_factory=list)

    @property
    def next_end(self) -> float:
        """When the first of them ends if no other one begins before; others make it later."""
        if not self.under_way:
            return inf
        return max(self.now, self.now + (self.under_way[0][0] - self.own) * len(self.under_way))

    def ended(self, *, until: float) -> list[tuple[float, int]]:
        """When transfers end, and whose they are, up to a time before which no other one begins."""
        result: list[tuple[float, int]] = []
        while self.under_way and (at := self.next_end) <= until:
            own, which = heappop(self.under_way)
            self.now, self.own = at, own
            result.append((at, which))
        return result

    def begin(self, at: float, *, alone: float, which: int) -> None:
        """One more, that would take `alone` seconds by itself; those that end before `at` are off
        the link (`ended`).
        """
        if self.under_way:
            self.own += (at - self.now) / len(self.under_way)
        self.now = at
        heappush(self.under_way, (self.own + alone, which))
