"""How a launch on PyTorch's FSDP shards: its strategies by name, as stages of ZeRO and members of a
sharding group.

Source: PyTorch 2.9, torch/distributed/fsdp/api.py (ShardingStrategy) and _init_utils.py
(_init_intra_and_inter_node_groups); Accelerate 1.15.0, utils/dataclasses.py
(FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.lazy_dataclass import dataclass

_STAGES: Final = MappingProxyType(
    {
        **dict.fromkeys(("full_shard", "1", "true", "hybrid_shard", "4"), 3),
        **dict.fromkeys(
            ("shard_grad_op", "2", "false", "hybrid_shard_zero2", "_hybrid_shard_zero2", "5"), 2
        ),
        **dict.fromkeys(("no_shard", "3"), 0),
    }
)
"""Strategy of FSDP 1, by name or number, or whether FSDP 2 frees parameters after forward -> stage
of ZeRO."""
_WITHIN_A_NODE: Final = frozenset(
    {"hybrid_shard", "4", "hybrid_shard_zero2", "_hybrid_shard_zero2", "5"}
)
STRATEGIES: Final = frozenset(_STAGES)
"""Names of strategies, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How states are sharded: stage of ZeRO, members of a sharding group (0 = all replicas), and a
    note on what the files leave open.
    """

    zero: int
    shard: int = 0
    notes: tuple[str, ...] = ()


def sharding(
    strategy: str, *, replicas: int, replicate: int, node_devices: int, shards: int = 0
) -> Sharding:
    """The sharding of a strategy by name.

    A hybrid strategy shards over the devices of a node and sums gradients over nodes, unless the
    launch says how many copies there are.

    Args:
        replicas: devices that may share states.
        replicate: copies of the sharded states, where the launch says so; 1 = it does not.
        node_devices: devices of a node of the cluster.
        shards: members of a sharding group, where the launch says them; 0 = it does not.

    Raises:
        DataError: there is no such strategy. StrategyError: nodes do not divide the replicas.
    """
    named = strategy.lower()
    if named not in _STAGES:
        raise DataError(
            f"FSDP's sharding strategy {strategy[:40]!r} is not known here",
            hint="full_shard, shard_grad_op or hybrid_shard",
        )
    zero = _STAGES[named] if replicas > 1 else 0
    if replicas % max(replicate, 1):
        raise StrategyError(
            f"{replicate} copies of the shards do not divide {replicas} replicas",
            hint="the CLUSTER that the launch is for",
            rule="grid.shard",
        )
    told: tuple[str, ...] = ()
    if shards and shards * max(replicate, 1) != replicas:
        told = (
            (
                f"the launch shards over {shards} devices, {max(replicate, 1)} times; the cluster"
                f" has room for {replicas} replicas"
            ),
        )
    if replicate > 1:
        return Sharding(zero=zero, shard=replicas // replicate if zero else 0, notes=told)
    if named not in _WITHIN_A_NODE or replicas <= node_devices:
        return Sharding(zero=zero, notes=told)
    if replicas % node_devices:
        raise StrategyError(
            f"{named} shards over the {node_devices} devices of a node, which do not divide"
            f" {replicas} replicas",
            hint="full_shard, or whole nodes",
            rule="grid.shard",
        )
    note = (
        f"{named} shards over the {node_devices} devices of a node, and sums gradients over nodes"
    )
    return Sharding(zero=zero, shard=node_devices, notes=(*told, note))
