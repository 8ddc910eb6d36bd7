"""Seconds and bytes of sending tokens to their experts in a network."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.groups.span_members_by_network_tier import Span


def volume_with_rows(volume: FloatArray, *, rows: int, span: Span) -> FloatArray:
    """(n,) dispatched bytes: `volume`, x `rows` x island members / group members where `rows` > 1.

    volume x rows x islanders / members.

    Args:
        volume: bytes of all copies, shape (n,).
        rows: see `Move.rows`.
    """
    return volume if rows == 1 else volume * rows * span.below[0] / span.size


def dispatch_seconds(
    *, volume: FloatArray, copies: int, span: Span, groups: tuple[int, int] = (0, 0)
) -> FloatArray:
    """Seconds to send tokens to their experts (or back), one copy for each device.

    And one copy for each unit of the network on the way.

        t = sum of latencies of the tiers crossed
            + max over tiers k of volume / copies x D(u_k) (1 - 1/m) / bandwidth_k
        D(u) = u (1 - (1 - 1/u)^copies)

    D(u) is the mean number of different units, of u, that contain `copies` experts chosen at
    random; u_0 is the group's size with m its members in the island, u_k the group's units below
    tier k with m = u_k. A copy that reached a unit is passed on inside it. Where a token's experts
    lie in some `groups` of experts only, u is the number of units that hold these
    (`_units_with_expert_groups`).

    Args:
        volume: bytes of all copies, shape (n,).
        copies: experts a token visits.
        groups: see `Move.groups`.

    Leaves out: DeepEP's notification before the tokens, imbalance, multiprocessors that the kernel
    takes. Source: DeepSeek-AI, DeepEP (github.com/deepseek-ai/DeepEP): forwarding from network to
    NVLink inside a node.
    """
    seconds, latency_s = np.zeros_like(volume), np.zeros_like(volume)
    sent = dispatch_bytes(volume=volume, copies=copies, span=span, groups=groups)
    for moved, members, bandwidth, hop in zip(
        sent, span.members, span.bandwidth, span.latency_s, strict=True
    ):
        seconds = np.maximum(seconds, moved / bandwidth)
        latency_s = latency_s + np.where(members > 1, hop, 0.0)
    return seconds + latency_s


def dispatch_bytes(
    *, volume: FloatArray, copies: int, span: Span, groups: tuple[int, int] = (0, 0)
) -> tuple[FloatArray, ...]:
    """Bytes that a device sends over each tier's links in a deduplicated token dispatch.

    A copy of a token for each device, or unit, that it goes to (`dispatch_seconds`).
    """
    size = span.size.astype(np.float64)
    token, below = volume / copies, np.ones_like(size)
    sent: list[FloatArray] = []
    for tier, (members, count) in enumerate(zip(span.members, span.below, strict=True)):
        units = size if tier == 0 else size / below
        beyond = 1.0 - 1.0 / (members if tier == 0 else units)
        open_to = _units_with_expert_groups(units, groups)
        reached = open_to * (1.0 - (1.0 - 1.0 / open_to) ** copies)
        sent.append(np.where(members > 1, token * reached * beyond, 0.0))
        below = count.astype(np.float64)
    return tuple(sent)


def _units_with_expert_groups(units: FloatArray, groups: tuple[int, int]) -> FloatArray:
    """(n,) mean number of network units that hold some of a token's expert groups.

    Of `units` with equal runs of experts.

    M of G groups without replacement: units x M / G where a group spans units, else units x (1 -
    prod_{i < M} (1 - q / (G - i))) with q = G / units groups a unit. Experts lie in their groups'
    order, as every framework assigns them.
    """
    limit, total = groups
    if not limit:
        return units
    missed, groups_a_unit = np.ones_like(units), total / units
    for taken in range(limit):
        missed = missed * np.maximum(1.0 - groups_a_unit / (total - taken), 0.0)
    return np.asarray(
        np.maximum(np.where(units >= total, units * limit / total, units * (1.0 - missed)), 1.0)
    )
