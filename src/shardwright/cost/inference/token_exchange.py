"""Seconds of dispatch and combine of tokens by the library that moves them to experts."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import algorithm_named
from shardwright.collectives.groups.span_members_by_network_tier import Span
from shardwright.cost.network.expert_dispatch_seconds import dispatch_seconds
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    Network,
    measured_groups,
    move_seconds,
)
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import curve_seconds
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import (
    NORMAL_COMBINE_HOPS,
    NORMAL_DISPATCH_HOPS,
)


class TokenExchange(StrEnum):
    """Libraries and kernels that move tokens to experts.

    GATHERED: all tokens to all members, sums back (all_gather, reduce_scatter; "AgRs"). ALL_TO_ALL:
    the library's, a copy for each expert. LOW_LATENCY, NORMAL: DeepEP's kernels for decoding (a
    copy for each expert) and for prompts (a copy for each device, passed on inside a node).
    ONE_SIDED: TensorRT-LLM's, a copy for each device, over the island's switch alone.
    """

    GATHERED = "gathered"
    ALL_TO_ALL = "all-to-all"
    LOW_LATENCY = "low-latency"
    NORMAL = "normal"
    ONE_SIDED = "one-sided"


def dispatch_and_combine_seconds(
    exchange: TokenExchange,
    *,
    tokens: IntArray | FloatArray,
    hidden: int,
    topk: int,
    span: Span,
    network: Network,
    sent: float = 2.0,
    returned: float = 2.0,
    groups: tuple[int, int] = (0, 0),
) -> tuple[FloatArray, FloatArray]:
    """(n,) seconds each of the dispatch and of the combine; 0 for groups of one member.

    Neither falls with tokens.

        GATHERED      all_gather and reduce_scatter of tokens x members x hidden
        ALL_TO_ALL    all_to_all of tokens x topk x hidden, both ways
        LOW_LATENCY   `serving_engine_token_all_to_all`, tokens x topk x hidden
        NORMAL        hops latency_0 + `expert_dispatch_seconds`, tokens x topk x hidden
        ONE_SIDED     `serving_engine_token_all_to_all`,
                      tokens x devices reached x hidden; NORMAL where a group leaves the island

    devices reached: n (1 - (1 - 1/n)^topk). Where the network has measured curves of the library
    (``network_of(cluster, library="deepep")`` or ``"one-sided"``) for groups of that size in an
    island these are used, by the bytes of all copies that go to devices of their own.

    Args:
        tokens: of each member.
        span: the groups.
        sent, returned: bytes of an element in dispatch (1 in 8 bits) and in combine.
        groups: see `expert_dispatch_seconds.dispatch_seconds`.

    Leaves out: members with more tokens than others (scale `tokens`), scales beside narrow
    elements, multiprocessors that kernels hold. Source: tables of aiconfigurator-core 0.12.0
    (DeepEP of SGLang, all-to-all of TensorRT-LLM on GB200), docs/serving-kernels.md.
    """
    count = np.asarray(tokens, dtype=np.float64)
    size = span.size.astype(np.float64)
    seconds_both_ways = []
    for way, element in (("dispatch", sent), ("combine", returned)):
        bytes_of_tokens = count * hidden * element
        copies = bytes_of_tokens * topk
        if exchange is TokenExchange.GATHERED:
            kind = Collective.ALL_GATHER if way == "dispatch" else Collective.REDUCE_SCATTER
            seconds_both_ways.append(
                move_seconds(kind, volume=bytes_of_tokens * size, span=span, network=network)
            )
            continue
        if exchange is TokenExchange.ALL_TO_ALL:
            seconds_both_ways.append(
                move_seconds(Collective.ALL_TO_ALL, volume=copies, span=span, network=network)
            )
            continue
        spent = _by_kernels(
            exchange, way, bytes_of_tokens=bytes_of_tokens, topk=topk, span=span, groups=groups
        )
        reached = (
            copies
            if exchange is TokenExchange.LOW_LATENCY
            else bytes_of_tokens * devices_reached(size, topk)
        )
        seconds_both_ways.append(
            _with_measured_curves(
                f"{exchange.value}-{way}", spent, volume=reached, span=span, network=network
            )
        )
    return seconds_both_ways[0], seconds_both_ways[1]


def devices_reached(members: FloatArray, topk: int) -> FloatArray:
    """Mean number of distinct members that hold a token's `topk` experts, chosen at random.

    Of n members: n (1 - (1 - 1/n)^k).
    """
    return np.asarray(members * (1.0 - (1.0 - 1.0 / members) ** topk), dtype=np.float64)


def _by_kernels(
    exchange: TokenExchange,
    way: str,
    *,
    bytes_of_tokens: FloatArray,
    topk: int,
    span: Span,
    groups: tuple[int, int],
) -> FloatArray:
    """(n,) seconds of a dispatch or combine by DeepEP's or TensorRT-LLM's kernels."""
    has_peers = span.size > 1
    if exchange is TokenExchange.LOW_LATENCY:
        spent = algorithm_named("low_latency").seconds(
            Collective.ALL_TO_ALL, volume=bytes_of_tokens * topk, span=span
        )
        return np.where(has_peers, spent, 0.0)
    hops = NORMAL_DISPATCH_HOPS if way == "dispatch" else NORMAL_COMBINE_HOPS
    start = np.where(has_peers, hops * span.latency_s[0], 0.0)
    normal = start + dispatch_seconds(
        volume=bytes_of_tokens * topk, copies=topk, span=span, groups=groups
    )
    if exchange is TokenExchange.NORMAL:
        return np.asarray(normal, dtype=np.float64)
    reached = bytes_of_tokens * devices_reached(span.size.astype(np.float64), topk)
    inside = algorithm_named("one_sided").seconds(Collective.ALL_TO_ALL, volume=reached, span=span)
    return np.where(np.isfinite(inside), inside, normal)


def _with_measured_curves(
    name: str, seconds: FloatArray, *, volume: FloatArray, span: Span, network: Network
) -> FloatArray:
    """(n,) `seconds`, replaced by the measured curve for groups that were measured."""
    with_curves = np.array(np.broadcast_arrays(seconds, volume)[0], dtype=np.float64)
    spread = np.broadcast_to(volume, with_curves.shape)
    for curve in (c for c in network.curves if c.collective == name):
        measured_places = np.flatnonzero(
            np.broadcast_to(measured_groups(span, curve), with_curves.shape)
        )
        if measured_places.size:
            bandwidth, latency_s = (
                np.broadcast_to(a, with_curves.shape)[measured_places]
                for a in (span.bandwidth[0], span.latency_s[0])
            )
            with_curves[measured_places] = curve_seconds(
                curve, volume=spread[measured_places], bandwidth=bandwidth, latency_s=latency_s
            )
    return with_curves
