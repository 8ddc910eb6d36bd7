"""Groups that lie alike, kept once: thousands of strategies share some dozens of spans."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.groups.tier_counts import Span

_WORTH_IT: Final = 256
_LARGEST_TABLE: Final = 2**18


def distinct_groups(span: Span) -> tuple[Span, IntArray | None]:
    """A span with each different group once, and for each group of `span` its row there; (`span`,
    None) where that does not pay.

    Pays for many groups that differ in their member counts only, with few enough different counts
    for a table of all combinations.
    """
    counts = np.broadcast_arrays(*span.below)
    if (
        counts[0].size < _WORTH_IT
        or span.late_s is not None
        or not all((array == array[0]).all() for array in (*span.bandwidth, *span.latency_s))
    ):
        return span, None
    key, combinations = np.zeros(counts[0].shape, dtype=np.int64), 1
    for count in counts:
        if int(count.max()) >= _LARGEST_TABLE:
            return span, None
        there = np.zeros(int(count.max()) + 1, dtype=np.bool_)
        there[count] = True
        number = np.cumsum(there) - 1
        radix = int(number[-1]) + 1
        combinations *= radix
        if combinations > _LARGEST_TABLE:
            return span, None
        key = key * radix + number[count]
    first = np.full(combinations, -1, dtype=np.int64)
    first[key] = np.arange(key.size)
    present = np.flatnonzero(first >= 0)
    sample = first[present]
    first[present] = np.arange(present.size)
    smaller = Span(
        below=tuple(count[sample] for count in counts),
        bandwidth=tuple(array[:1] for array in span.bandwidth),
        latency_s=tuple(array[:1] for array in span.latency_s),
        in_network_reduction=span.in_network_reduction,
    )
    return smaller, first[key]
