"""Spans for tests: one group from plain numbers, and random ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from shardwright.arrays import IntArray
from shardwright.collectives.groups.span_members_by_network_tier import Span


def nested(members: tuple[IntArray, ...]) -> tuple[IntArray, ...]:
    """Members below a unit of each tier, from the units of a tier in one of the next."""
    return tuple(np.multiply.accumulate(members))


def one_group(
    members: tuple[int, ...],
    *,
    bandwidth: tuple[float, ...],
    latency_s: tuple[float, ...],
    in_network_reduction: bool = True,
) -> Span:
    return Span(
        below=nested(tuple(np.array([count]) for count in members)),
        bandwidth=tuple(np.array([value]) for value in bandwidth),
        latency_s=tuple(np.array([value]) for value in latency_s),
        in_network_reduction=in_network_reduction,
    )


@st.composite
def spans(draw: st.DrawFn, *, max_groups: int = 6) -> Span:
    """Up to three tiers; the network is at most half as fast as the island and slower and later
    from tier to tier."""
    tiers = draw(st.integers(1, 3))
    groups = draw(st.integers(1, max_groups))
    counts = st.lists(
        st.sampled_from((1, 1, 2, 3, 4, 5, 6, 8, 16)), min_size=groups, max_size=groups
    )
    bandwidth = [draw(st.floats(1e9, 1e12))]
    latency_s = [draw(st.floats(1e-7, 1e-5))]
    for _ in range(tiers - 1):
        bandwidth.append(bandwidth[-1] * draw(st.floats(0.05, 0.5)))
        latency_s.append(latency_s[-1] * draw(st.floats(1.0, 10.0)))
    below = list(nested(tuple(np.array(draw(counts)) for _ in range(tiers))))
    if tiers > 1 and draw(st.booleans()):
        # Units that do not divide the group: the last one is not full.
        lacks = np.array(draw(st.lists(st.integers(0, 7), min_size=groups, max_size=groups)))
        below[-1] = below[-1] - np.where(below[-1] > below[-2], np.minimum(lacks, below[-2] - 1), 0)
    return Span(
        below=tuple(below),
        bandwidth=tuple(np.full(groups, value) for value in bandwidth),
        latency_s=tuple(np.full(groups, value) for value in latency_s),
        in_network_reduction=draw(st.booleans()),
    )
