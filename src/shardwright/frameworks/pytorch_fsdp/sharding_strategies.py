"""ZeRO stage and sharding group size of PyTorch FSDP's sharding strategies.

Source: PyTorch 2.9, torch/distributed/fsdp/api.py (ShardingStrategy) and _init_utils.py
(_init_intra_and_inter_node_groups); Accelerate 1.15.0, utils/dataclasses.py
(FullyShardedDataParallelPlugin).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.errors import DataError, StrategyError
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.lazily_compiled_dataclass import dataclass

_STAGES: Final = MappingProxyType(
    {
        **dict.fromkeys(("full_shard", "1", "true", "hybrid_shard", "4"), 3),
        **dict.fromkeys(
            ("shard_grad_op", "2", "false", "hybrid_shard_zero2", "_hybrid_shard_zero2", "5"), 2
        ),
        **dict.fromkeys(("no_shard", "3"), 0),
    }
)
"""FSDP setting in lower case -> ZeRO stage. The setting is a ShardingStrategy of FSDP 1, by name or
number, or FSDP 2's reshard_after_forward ("true" or "false")."""
_WITHIN_A_NODE: Final = name_set("hybrid_shard 4 hybrid_shard_zero2 _hybrid_shard_zero2 5")
STRATEGIES: Final = frozenset(_STAGES)
"""Settings that `sharding` accepts, in lower case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """ZeRO stage and sharding group of parameters, gradients and optimizer states.

    Args:
        zero: ZeRO stage; 0 = nothing is sharded.
        shard: devices of a sharding group; 0 = all replicas are one group.
        notes: sentences for the user on settings that do not fit the cluster or depend on it.
    """

    zero: int
    shard: int = 0
    notes: tuple[str, ...] = ()


def sharding(
    strategy: str, *, replicas: int, replicate: int, node_devices: int, shards: int = 0
) -> Sharding:
    """ZeRO stage, sharding group's ranks (0 = all) and notes, by FSDP strategy and `replicate`.

    Under every strategy, the launch can set the number of sharding groups (`replicate`). Where it
    does not, a hybrid strategy shards over the devices of a node and all-reduces gradients over
    nodes. Every other strategy that shards does so over all replicas.

    Args:
        strategy: name, number or FSDP 2 setting; upper or lower case.
        replicas: data parallel x context parallel degree: devices that FSDP can shard over.
        replicate: sharding groups, each with a full copy of the states; 1 = not set in the launch.
        node_devices: devices of a node of the cluster.
        shards: devices of a sharding group; 0 = not set in the launch. It only adds a note where
            shards x replicate is not `replicas`.

    Raises:
        DataError: FSDP has no such strategy.
        StrategyError: `replicate`, or for a hybrid strategy `node_devices`, does not divide
            `replicas`.
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
    notes: tuple[str, ...] = ()
    if shards and shards * max(replicate, 1) != replicas:
        notes = (
            (
                f"the launch shards over {shards} devices, {max(replicate, 1)} times; the cluster"
                f" has room for {replicas} replicas"
            ),
        )
    if replicate > 1:
        return Sharding(zero=zero, shard=replicas // replicate if zero else 0, notes=notes)
    if named not in _WITHIN_A_NODE or replicas <= node_devices:
        return Sharding(zero=zero, notes=notes)
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
    return Sharding(zero=zero, shard=node_devices, notes=(*notes, note))
