"""Share of a node's host memory that one device of a pipeline rank may fill."""

from __future__ import annotations

from functools import lru_cache
from math import inf, lcm
from typing import NamedTuple

import numpy as np

from shardwright.hardware.cluster import Cluster


class HostShare(NamedTuple):
    """Host memory in bytes for one device of each pipeline rank.

    Args:
        room: bytes of the node for each of the devices that one rank has there; inf = the cluster
            does not state the node's memory.
        sharing: number of consecutive ranks whose devices are in the same node, so that their
            bytes add up.
    """

    room: float
    sharing: int


def host_share(cluster: Cluster, *, devices: int, ranks: int, stride: int) -> HostShare:
    """Host bytes for each device, where rank (d // stride) mod ranks has device d; inf = unknown.

    Where nodes hold the ranks unequally, the share is an upper bound: each rank is held alone
    against the node that has most of its devices, and the share is that of the rank for which these
    are fewest.
    """
    if len(cluster.groups) > 1 or not cluster.node.host.memory_bytes:
        return HostShare(inf, 1)
    each, sharing = _devices_of_a_rank(devices, ranks, stride, cluster.node.num_devices)
    return HostShare(cluster.node.host.memory_bytes / each, sharing)


@lru_cache(maxsize=256)
def _devices_of_a_rank(devices: int, ranks: int, stride: int, per_node: int) -> tuple[int, int]:
    """Devices of a rank in one node, and number of ranks that share a node alike (1 = unlike)."""
    device = np.arange(min(devices, lcm(stride * ranks, per_node)))
    counts = np.zeros((int(device[-1]) // per_node + 1, ranks), dtype=np.int64)
    np.add.at(counts, (device // per_node, device // stride % ranks), 1)
    each, sharing = int(counts.max()), int((counts[0] > 0).sum())
    if ranks % sharing == 0:
        groups = counts.reshape(len(counts), ranks // sharing, sharing)
        # Every node is full of one group's devices, as many of each rank.
        is_whole = ((groups == each).all(axis=2).sum(axis=1) == 1) & (
            (counts > 0).sum(axis=1) == sharing
        )
        if is_whole.all():
            return each, sharing
    return int(counts.max(axis=0).min()), 1
