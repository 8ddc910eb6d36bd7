"""Collective algorithms whose time is linear in the volume.

seconds = latency + volume * seconds a byte.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective, require_kind
from shardwright.collectives.groups.span_cost_quantities import SpanQuantities, span_quantities
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Latency (alpha) and seconds a byte (beta) of each group; inf where an algorithm is illegal.

    The seconds of a collective are linear in its volume:

        seconds = latency_s + volume * seconds_per_byte
    """

    latency_s: FloatArray
    seconds_per_byte: FloatArray

    def at(self, volume: FloatArray, *, rows: IntArray | None = None) -> FloatArray:
        """Seconds of `volume` bytes by group, alpha + beta x volume; `rows` picks groups' lines.

        Args:
            rows: place of each group in this line's arrays; None = the same place.
        """
        if rows is None:
            return self.latency_s + self.seconds_per_byte * volume
        # Expanded one line at a time and in place: at thousands of groups fresh arrays cost more
        # than the arithmetic.
        seconds: FloatArray = self.seconds_per_byte.take(rows, mode="clip")
        if volume.size > seconds.size:
            return self.latency_s[rows] + seconds * volume
        seconds *= volume
        seconds += self.latency_s.take(rows, mode="clip")
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAlgorithm:
    """A `CollectiveAlgorithm` given by two functions: its time line and its bytes on each tier.

    Args:
        name: registry name.
        kinds: the collectives that it can run.
        line: (kind, quantities) -> alpha and beta; zero for groups of one member.
        shares: (kind, quantities) -> bytes that the busiest member sends over each tier's links,
            a byte of volume.
    """

    name: str
    kinds: frozenset[Collective]
    line: Callable[[Collective, SpanQuantities], Line]
    shares: Callable[[Collective, SpanQuantities], tuple[FloatArray, ...]]

    def seconds(self, kind: Collective, *, volume: FloatArray, span: Span) -> FloatArray:
        """Uncontended seconds for each group of `span`; inf where the algorithm does not apply.

        0 for groups of one member.
        """
        require_kind(self, kind)
        quantities = span_quantities(span)
        return self.line(kind, quantities).at(
            np.asarray(volume, dtype=np.float64), rows=quantities.rows
        )

    def wire_bytes(
        self, kind: Collective, *, volume: FloatArray, span: Span
    ) -> tuple[FloatArray, ...]:
        """Bytes that the busiest member sends over each tier's links, innermost tier first.

        A gather's root: receives.

        A message that crosses network tier k also passes the links of network tiers 1 .. k-1 and is
        counted there; the island's links (tier 0) carry only what stays in the island. Divided by a
        tier's bandwidth it is that link's busy time.
        """
        require_kind(self, kind)
        quantities = span_quantities(span)
        shares = self.shares(kind, quantities)
        return tuple(
            (share if quantities.rows is None else share.take(quantities.rows)) * volume
            for share in shares
        )


def where_legal(line: Line, legal: BoolArray) -> Line:
    """The alpha-beta `line`, with infinite latency (alpha) for groups where `legal` is false."""
    return Line(
        latency_s=np.where(legal, line.latency_s, np.inf), seconds_per_byte=line.seconds_per_byte
    )
