"""Gradient and parameter synchronisation of one layer of each block, for meshes and sharding groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm import Collective
from shardwright.collectives.choose import collective_seconds
from shardwright.collectives.registry import algorithms_for
from shardwright.collectives.span import Span, span_of
from shardwright.cost.communication import Axes, Network, axes_of, move_seconds, tokens_copied, wire_bytes
from shardwright.cost.degree_rows import Rows
from shardwright.cost.host import OPERATOR_S
from shardwright.cost.parameters import ELEMENTS, KINDS, PASSES, gathered_matrices, parameter_elements, trained_matrices
from shardwright.job.training import TrainingJob
from shardwright.program.block.block import BlockProgram
from shardwright.runtime.runtime import Runtime, Scaling
from shardwright.units import MIB

SUMMED: Final = KINDS
"""Parts of a device's elements that groups of their own sum."""


class ShardedElements(NamedTuple):
    """Elements of one device whose states are cut alike.

    Args:
        optimizer, gradient, parameter: devices that share one copy of each state (1 = whole). Frozen ones have the last alone.
        apart: optimizer states of the device are of elements outside its shard of the parameters.
    """

    elements: int
    optimizer: int
    gradient: int
    parameter: int
    apart: bool = False

    def held(self, level: int) -> int:
        """Elements of the state that ZeRO stage `level` begins to shard: ceil(elements / degree)."""
        return -(-self.elements // (self.optimizer, self.gradient, self.parameter)[level - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncTable:
    """Per mesh row and block: seconds to synchronise one layer; shape (blocks, n).

    Args:
        all_reduce: of gradients over all holders (ZeRO-0).
        reduce: reduce_scatter in the sharding group and all_reduce across groups. gather: all_gather of parameters in the group.
        fetch, scatter: gather and reduce under ZeRO-3, in the runtime's pieces: frozen parameters are gathered too. refetch: the gather
            before the backward, of what has one. parts, reparts: tensors in the lists of a layer's gathers.
        apart: of a reduction, what runs beside other layers' gathers and reductions (`Runtime.sums_replicas_apart`).
        tied_all_reduce, tied_reduce: (n,) the same of all weights that other stages use too, which are summed last; the sums above leave
            them out.
        to_owners, from_owners: of a general plan's device whose parties sum for themselves, once a step: pieces of gradients to the owners
            of optimizer states, and new values from them.
        shard, expert_shard: members that share one copy of the states, shape (n,).
        dense, experts, spread: local trainable elements (see `parameters.ELEMENTS`). frozen: without gradient; frozen_dense,
            frozen_experts: of them those that `shard` and `expert_shard` members have one copy of.
            tied: trainable elements that another block owns. narrow: of dense and experts, those that a recipe of few bits quantises.
        gathered, regathered: elements that ZeRO-3 makes whole before a layer's forward, and before its backward; own_gathered,
            own_regathered: of them the device's own shards; narrow_gathered, narrow_regathered: those that a recipe quantises.
        cuts, frozen_cuts: of a general plan's device, whose parameters may be cut differently: all of its trainable and all of its frozen
            elements; no cuts = by `shard`.
    """

    all_reduce: FloatArray
    reduce: FloatArray
    gather: FloatArray
    fetch: FloatArray
    scatter: FloatArray
    refetch: FloatArray
    parts: FloatArray
    reparts: FloatArray
    apart: FloatArray
    to_owners: FloatArray
    from_owners: FloatArray
    tied_all_reduce: FloatArray
    tied_reduce: FloatArray
    shard: IntArray
    expert_shard: IntArray
    dense: IntArray
    experts: IntArray
    spread: IntArray
    frozen: IntArray
    frozen_dense: IntArray
    frozen_experts: IntArray
    tied: IntArray
    narrow: IntArray
    gathered: IntArray
    regathered: IntArray
    own_gathered: FloatArray
    own_regathered: FloatArray
    narrow_gathered: IntArray
    narrow_regathered: IntArray
    cuts: tuple[ShardedElements, ...] = ()
    frozen_cuts: tuple[ShardedElements, ...] = ()


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
    timed: bool = True,
    lying: tuple[SumSpans, SumSpans] | None = None,
    parts: tuple[str, ...] = SUMMED,
    copies: Axes | None = None,
) -> SyncTable:
    """Price every block's synchronisation for every row: never more than what the true groups of `program.stages.contribution` take.

    Elements that more devices sum than those of dp x cp (or edp) are counted and not priced.

    Args:
        shared: parameters that the first and the last chunk use, as ``block.parameter``.
        unrouted: the blocks where experts are cut like the MLP, for rows that copy tokens over tp; empty = no such rows, or no experts.
        repeats: how often the model has each block. timed: False = elements are counted, and nothing takes time.
        parts: of elements that are priced; all are counted. copies: along which the holders of an expert stand; None = as the rows say.
        shard: members of a sharding group, shape (n,), dividing dp x cp (the whole of it for plain ZeRO).
        lying: the groups that sum dense parameters and experts', where it is known how they lie; None = as strides say.

    A layer below the runtime's bucket size shares its bucket's latency with its neighbours: T(bucket) x layer / bucket.
    """
    dense_axes, expert_axes = _sorted(axes_of("dp-cp", rows)), _sorted(copies or axes_of("edp", rows))
    edp = expert_axes[0][0] * expert_axes[1][0]
    # A sharding group of some of the holders has that part of an expert's holders, at least one.
    holders = dense_axes[0][0] * dense_axes[1][0]
    expert_shard = np.gcd(np.maximum(shard * edp // holders, 1), edp)
    groups = _groups(dense_axes, shard)
    dense, experts = lying or (sum_spans(groups, shard, network), sum_spans(_groups(expert_axes, expert_shard), expert_shard, network))
    groups_of = {"dense": dense, "experts": experts}
    sizes = sum_sizes(job, runtime)
    shape = (len(programs), len(rows))
    tied = {"all_reduce": np.zeros(len(rows)), "reduce": np.zeros(len(rows))}
    total = {name: np.zeros(shape) for name in SYNCS}
    ends = (np.full(len(rows), 2), (rows["pp"] - 1) * rows["s_pp"])
    counts = {name: np.zeros(shape, dtype=np.int64) for name in ELEMENTS}
    local = [parameter_elements(program, rows.degrees(), shared=shared) for program in programs]
    if unrouted:
        others = (parameter_elements(program, rows.degrees(), shared=shared) for program in unrouted)
        copied = tokens_copied(rows)
        local = [{name: np.where(copied, b[name], a[name]) for name in a} for a, b in zip(local, others, strict=True)]
    for index, elements in enumerate(local):
        for name in counts:
            counts[name][index] = elements[name]
        if not timed:
            continue
        program = programs[index]
        for part in parts:
            spans, own, few = groups_of[part], elements[part], elements[f"narrow_{part}"]
            many = trained_matrices(program.operators, experts=part == "experts")
            priced = layer_seconds(own, spans, network, sizes, matrices=many, narrow=few) if own.any() else {}
            ways = gathered_matrices(program.operators, program.constant, experts=part == "experts")
            for name, columns_of, many in zip(PASSES, FETCHES, ways, strict=True):
                own, few = elements[f"{name}_{part}"], elements[f"narrow_{name}_{part}"]
                if own.any():
                    moved = fetch_seconds(own, spans, network, sizes, matrices=many, narrow=few)
                    priced |= dict(zip(columns_of, moved, strict=True))
            for name, seconds in priced.items():
                total[name][index] += seconds
        if elements["shared"].any() and "dense" in parts:
            # Where the first and the last chunk are two ranks' the owner's gradient waits for the other's.
            alone = elements["dense"] - np.where(rows["pp"] > 1, elements["shared"], 0)
            many = trained_matrices(program.operators, experts=False)
            priced = layer_seconds(alone, dense, network, sizes, matrices=many)
            for name in ("all_reduce", "reduce", "scatter", "apart"):
                # Of nothing left there is no collective, not even its latency.
                total[name][index] = np.where(alone > 0, priced[name], 0.0)
            last = layer_seconds(elements["shared"], sum_spans((groups[0], (*groups[1], ends)), shard, network), network, sizes, matrices=1)
            for name, seconds in tied.items():
                seconds += np.where(rows["pp"] > 1, last[name], 0.0)
    if runtime.zero1_broadcasts and timed:
        # A rank has no more than the whole model, so that each layer's part of the latency is no more than its true one.
        held = {part: np.tensordot(np.array(repeats), counts[part], axes=1).astype(np.float64) for part in SUMMED}
        some = (_broadcasts(counts[part], held[part], groups_of[part], network, sizes.stored) for part in parts)
        total["gather"] = sum(some, np.zeros(shape))
    columns: dict[str, Any] = total | {name: np.zeros(shape) for name in OWNERS} | {f"tied_{name}": spent for name, spent in tied.items()}
    columns |= {name: counts[name] for name in ("dense", "experts", "spread", "frozen", "frozen_dense", "frozen_experts", "tied")}
    columns["narrow"] = counts["narrow_dense"] + counts["narrow_experts"]
    columns |= _gathered(counts, shard, expert_shard)
    return SyncTable(**columns, shard=shard, expert_shard=expert_shard)


def _gathered(counts: dict[str, IntArray], shard: IntArray, expert_shard: IntArray) -> dict[str, IntArray | FloatArray]:
    """(blocks, n) elements that ZeRO-3 gathers before each pass, the device's shards of them, and those that a recipe quantises."""
    result: dict[str, IntArray | FloatArray] = {}
    for name, whole in zip(PASSES, ("gathered", "regathered"), strict=True):
        pairs = [(np.where(cut > 1, counts[f"{name}_{kind}"], 0), cut) for kind, cut in zip(KINDS, (shard, expert_shard), strict=True)]
        result[whole] = pairs[0][0] + pairs[1][0]
        few = [np.where(cut > 1, counts[f"narrow_{name}_{kind}"], 0) for kind, cut in zip(KINDS, (shard, expert_shard), strict=True)]
        result[f"narrow_{whole}"] = few[0] + few[1]
        result[f"own_{whole}"] = pairs[0][0] / pairs[0][1] + pairs[1][0] / pairs[1][1]
    return result


SMALLEST_BUCKET_BYTES = 64 * MIB


class SumSpans(NamedTuple):
    """Groups that sum a parameter's gradients: sharding groups of `shard` members, groups across them, and both together."""

    inner: Span
    across: Span
    whole: Span
    shard: IntArray


def sum_spans(groups: tuple[Axes, Axes], shard: IntArray, network: Network) -> SumSpans:
    """Those along axes."""
    axes = (*groups, (*groups[0], *groups[1]))
    spans = [span_of(network.tiers, one, in_network_reduction=network.in_network_reduction) for one in axes]
    return SumSpans(spans[0], spans[1], spans[2], shard)


def wire_shares(groups: SumSpans, *, network: Network, bucket: int) -> FloatArray:
    """(tiers, n) share of a device's link on each tier that reductions of gradients fill while they run.

    Args:
        bucket: the runtime's bytes of a bucket.
    """
    whole = np.full(len(groups.shard), max(bucket, SMALLEST_BUCKET_BYTES), dtype=np.int64)
    sent, spent = np.zeros((len(network.tiers), len(whole))), np.zeros(len(whole))
    parts = (Collective.REDUCE_SCATTER, groups.inner, whole), (Collective.ALL_REDUCE, groups.across, whole // groups.shard)
    for kind, span, volume in parts:
        algorithms, buffer = algorithms_for(kind, library=network.library), volume.astype(np.float64)
        spent += np.where(span.size > 1, collective_seconds(kind, volume=buffer, span=span, algorithms=algorithms)[0], 0.0)
        sent += np.stack(wire_bytes(kind, volume=buffer, span=span, network=network))
    capacity = spent * np.array([[tier.bandwidth] for tier in network.tiers])
    shares: FloatArray = np.minimum(np.divide(sent, capacity, out=np.zeros_like(sent), where=capacity > 0.0), 1.0)
    return shares


def link_shares(rows: Rows, shard: IntArray, *, network: Network, bucket: int) -> FloatArray:
    """(2, tiers, n) `wire_shares` of dense gradients' groups: without sharded states, and in sharding groups of `shard` members."""
    axes = _sorted(axes_of("dp-cp", rows))
    groups = (sum_spans(_groups(axes, members), members, network) for members in (np.ones_like(shard), shard))
    return np.stack([wire_shares(one, network=network, bucket=bucket) for one in groups])


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


class SumSizes(NamedTuple):
    """How gradients and parameters travel.

    Args:
        wire, stored, narrow: bytes of a gradient on the wire, of a parameter, and of one that a recipe of few bits quantises.
        bucket: bytes; smaller layers share a bucket's time.
        gathered: bytes that ZeRO-3 joins matrices up to (0 = a layer, or a bucket). listed: it moves each matrix alone, as a list.
        apart: sums over replicas have a stream of their own.
    """

    wire: int
    stored: int
    narrow: float
    bucket: int
    gathered: int
    listed: bool
    apart: bool


def sum_sizes(job: TrainingJob, runtime: Runtime) -> SumSizes:
    """Those of a job under a runtime."""
    return SumSizes(
        wire=gradient_bytes(job, runtime),
        stored=job.parameter.bits // 8,
        narrow=gathered_bytes(job, runtime),
        bucket=runtime.bucket_bytes,
        gathered=runtime.gather_bucket_bytes,
        listed=runtime.listed_collectives,
        apart=runtime.sums_replicas_apart,
    )


def gathered_bytes(job: TrainingJob, runtime: Runtime) -> float:
    """Bytes on the wire of a gathered parameter that a recipe of 8 bits quantises.

    One where the runtime gathers it so and each element has one form, under a scale a tensor or 128 x 128 elements. MX needs two, along
    rows and along columns: its gather is of 16 bits, into the gradients' buffer, and each member quantises both. In 4 bits nothing is
    gathered narrow.

    Source: Megatron-Core, core/distributed/distributed_data_parallel.py at 0e9fcc1d297d (`start_param_sync`: "cast from bf16 to MXFP8
    during copy"); Megatron-Bridge, training/mixed_precision.py ("fp4_param_gather not supported"); torchtitan, docs/float8.md. All read.
    """
    stored = job.parameter.bits / 8
    one_form = runtime.scaling in (Scaling.DELAYED, Scaling.CURRENT, Scaling.BLOCKWISE)
    return min(stored, 1.0) if runtime.gathers_narrow and one_form and job.compute.bits == 8 else stored


SUMS: Final = ("all_reduce", "reduce", "gather", "scatter", "apart")
FETCHES: Final = (("fetch", "parts"), ("refetch", "reparts"))
SYNCS: Final = (*SUMS, *FETCHES[0], *FETCHES[1])
"""Columns of a `SyncTable` that `layer_seconds` fills, and `fetch_seconds` for each of `PASSES`."""
OWNERS: Final = ("to_owners", "from_owners")
"""Those that `owner_exchange.owner_seconds` fills."""
LISTED_GATHER_OPERATORS, LISTED_REDUCE_OPERATORS = 3, 4
"""Operators for each member: a view of the output (`narrow`), one of the flat buffer and a copy between them; of a gradient `view` too."""


def layer_seconds(
    elements: IntArray | FloatArray,
    groups: SumSpans,
    network: Network,
    sizes: SumSizes,
    *,
    matrices: int,
    narrow: IntArray | FloatArray | int = 0,
) -> dict[str, FloatArray]:
    """Seconds to sum, to reduce into shards, and to gather one layer's trainable elements; `scatter` as ZeRO-3 does, see `_in_lists`.

    Args:
        matrices: that the elements are. narrow: of them those that are quantised in a recipe of few bits.
    """
    gradient = np.maximum(elements * float(sizes.wire), float(sizes.bucket))
    share = elements * float(sizes.wire) / np.maximum(gradient, 1.0)
    scatter = move_seconds(Collective.REDUCE_SCATTER, volume=gradient, span=groups.inner, network=network)
    across = move_seconds(Collective.ALL_REDUCE, volume=gradient / groups.shard, span=groups.across, network=network)
    plain = {
        "all_reduce": share * move_seconds(Collective.ALL_REDUCE, volume=gradient, span=groups.whole, network=network),
        "reduce": share * (scatter + across),
        "gather": _gather_seconds(elements, groups, network, sizes, narrow=narrow),
    }
    scatter = _in_lists(elements, groups, network, sizes, matrices=matrices) if sizes.listed else plain["reduce"]
    return plain | {"scatter": scatter, "apart": share * across * (sizes.apart and _on_other_links(groups))}


def _gather_seconds(
    elements: IntArray | FloatArray, groups: SumSpans, network: Network, sizes: SumSizes, *, narrow: IntArray | FloatArray | int
) -> FloatArray:
    """Seconds of an all_gather of one layer's elements in one piece, or in its part of a bucket of as many elements as gradients have."""
    wire, bucket = float(sizes.wire), float(sizes.bucket)
    stored = sizes.stored - narrow * (sizes.stored - sizes.narrow) / np.maximum(elements, 1)
    parameter = np.maximum(elements * stored, bucket * stored / wire)
    share = elements * wire / np.maximum(np.maximum(elements * wire, bucket), 1.0)
    return np.asarray(share * move_seconds(Collective.ALL_GATHER, volume=parameter, span=groups.inner, network=network))


def fetch_seconds(
    elements: IntArray | FloatArray,
    groups: SumSpans,
    network: Network,
    sizes: SumSizes,
    *,
    matrices: int,
    narrow: IntArray | FloatArray | int = 0,
) -> tuple[FloatArray, FloatArray]:
    """Seconds to gather one layer's elements, trained or not, as ZeRO-3 does, and the tensors in the lists; arguments of `layer_seconds`.

        fetch = V / v x T(v)    v = max(V / matrices, gathered)    of V bytes that are gathered in pieces

    A list has one tensor a member. For each the host calls operators before the collective: `copy_seconds` has those. Leaves out that
    matrices differ in size.

    Source: DeepSpeed, runtime/zero/partitioned_param_coordinator.py (`fetch_sub_module`: the next parameters are prefetched until they
    have `stage3_prefetch_bucket_size` elements) and, before 0.6, runtime/zero/partition_parameters.py (`_allgather_param`: a collective
    a parameter, over a list of views).
    """
    none = np.zeros(np.broadcast_shapes(np.shape(elements), np.shape(groups.shard)))
    if not sizes.gathered and not sizes.listed:
        return _gather_seconds(elements, groups, network, sizes, narrow=narrow), none
    volume = elements * float(sizes.stored)
    piece = np.maximum(volume / matrices, float(sizes.gathered))
    moved = volume / np.maximum(piece, 1.0) * move_seconds(Collective.ALL_GATHER, volume=piece, span=groups.inner, network=network)
    if not sizes.listed:
        return moved, none
    return moved, np.where((groups.shard > 1) & (elements > 0), matrices * groups.shard, 0).astype(np.float64)


def _on_other_links(groups: SumSpans) -> BoolArray:
    """(n,) no tier has several members both of a sharding group and of a group across them: neither slows the other down."""
    pairs = zip(groups.inner.members, groups.across.members, strict=True)
    return np.asarray(~np.any([(inner > 1) & (across > 1) for inner, across in pairs], axis=0), dtype=np.bool_)


def _in_lists(elements: IntArray | FloatArray, groups: SumSpans, network: Network, sizes: SumSizes, *, matrices: int) -> FloatArray:
    """Seconds of ZeRO-3's reductions of one layer, a collective a matrix over a list of views, and of the operators that the host calls for
    each tensor beside it. Leaves out that matrices differ in size.

    Source: DeepSpeed before 0.6, runtime/zero/partition_parameters.py (`_reduce_scatter_gradient`).
    """
    gradient = elements * float(sizes.wire) / matrices
    summed = move_seconds(Collective.REDUCE_SCATTER, volume=gradient, span=groups.inner, network=network)
    summed = summed + move_seconds(Collective.ALL_REDUCE, volume=gradient / groups.shard, span=groups.across, network=network)
    parts = np.where((groups.shard > 1) & (elements > 0), matrices * groups.shard, 0)
    return np.asarray(matrices * summed + parts * (LISTED_REDUCE_OPERATORS * OPERATOR_S), dtype=np.float64)


def _broadcasts(elements: IntArray, held: FloatArray, groups: SumSpans, network: Network, stored: int) -> FloatArray:
    """(blocks, n) each layer's part of the broadcasts; see `broadcast_seconds`.

    Args:
        elements: of one layer of each block, (blocks, n).
    """
    return elements / np.maximum(held, 1.0) * broadcast_seconds(held, groups, network=network, stored=stored)


def broadcast_seconds(held: FloatArray, groups: SumSpans, *, network: Network, stored: int) -> FloatArray:
    """(n,) seconds of one broadcast by every member of a sharding group, one after another: shard x T(held / shard).

    Args:
        held: elements that are shared, (n,). stored: bytes an element.
    """
    shard = groups.shard
    return shard * move_seconds(Collective.BROADCAST, volume=held * stored / shard, span=groups.inner, network=network)
