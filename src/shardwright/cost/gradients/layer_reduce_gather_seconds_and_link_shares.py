"""Seconds of reducing one layer's gradients and gathering its parameters, and link shares.

A link share is the part of a device's link that a reduction fills.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import algorithms_for
from shardwright.collectives.cheapest_algorithm import collective_seconds
from shardwright.collectives.groups.span_members_by_network_tier import Span, span_of
from shardwright.cost.gradients.gradient_and_parameter_wire_bytes import SumSizes
from shardwright.cost.kernels.accelerator_rates import OPERATOR_S
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Axes,
    Network,
    move_seconds,
    wire_bytes,
)
from shardwright.units import MIB

LISTED_GATHER_OPERATORS, LISTED_REDUCE_OPERATORS = 3, 4
"""Operators for each member: a view of the output (`narrow`), one of the flat buffer and a copy
between them; of a gradient `view` too."""

SMALLEST_BUCKET_BYTES = 64 * MIB
"""Shares of links are computed for buckets of at least this size, where latency takes little of the
time."""


class SumSpans(NamedTuple):
    """Network spans of the groups that sum a parameter's gradients.

    Sharding groups of `shard` members, groups across them, and both together.
    """

    inner: Span
    across: Span
    whole: Span
    shard: IntArray


def sum_spans(groups: tuple[Axes, Axes], shard: IntArray, network: Network) -> SumSpans:
    """Network spans of a sharding group, of the groups across, and of both, from their axes."""
    axes = (*groups, (*groups[0], *groups[1]))
    spans = [
        span_of(network.tiers, axes_of_span, in_network_reduction=network.in_network_reduction)
        for axes_of_span in axes
    ]
    return SumSpans(spans[0], spans[1], spans[2], shard)


def wire_shares(groups: SumSpans, *, network: Network, bucket: int) -> FloatArray:
    """(tiers, n) share of a device's link that a bucket's gradient reduction fills while it runs.

    Args:
        bucket: the runtime's bytes of a bucket.
    """
    bucket_bytes = np.full(len(groups.shard), max(bucket, SMALLEST_BUCKET_BYTES), dtype=np.int64)
    sent, seconds = np.zeros((len(network.tiers), len(bucket_bytes))), np.zeros(len(bucket_bytes))
    parts = (
        (Collective.REDUCE_SCATTER, groups.inner, bucket_bytes),
        (Collective.ALL_REDUCE, groups.across, bucket_bytes // groups.shard),
    )
    for kind, span, volume in parts:
        algorithms, buffer = (
            algorithms_for(kind, library=network.library),
            volume.astype(np.float64),
        )
        seconds += np.where(
            span.size > 1,
            collective_seconds(kind, volume=buffer, span=span, algorithms=algorithms)[0],
            0.0,
        )
        sent += np.stack(wire_bytes(kind, volume=buffer, span=span, network=network))
    capacity = seconds * np.array([[tier.bandwidth] for tier in network.tiers])
    shares: FloatArray = np.minimum(
        np.divide(sent, capacity, out=np.zeros_like(sent), where=capacity > 0.0), 1.0
    )
    return shares


class LayerElements(NamedTuple):
    """Elements of one layer that groups move, the matrices they form, and quantised elements.

    Quantised by a recipe of 8 or 4 bits.
    """

    elements: IntArray | FloatArray
    matrices: int = 1
    narrow: IntArray | FloatArray | int = 0


def layer_sync_seconds(
    moved: LayerElements, groups: SumSpans, network: Network, sizes: SumSizes
) -> dict[str, FloatArray]:
    """{name: seconds} of a layer's collectives; `reduce` contains `apart`, its part on own links.

    `scatter` is the reduction as ZeRO-3 does it, see `_listed_reduction_seconds`.
    """
    elements = moved.elements
    gradient = np.maximum(elements * float(sizes.wire), float(sizes.bucket))
    share = elements * float(sizes.wire) / np.maximum(gradient, 1.0)
    scatter = move_seconds(
        Collective.REDUCE_SCATTER, volume=gradient, span=groups.inner, network=network
    )
    across = move_seconds(
        Collective.ALL_REDUCE, volume=gradient / groups.shard, span=groups.across, network=network
    )
    plain = {
        "all_reduce": (
            share
            * move_seconds(
                Collective.ALL_REDUCE, volume=gradient, span=groups.whole, network=network
            )
        ),
        "reduce": share * (scatter + across),
        "gather": _gather_seconds(moved, groups, network, sizes),
    }
    scatter = (
        _listed_reduction_seconds(moved, groups, network, sizes)
        if sizes.listed
        else plain["reduce"]
    )
    return plain | {
        "scatter": scatter,
        "apart": share * across * (sizes.apart and _on_disjoint_links(groups)),
    }


def _gather_seconds(
    moved: LayerElements, groups: SumSpans, network: Network, sizes: SumSizes
) -> FloatArray:
    """Seconds of the all-gather of one layer's elements, in one piece or as part of a bucket.

    The bucket has as many elements as that of the gradients.
    """
    elements, wire, bucket = moved.elements, float(sizes.wire), float(sizes.bucket)
    stored = sizes.stored - moved.narrow * (sizes.stored - sizes.narrow) / np.maximum(elements, 1)
    parameter = np.maximum(elements * stored, bucket * stored / wire)
    share = elements * wire / np.maximum(np.maximum(elements * wire, bucket), 1.0)
    return np.asarray(
        share
        * move_seconds(Collective.ALL_GATHER, volume=parameter, span=groups.inner, network=network)
    )


def fetch_seconds(
    moved: LayerElements, groups: SumSpans, network: Network, sizes: SumSizes
) -> tuple[FloatArray, FloatArray]:
    """Seconds of ZeRO-3's all-gather of one layer, and tensors in its gather lists (else 0).

    Elements are trained or not.

        fetch = V / v x T(v)    v = max(V / matrices, gathered)

    of V bytes that are gathered in pieces.

    A list has one tensor a member. For each the host calls operators before the collective:
    `copy_seconds` has those. Leaves out that matrices differ in size.

    Source: DeepSpeed, runtime/zero/partitioned_param_coordinator.py (`fetch_sub_module`: the next
    parameters are prefetched until they have `stage3_prefetch_bucket_size` elements) and, before
    0.6, runtime/zero/partition_parameters.py (`_allgather_param`: a collective a parameter, over a
    list of views).
    """
    elements, matrices = moved.elements, moved.matrices
    no_tensors = np.zeros(np.broadcast_shapes(np.shape(elements), np.shape(groups.shard)))
    if not sizes.gathered and not sizes.listed:
        return _gather_seconds(moved, groups, network, sizes), no_tensors
    volume = elements * float(sizes.stored)
    piece = np.maximum(volume / matrices, float(sizes.gathered))
    spent = (
        volume
        / np.maximum(piece, 1.0)
        * move_seconds(Collective.ALL_GATHER, volume=piece, span=groups.inner, network=network)
    )
    if not sizes.listed:
        return spent, no_tensors
    return spent, np.where((groups.shard > 1) & (elements > 0), matrices * groups.shard, 0).astype(
        np.float64
    )


def _on_disjoint_links(groups: SumSpans) -> BoolArray:
    """(n,) True where no network tier has several members of a sharding group and of one across."""
    pairs = zip(groups.inner.members, groups.across.members, strict=True)
    return np.asarray(
        ~np.any([(inner > 1) & (across > 1) for inner, across in pairs], axis=0), dtype=np.bool_
    )


def _listed_reduction_seconds(
    moved: LayerElements, groups: SumSpans, network: Network, sizes: SumSizes
) -> FloatArray:
    """Seconds of ZeRO-3's reductions of one layer, one collective a matrix over a list of views.

    With the operators that the host calls for each tensor.

    Leaves out that matrices differ in size. Source: DeepSpeed before 0.6,
    runtime/zero/partition_parameters.py (`_reduce_scatter_gradient`).
    """
    elements, matrices = moved.elements, moved.matrices
    gradient = elements * float(sizes.wire) / matrices
    summed = move_seconds(
        Collective.REDUCE_SCATTER, volume=gradient, span=groups.inner, network=network
    )
    summed = summed + move_seconds(
        Collective.ALL_REDUCE, volume=gradient / groups.shard, span=groups.across, network=network
    )
    parts = np.where((groups.shard > 1) & (elements > 0), matrices * groups.shard, 0)
    return np.asarray(
        matrices * summed + parts * (LISTED_REDUCE_OPERATORS * OPERATOR_S), dtype=np.float64
    )


def broadcast_seconds(
    held: FloatArray, groups: SumSpans, *, network: Network, stored: int
) -> FloatArray:
    """(n,) seconds in which each member broadcasts its shard of `held` elements in turn (ZeRO-1).

    shard x T(held / shard).

    Args:
        held: elements that are shared, (n,).
        stored: bytes an element.
    """
    shard = groups.shard
    return shard * move_seconds(
        Collective.BROADCAST, volume=held * stored / shard, span=groups.inner, network=network
    )
