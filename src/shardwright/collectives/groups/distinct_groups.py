"""Distinct groups of a span: groups that lie alike in the network, each once, as thousands of
strategies share some dozens of groups.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.collectives.groups.tier_counts import Span

_FEWEST_GROUPS: Final = 256
"""Groups from which finding equal ones is faster than pricing all."""
_LARGEST_TABLE: Final = 2**18
"""Most entries of the table of combinations of counts (2 MiB)."""


def distinct_groups(span: Span) -> tuple[Span, IntArray | None]:
    """A span with each different group once, and for each group of `span` its row there; (`span`,
    None) where that does not pay.

    It pays for many groups that differ only in their member counts, with few enough different
    counts for a table of all combinations.
    """
    counts = np.broadcast_arrays(*span.below)
    if (
        counts[0].size < _FEWEST_GROUPS
        or span.late_s is not None
        or not all((array == array[0]).all() for array in (*span.bandwidth, *span.latency_s))
    ):
        return span, None
    key, combinations = np.zeros(counts[0].shape, dtype=np.int64), 1
    for count in counts:
        if int(count.max()) >= _LARGEST_TABLE:
            return span, None
        present_counts = np.zeros(int(count.max()) + 1, dtype=np.bool_)
        present_counts[count] = True
        number = np.cumsum(present_counts) - 1
        radix = int(number[-1]) + 1
        combinations *= radix
        if combinations > _LARGEST_TABLE:
            return span, None
        key = key * radix + number[count]
    row_of_combination = np.full(combinations, -1, dtype=np.int64)
    row_of_combination[key] = np.arange(key.size)
    present = np.flatnonzero(row_of_combination >= 0)
    sample = row_of_combination[present]
    row_of_combination[present] = np.arange(present.size)
    smaller = Span(
        below=tuple(count[sample] for count in counts),
        bandwidth=tuple(array[:1] for array in span.bandwidth),
        latency_s=tuple(array[:1] for array in span.latency_s),
        in_network_reduction=span.in_network_reduction,
    )
    return smaller, row_of_combination[key]
