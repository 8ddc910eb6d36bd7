"""Gradient and parameter synchronisation of one layer of each block, for meshes and sharding groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm import Collective
from shardwright.collectives.choose import collective_seconds
from shardwright.collectives.registry import algorithms_for
from shardwright.collectives.span import Span, span_of
from shardwright.cost.communication import Axes, Network, axes_of, move_seconds, tokens_copied
from shardwright.cost.degree_rows import Rows
from shardwright.cost.parameters import ELEMENTS, parameter_elements
from shardwright.job.training import TrainingJob
from shardwright.program.block.block import BlockProgram
from shardwright.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedElements:
    """Trainable elements of one device whose states are cut alike.

    Args:
        optimizer, gradient, parameter: devices that share one copy of each state (1 = whole).
    """

    elements: int
    optimizer: int
    gradient: int
    parameter: int

    def held(self, level: int) -> int:
        """Elements of the state that ZeRO stage `level` begins to shard: ceil(elements / degree)."""
        return -(-self.elements // (self.optimizer, self.gradient, self.parameter)[level - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTable:
    """Per mesh row and block: seconds to synchronise one layer; shape (blocks, n).

    Args:
        all_reduce: of gradients over all holders (ZeRO-0).
        reduce: reduce_scatter in the sharding group and all_reduce across groups. gather: all_gather of parameters in the group.
        tied_all_reduce, tied_reduce: (n,) the same of all weights that other stages use too, which are summed last; the sums above leave
            them out.
        shard, expert_shard: members that share one copy of the states, shape (n,).
        dense, experts, spread: local trainable elements (see `parameters.ELEMENTS`). frozen: without gradient.
            tied: trainable elements that another block owns.
        cuts: of a general plan's device, whose parameters may be cut differently: all of its elements; empty = by `shard`.
    """

    all_reduce: FloatArray
    reduce: FloatArray
    gather: FloatArray
    tied_all_reduce: FloatArray
    tied_reduce: FloatArray
    shard: IntArray
    expert_shard: IntArray
    dense: IntArray
    experts: IntArray
    spread: IntArray
    frozen: IntArray
    tied: IntArray
    cuts: tuple[ShardedElements, ...] = ()


def gradient_bytes(job: TrainingJob, runtime: Runtime) -> int:
    """Bytes of a gradient element on the wire."""
    return (job.gradient_wire or runtime.gradient_wire or runtime.gradient_dtype).bits // 8


def sync_table(
    programs: tuple[BlockProgram, ...],
    *,
    unrouted: tuple[BlockProgram, ...],
    repeats: tuple[int, ...],
    rows: Rows,
    shard: IntArray,
    network: Network,
    job: TrainingJob,
    runtime: Runtime,
    shared: frozenset[str] = frozenset(),
) -> SyncTable:
    """Price every block's synchronisation for every row: never more than what the true groups of `program.stages.contribution` take.

    Elements that more devices sum than those of dp x cp (or edp) are counted and not priced.

    Args:
        shared: parameters that the first and the last chunk use, as ``block.parameter``.
        unrouted: the blocks where experts are cut like the MLP, for rows that copy tokens over tp; empty = no such rows, or no experts.
        repeats: how often the model has each block.
        shard: members of a sharding group, shape (n,), dividing dp x cp (the whole of it for plain ZeRO).

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours: T(bucket) x layer / bucket.
    """
    dense_axes, expert_axes = _sorted(axes_of("dp-cp", rows)), _sorted(axes_of("edp", rows))
    edp = expert_axes[0][0] * expert_axes[1][0]
    # A sharding group of some of the holders has that part of an expert's holders, at least one.
    holders = dense_axes[0][0] * dense_axes[1][0]
    expert_shard = np.gcd(np.maximum(shard * edp // holders, 1), edp)
    groups = (_groups(dense_axes, shard), _groups(expert_axes, expert_shard))
    shape = (len(programs), len(rows))
    tied = {"all_reduce": np.zeros(len(rows)), "reduce": np.zeros(len(rows))}
    total = {name: np.zeros(shape) for name in ("all_reduce", "reduce", "gather")}
    ends = (np.full(len(rows), 2), (rows["pp"] - 1) * rows["s_pp"])
    counts = {name: np.zeros(shape, dtype=np.int64) for name in ELEMENTS}
    wire, stored = gradient_bytes(job, runtime), job.parameter.bits // 8
    local = [parameter_elements(program, rows.degrees(), shared=shared) for program in programs]
    if unrouted:
        others = (parameter_elements(program, rows.degrees(), shared=shared) for program in unrouted)
        copied = tokens_copied(rows)
        local = [{name: np.where(copied, b[name], a[name]) for name in a} for a, b in zip(local, others, strict=True)]
    for index, elements in enumerate(local):
        for name in counts:
            counts[name][index] = elements[name]
        for (inner, outer), part, size in ((groups[0], "dense", shard), (groups[1], "experts", expert_shard)):
            if not elements[part].any():
                continue
            for name, seconds in _layer(elements[part], (inner, outer), size, network, wire, stored, runtime.bucket_bytes).items():
                total[name][index] += seconds
        if elements["shared"].any():
            # Where the first and the last chunk are two ranks' the owner's gradient waits for the other's.
            alone = elements["dense"] - np.where(rows["pp"] > 1, elements["shared"], 0)
            priced = _layer(alone, groups[0], shard, network, wire, stored, runtime.bucket_bytes)
            total["all_reduce"][index], total["reduce"][index] = priced["all_reduce"], priced["reduce"]
            both = (groups[0][0], (*groups[0][1], ends))
            last = _layer(elements["shared"], both, shard, network, wire, stored, runtime.bucket_bytes)
            for name, seconds in tied.items():
                seconds += np.where(rows["pp"] > 1, last[name], 0.0)
    if runtime.zero1_broadcasts:
        # A rank has no more than the whole model, so that each layer's part of the latency is no more than its true one.
        held = {part: np.tensordot(np.array(repeats), counts[part], axes=1).astype(np.float64) for part in ("dense", "experts")}
        total["gather"] = _broadcasts(counts["dense"], held["dense"], groups[0][0], shard, network, stored)
        total["gather"] += _broadcasts(counts["experts"], held["experts"], groups[1][0], expert_shard, network, stored)
    return SyncTable(
        all_reduce=total["all_reduce"],
        reduce=total["reduce"],
        gather=total["gather"],
        tied_all_reduce=tied["all_reduce"],
        tied_reduce=tied["reduce"],
        shard=shard,
        expert_shard=expert_shard,
        dense=counts["dense"],
        experts=counts["experts"],
        spread=counts["spread"],
        frozen=counts["frozen"],
        tied=counts["tied"],
    )


def wire_shares(parts: tuple[tuple[Collective, Span, int], ...], *, network: Network) -> tuple[float, ...]:
    """Share of a device's link on each tier that collectives in a row fill while they run.

    Args:
        parts: kind, span of the one group, bytes.
    """
    sent, spent = np.zeros(len(network.tiers)), 0.0
    for kind, span, volume in parts:
        if int(span.size[0]) == 1:
            continue
        buffer = np.array([float(volume)])
        algorithms = algorithms_for(kind, library=network.library)
        seconds, chosen = collective_seconds(kind, volume=buffer, span=span, algorithms=algorithms)
        spent += float(seconds[0])
        sent += [float(part[0]) for part in algorithms[int(chosen[0])].wire_bytes(kind, volume=buffer, span=span)]
    if not spent:
        return (0.0,) * len(network.tiers)
    return tuple(min(float(b) / (spent * t.bandwidth), 1.0) for b, t in zip(sent, network.tiers, strict=True))


def _sorted(axes: Axes) -> Axes:
    """The two axes of a group, the one with the smaller stride first, row by row."""
    (d0, s0), (d1, s1) = axes
    swap = s1 < s0
    return (np.where(swap, d1, d0), np.where(swap, s1, s0)), (np.where(swap, d0, d1), np.where(swap, s0, s1))


def _groups(axes: Axes, shard: IntArray) -> tuple[Axes, Axes]:
    """Sharding groups (runs of consecutive members) and the groups across them."""
    (d0, s0), (d1, s1) = axes
    in0 = np.gcd(shard, d0)
    in1 = np.gcd(shard // in0, d1)
    return ((in0, s0), (in1, s1)), ((d0 // in0, s0 * in0), (d1 // in1, s1 * in1))


def _layer(
    elements: IntArray, groups: tuple[Axes, Axes], shard: IntArray, network: Network, wire: int, stored: int, bucket: int
) -> dict[str, FloatArray]:
    inner, outer, whole = (
        span_of(network.tiers, axes, in_network_reduction=network.in_network_reduction)
        for axes in (groups[0], groups[1], (*groups[0], *groups[1]))
    )
    gradient = np.maximum(elements * float(wire), float(bucket))
    parameter = np.maximum(elements * float(stored), float(bucket) * stored / wire)
    share = elements * float(wire) / np.maximum(gradient, 1.0)
    scatter = move_seconds(Collective.REDUCE_SCATTER, volume=gradient, span=inner, network=network)
    across = move_seconds(Collective.ALL_REDUCE, volume=gradient / shard, span=outer, network=network)
    return {
        "all_reduce": share * move_seconds(Collective.ALL_REDUCE, volume=gradient, span=whole, network=network),
        "reduce": share * (scatter + across),
        "gather": share * move_seconds(Collective.ALL_GATHER, volume=parameter, span=inner, network=network),
    }


def _broadcasts(elements: IntArray, held: FloatArray, inner: Axes, shard: IntArray, network: Network, stored: int) -> FloatArray:
    """(blocks, n) each layer's part of the broadcasts; see `broadcast_seconds`.

    Args:
        elements: of one layer of each block, (blocks, n).
    """
    span = span_of(network.tiers, inner, in_network_reduction=network.in_network_reduction)
    return elements / np.maximum(held, 1.0) * broadcast_seconds(held, span=span, shard=shard, network=network, stored=stored)


def broadcast_seconds(held: FloatArray, *, span: Span, shard: IntArray, network: Network, stored: int) -> FloatArray:
    """(n,) seconds of one broadcast by every member of a sharding group, one after another: shard x T(held / shard).

    Args:
        held: elements that are shared, (n,). span: of the group. shard: its members. stored: bytes an element.
    """
    return shard * move_seconds(Collective.BROADCAST, volume=held * stored / shard, span=span, network=network)
