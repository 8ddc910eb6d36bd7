"""ZeRO for general plans: what a device's gradient groups cost by layer, as the table that grids have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm import Collective
from shardwright.cost.column_sums import (
    SYNCS,
    ShardedElements,
    SumSpans,
    SyncTable,
    broadcast_seconds,
    gradient_bytes,
    layer_seconds,
    sum_sizes,
    wire_shares,
)
from shardwright.cost.communication import Network, move_seconds
from shardwright.cost.device_network import group_span, network_of_devices, own_span
from shardwright.cost.parameters import matrices
from shardwright.model.ir.tensor import ParameterClass
from shardwright.program.problem import Problem
from shardwright.program.stages.holdings import HeldParameters
from shardwright.program.stages.parts import Segment
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, State


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRule:
    """ZeRO as a stage (0 to 3) that says when collectives run, and how many members share each state.

    Args:
        degrees: of each class (optimizer, gradient, parameter; 0 = all). offload: percent of the optimizer's states on the host.
        gather, reduce: cadence of parameters and of gradients.
    """

    zero: int
    degrees: dict[ParameterClass, tuple[int, int, int]]
    offload: int
    gather: Cadence = Cadence.STEP
    reduce: Cadence = Cadence.STEP


def shard_rule(plan: Plan) -> ShardRule:
    """The rules of a plan: the last that names a class, or all, holds for it.

    Left out: the cadence of gathers and reductions is that of dense parameters for all classes.
    """

    def last(*names: str) -> Shards | None:
        chosen = [r for r in plan.shards if not r.parameters or set(r.parameters) & set(names)]
        return chosen[-1] if chosen else None

    dense = last(ParameterClass.DENSE.value) or last(*(k.value for k in ParameterClass))
    if dense is None:
        return ShardRule(zero=0, degrees={}, offload=0)
    degrees = {k: (r.optimizer, r.gradient, r.parameter) for k in ParameterClass if (r := last(k.value)) is not None}
    of_dense = (dense.optimizer, dense.gradient, dense.parameter)
    zero = next((level for level, wanted in zip((3, 2, 1), reversed(of_dense), strict=True) if wanted != 1), 0)
    offload = dict(dense.host).get(State.OPTIMIZER, 0)
    return ShardRule(zero=zero, degrees=degrees, offload=offload, gather=dense.gather, reduce=dense.reduce)


def degree(rule: ShardRule, klass: ParameterClass, members: int, *, level: int = 1) -> int:
    """Members, of a group of so many, that share one copy of the state which ZeRO stage `level` begins to shard."""
    wanted = rule.degrees.get(klass, (1, 1, 1))[level - 1]
    if wanted == ALL or wanted >= members:
        return members
    return max(d for d in range(1, wanted + 1) if members % d == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """Elements of one layer of a segment that are summed over `members` too, once their bucket is; `total`: of all layers, in one go."""

    segment: int
    members: tuple[int, ...]
    elements: float
    total: int


def bucket_of(group: tuple[int, ...], groups: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The smallest of `groups`, all of which have one device in common, that `group` is a mesh of; `group` itself if there is none."""
    inside = [g for g in groups if len(g) < len(group) and set(g) <= set(group) and across(group, g)]
    return min(inside, key=lambda g: (len(g), g), default=group)


def in_buckets(held: list[tuple[HeldParameters, ...]], *, layers: tuple[int, ...]) -> tuple[list[tuple[HeldParameters, ...]], list[Beyond]]:
    """What a device holds with parameters that more devices sum than the matrices beside them put into those matrices' bucket; and their
    further sums.

    Gains of norms under sequence parallelism are copied over tp. Frameworks reduce and shard them with all else over dp, and sum them
    over tp once a step (Megatron-LM, core/distributed/finalize_model_grads.py): 24,576 elements a layer of Nemotron-4 15B on tp 2 x dp
    1,024 take no ring of 2,048 devices of their own. Groups that no smaller group divides stay as they are.
    """
    kinds: dict[bool, set[tuple[int, ...]]] = {False: set(), True: set()}
    for h in (h for items in held for h in items if h.trainable and not h.is_tied):
        kinds[h.klass is ParameterClass.EXPERTS].add(h.group)
    bucket = {(experts, group): bucket_of(group, groups) for experts, groups in kinds.items() for group in groups}
    sums: dict[tuple[int, tuple[int, ...]], int] = {}
    result = []
    for number, items in enumerate(held):
        placed = []
        for h in items:
            near = h.group if h.is_tied or not h.trainable else bucket[h.klass is ParameterClass.EXPERTS, h.group]
            placed.append(h if near is h.group else replace(h, group=near, near=near))
            if near is not h.group:
                members = across(h.group, near)
                sums[number, members] = sums.get((number, members), 0) + h.elements * h.layers
        result.append(tuple(placed))
    totals: dict[tuple[int, ...], int] = {}
    for (_, members), elements in sums.items():
        totals[members] = totals.get(members, 0) + elements
    return result, [Beyond(segment=b, members=m, elements=n / layers[b], total=totals[m]) for (b, m), n in sums.items()]


