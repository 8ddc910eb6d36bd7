"""ZeRO for general plans: what a device's gradient groups cost by layer, as the table that grids have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.collectives.algorithm import Collective
from shardwright.cost.communication import move_seconds
from shardwright.cost.plan_network import group_span, network_of_devices
from shardwright.cost.sync import SyncTable, gradient_bytes, wire_shares
from shardwright.model.tensor import ParameterClass
from shardwright.program.contribution import shard_groups
from shardwright.program.plan_sync import Held
from shardwright.program.problem import Problem
from shardwright.strategy.plan import ALL, Plan, Shards, State
from shardwright.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule:
    """ZeRO as a stage (0 to 3), members of a sharding group (0 = all) of dense parameters and of experts, percent of states on the host."""

    zero: int
    shard: int
    expert_shard: int
    offload: int


def shard_rule(plan: Plan) -> ShardRule:
    """The rules of a plan as one stage: that of the rule which holds for dense parameters (the last that names them, or all).

    Left out: rules of their own for embeddings, heads and adapters are priced as the dense ones.
    """

    def last(*names: str) -> Shards | None:
        chosen = [r for r in plan.shards if not r.parameters or set(r.parameters) & set(names)]
        return chosen[-1] if chosen else None

    dense = last(ParameterClass.DENSE.value) or last(*(k.value for k in ParameterClass))
    experts = last(ParameterClass.EXPERTS.value) or dense
    if dense is None:
        return ShardRule(zero=0, shard=1, expert_shard=1, offload=0)
    degrees = (dense.optimizer, dense.gradient, dense.parameter)
    zero = next((level for level, degree in zip((3, 2, 1), reversed(degrees), strict=True) if degree != 1), 0)
    host = dict(dense.host).get(State.OPTIMIZER, 0)
    return ShardRule(zero=zero, shard=dense.optimizer, expert_shard=experts.optimizer if experts is not None else 1, offload=host)


def degree(rule: ShardRule, klass: ParameterClass, members: int) -> int:
    """Members that share one copy of a class's states in a group of `members`."""
    if not rule.zero:
        return 1
    wanted = rule.expert_shard if klass is ParameterClass.EXPERTS else rule.shard
    if wanted == ALL or wanted >= members:
        return members
    return max(d for d in range(1, wanted + 1) if members % d == 0)


def sync_of(problem: Problem, held: list[tuple[Held, ...]], *, rule: ShardRule) -> SyncTable:
    """Synchronisation of one layer of each segment, as a table of one row.

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours, as in `sync_table`.
    """
    blocks = len(held)
    seconds = {name: np.zeros((blocks, 1)) for name in ("all_reduce", "reduce", "gather")}
    counts = {name: np.zeros((blocks, 1), dtype=np.int64) for name in ("dense", "experts", "frozen", "tied")}
    shards = {ParameterClass.DENSE: 1, ParameterClass.EXPERTS: 1}
    largest = {ParameterClass.DENSE: 0, ParameterClass.EXPERTS: 0}
    for b, items in enumerate(held):
        by_group: dict[tuple[tuple[int, ...], ParameterClass], int] = {}
        layers = max((h.layers for h in items), default=1)
        for h in items:
            kind = ParameterClass.EXPERTS if h.klass is ParameterClass.EXPERTS else ParameterClass.DENSE
            # Parameters that some layers of the segment share with other stages than the rest do are spread over all of its layers.
            elements = h.elements * h.layers // layers
            name = "frozen" if not h.trainable else "experts" if kind is ParameterClass.EXPERTS else "dense"
            counts[name][b, 0] += elements
            if h.trainable:
                by_group[h.group, kind] = by_group.get((h.group, kind), 0) + elements
        for (group, kind), elements in by_group.items():
            if elements > largest[kind]:
                largest[kind], shards[kind] = elements, degree(rule, kind, len(group))
            for name, spent in _layer(problem, group, elements, degree(rule, kind, len(group))).items():
                seconds[name][b, 0] += spent
    return SyncTable(
        all_reduce=seconds["all_reduce"],
        reduce=seconds["reduce"],
        gather=seconds["gather"],
        shard=np.array([shards[ParameterClass.DENSE]], dtype=np.int64),
        expert_shard=np.array([shards[ParameterClass.EXPERTS]], dtype=np.int64),
        **counts,
    )


def _layer(problem: Problem, group: tuple[int, ...], elements: int, shard: int) -> dict[str, float]:
    """Seconds to sum, to reduce into shards, and to gather one layer's elements over one group."""
    if len(group) < 2:
        return dict.fromkeys(("all_reduce", "reduce", "gather"), 0.0)
    network = network_of_devices(problem, group)
    inner, across = shard_groups(group, shard)
    wire, stored, bucket = gradient_bytes(problem.job, problem.runtime), problem.job.parameter.bits // 8, problem.runtime.bucket_bytes
    gradient = max(elements * float(wire), float(bucket))
    parameter = max(elements * float(stored), float(bucket) * stored / wire)
    share = elements * float(wire) / gradient

    def spent(kind: Collective, volume: float, members: tuple[int, ...]) -> float:
        return float(move_seconds(kind, volume=np.array([volume]), span=group_span(members, network), network=network)[0])

    return {
        "all_reduce": share * spent(Collective.ALL_REDUCE, gradient, group),
        "reduce": share
        * (spent(Collective.REDUCE_SCATTER, gradient, inner[0]) + spent(Collective.ALL_REDUCE, gradient / shard, across[0])),
        "gather": share * spent(Collective.ALL_GATHER, parameter, inner[0]),
    }


SMALLEST_BUCKET_BYTES = 64 * MIB


def group_shares(problem: Problem, group: tuple[int, ...], *, rule: ShardRule, levels: int) -> tuple[float, ...]:
    """Share of a device's link on each tier that a group's reduction fills while it runs; see `sync.sync_shares`."""
    network = network_of_devices(problem, group)
    shard = degree(rule, ParameterClass.DENSE, len(group)) if rule.zero else 1
    inner, across = shard_groups(group, shard)
    bucket = max(problem.runtime.bucket_bytes, SMALLEST_BUCKET_BYTES)
    parts = (
        (Collective.REDUCE_SCATTER, group_span(inner[0], network), bucket),
        (Collective.ALL_REDUCE, group_span(across[0], network), bucket // shard),
    )
    found = wire_shares(parts, network=network)
    return (*found, *(0.0,) * (levels - len(found)))
