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

    Members below a unit of a tier are the most that any unit holds, made to divide the group's size: a regular group stands for one that
    is spread unevenly, as in `span_of`.

    Args:
        devices: different, as the cluster numbers them. tiers: innermost first. units: of each tier.
    """
    rest, below = len(devices), 1
    members: list[int] = []
    for level in units[:-1]:
        most = int(np.unique(level.of(np.asarray(devices)), return_counts=True)[1].max())
        limit = min(max(most // below, 1), rest)
        here = max(d for d in range(1, limit + 1) if rest % d == 0)
        members.append(here)
        below *= here
        rest //= here
    members.append(rest)
    return _span(tuple(members), tiers, in_network_reduction)


@lru_cache(maxsize=16384)
def _span(members: tuple[int, ...], tiers: tuple[Tier, ...], reduces: bool) -> Span:
    """One object for groups that lie alike."""
    return Span(
        members=tuple(np.array([m], dtype=np.int64) for m in members),
        bandwidth=tuple(np.array([tier.bandwidth]) for tier in tiers),
        latency_s=tuple(np.array([tier.latency_s]) for tier in tiers),
        in_network_reduction=reduces,
    )