@lru_cache(maxsize=4096)
def across(group: tuple[int, ...], part: tuple[int, ...]) -> tuple[int, ...]:
    """The first member of `part` with those of the group that stand where it stands in the group's other parts; () if parts are no mesh.

    Of (0..7) and its part (1, 3, 5, 7): (0, 1). Of its part (0, 1, 4, 5): (0, 2).
    """
    places = np.searchsorted(group, part)
    count, first = len(group) // len(part), int(places[0])
    run = int(np.argmin(np.append(places - first == np.arange(len(part)), False)))
    block = first - first % (run * count)
    members = block + first % run + run * np.arange(count)
    parts = np.sort(np.add.outer(members - first, places), axis=None)
    return tuple(group[k] for k in members) if np.array_equal(parts, np.arange(len(group))) else ()


def cuts_of(held: list[tuple[HeldParameters, ...]], *, rule: ShardRule) -> tuple[ShardedElements, ...]:
    """All trainable elements of a device by how their states are cut, experts last."""
    found: dict[tuple[bool, int, int, int], int] = {}
    for h in (h for items in held for h in items if h.trainable):
        optimizer, gradient, parameter = (degree(rule, h.klass, len(h.near), level=level) for level in (1, 2, 3))
        key = (h.klass is ParameterClass.EXPERTS, optimizer, gradient, parameter)
        found[key] = found.get(key, 0) + h.elements * h.layers
    cuts = (ShardedElements(elements=n, optimizer=o, gradient=g, parameter=p) for (_, o, g, p), n in sorted(found.items()))
    return tuple(cuts) or (ShardedElements(elements=0, optimizer=1, gradient=1, parameter=1),)


