"""The span of a group that is given by its members."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.collectives.span import Span
from shardwright.hardware.cluster import Tier
from shardwright.hardware.graph import Units


def span_of_devices(
    devices: tuple[int, ...], tiers: tuple[Tier, ...], *, units: tuple[Units, ...], in_network_reduction: bool = False
) -> Span:
    """The span of one group.

    Members below a unit of a tier are the most that any unit holds, as in `span_of`.

    Args:
        devices: different, as the cluster numbers them. tiers: innermost first. units: of each tier.
    """
    places = np.asarray(devices)
    below = [int(np.unique(level.of(places), return_counts=True)[1].max()) for level in units[:-1]]
    return _span((*below, len(devices)), tiers, in_network_reduction)


@lru_cache(maxsize=16384)
def _span(below: tuple[int, ...], tiers: tuple[Tier, ...], reduces: bool) -> Span:
    """One object for groups that lie alike."""
    return Span(
        below=tuple(np.array([count], dtype=np.int64) for count in below),
        bandwidth=tuple(np.array([tier.bandwidth]) for tier in tiers),
        latency_s=tuple(np.array([tier.latency_s]) for tier in tiers),
        in_network_reduction=reduces,
    )