def sync_of(
    problem: Problem, held: list[tuple[HeldParameters, ...]], *, device: int, segments: tuple[Segment, ...], rule: ShardRule
) -> SyncTable:
    """Synchronisation of one layer of each segment, as a table of one row.

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours, as in `sync_table`. Groups that sum parts of
    one parameter do so at the same time, each in its own communicator (PyTorch runs those on streams of their own): they take as long as
    the slowest, or as all together do on the links of the device itself.

    Args:
        device: that holds them. segments: whose layers they are of. Parameters of some layers (the others are shared with other
            stages) are spread over all.
    """
    blocks, layers = len(held), tuple(segment.count for segment in segments)
    held, beyond = in_buckets(held, layers=layers)
    seconds = {name: np.zeros((blocks, 1)) for name in SYNCS}
    tied = {"all_reduce": np.zeros(1), "reduce": np.zeros(1)}
    counts = {name: np.zeros((blocks, 1), dtype=np.int64) for name in ("dense", "experts", "spread", "frozen", "tied", "narrow")}
    shards = {ParameterClass.DENSE: 1, ParameterClass.EXPERTS: 1}
    sizes = sum_sizes(problem.job, problem.runtime)
    each, few = ([Counter[_Together]() for _ in held] for _ in range(2))
    for b, h in ((b, h) for b, items in enumerate(held) for h in items):
        kind = ParameterClass.EXPERTS if h.klass is ParameterClass.EXPERTS else ParameterClass.DENSE
        name = "frozen" if not h.trainable else "experts" if kind is ParameterClass.EXPERTS else "dense"
        counts[name][b, 0] += -(-h.elements * h.layers // layers[b])
        if h.narrow and h.trainable:
            counts["narrow"][b, 0] += -(-h.elements * h.layers // layers[b])
        if h.trainable:
            shard = degree(rule, h.klass, len(h.near))
            each[b][h.group, h.near, kind, shard, h.parts] += h.elements * h.layers
            few[b][h.group, h.near, kind, shard, h.parts] += h.elements * h.layers * h.narrow
            shards[kind] = max(shards[kind], shard)
    for b, (together, count) in enumerate(zip(each, layers, strict=True)):
        slowest, own = dict.fromkeys(SYNCS, 0.0), dict.fromkeys(SYNCS, 0.0)
        for key, elements in ((key, elements) for key, elements in together.items() if len(key[0]) > 1):
            group, near, kind, shard, parts = key
            many = matrices(segments[b].block.operators, experts=kind is ParameterClass.EXPERTS)
            network = network_of_devices(problem, group)
            groups = _sum_spans(network, group, near, shard)
            narrow = np.array([few[b][key] / count])
            alone = layer_seconds(np.array([elements / count]), groups, network, sizes, matrices=many, narrow=narrow)
            if problem.runtime.zero1_broadcasts:
                whole = sum(one[key] for one in each)
                alone["gather"] = broadcast_seconds(np.array([float(whole)]), groups, network=network, stored=sizes.stored) / whole
                alone["gather"] *= elements / count
            if parts > 1 and near == group:
                sides = [own_span(problem, members, device) for members in _members_of(group, near, shard)]
                network = network_of_devices(problem, (device,))
                spans = SumSpans(sides[0], sides[1], sides[2], groups.shard)
                mine = layer_seconds(np.array([elements / count]), spans, network, sizes, matrices=many, narrow=narrow)
                for name, spent in alone.items():
                    slowest[name], own[name] = max(slowest[name], float(spent[0])), own[name] + float(mine[name][0])
                continue
            for name, spent in alone.items():
                if near == group or name not in (*tied, "scatter", "apart"):
                    seconds[name][b] += spent
                elif name in tied:
                    tied[name] += spent * count
        for name in SYNCS:
            seconds[name][b] += max(slowest[name], own[name])
    for one in beyond:
        network = network_of_devices(problem, one.members)
        volume = np.array([one.total * float(gradient_bytes(problem.job, problem.runtime))])
        once = move_seconds(Collective.ALL_REDUCE, volume=volume, span=group_span(one.members, network), network=network)
        for name in ("all_reduce", "reduce", "scatter"):
            seconds[name][one.segment, 0] += float(once[0]) * one.elements / one.total
    columns: dict[str, Any] = seconds | {f"tied_{name}": spent for name, spent in tied.items()} | counts
    return SyncTable(
        **columns,
        shard=np.array([shards[ParameterClass.DENSE]], dtype=np.int64),
        expert_shard=np.array([shards[ParameterClass.EXPERTS]], dtype=np.int64),
        cuts=cuts_of(held, rule=rule),
    )


_Together = tuple[tuple[int, ...], tuple[int, ...], ParameterClass, int, int]
"""Group, those of it that share states, class, shard and parts of what is summed at once."""


def _sum_spans(network: Network, group: tuple[int, ...], near: tuple[int, ...], shard: int) -> SumSpans:
    spans = [group_span(members, network) for members in _members_of(group, near, shard)]
    return SumSpans(spans[0], spans[1], spans[2], np.array([shard], dtype=np.int64))


def _members_of(group: tuple[int, ...], near: tuple[int, ...], shard: int) -> tuple[tuple[int, ...], ...]:
    """Those that share one copy of the states, that hold the same piece, and all."""
    return (*sharing_groups(group, near, shard), group)


def sharing_groups(group: tuple[int, ...], near: tuple[int, ...], shard: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Devices that share one copy of the states, and those that hold the same piece; other stages' holders of a tied weight come last.

    States of 64 sharded over eight are runs of eight consecutive members; the same piece is held by every eighth (zoo 6).
    """
    ordered = near if near == group else (*near, *sorted(set(group).difference(near)))
    if len(ordered) % shard:
        return near[:shard], (near[0], *ordered[len(near) :])
    return ordered[:shard], ordered[::shard]


def group_shares(problem: Problem, group: tuple[int, ...], *, rule: ShardRule) -> FloatArray:
    """(tiers, 1) share of a device's link on each tier of the group's network that its reduction fills; see `wire_shares`."""
    network = network_of_devices(problem, group)
    shard = degree(rule, ParameterClass.DENSE, len(group)) if rule.zero else 1
    return wire_shares(_sum_spans(network, group, group, shard), network=network, bucket=problem.runtime.bucket_bytes)
