"""Replacement of a cluster's catalog rates by the measured rates of a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import (
    Accelerator,
    AttentionRates,
    Evidence,
    GemmRates,
    Origin,
)
from shardwright.hardware.catalog.accelerator_from_data_sheet import accelerator_from_sheet
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator, name_key
from shardwright.hardware.catalog.default_nodes import NIC_ORIGIN, network_card
from shardwright.hardware.cluster import Cluster, Host, NodeGroup, NodeKind
from shardwright.hardware.cluster_expression import fill_nodes, parse_cluster
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.profile.measured_rates import (
    AttentionProfile,
    CollectiveFit,
    GemmProfile,
    Profile,
)
from shardwright.units import GIB, GIGA

# The 80th percentile of a half-normal over its 90th: `achieved_gemm_attention_rates.fitted_gemm`
# uses the same factor for the interval of a fit's p90.
_HALF_WIDTH_OF_P90: Final = 0.78
_ISLAND_KINDS: Final = ("all_gather", "reduce_scatter")
_NO_LINK: Final = Origin(
    evidence=Evidence.ASSUMED, reference="assumed: the profile has no collectives"
)


def profiled_cluster(text: str, profile: Profile) -> Cluster:
    """Cluster of an expression, which may name the profile's own accelerator, at measured rates.

    The expression may name the profile's own accelerator although no catalog has it.

    Args:
        text: see `cluster_expression.parse_cluster`, or NAME:COUNT of an accelerator that only the
            profile knows.

    Raises:
        ClusterError: the expression is wrong, or none of its accelerators is the profile's.
    """
    name, colon, count = text.partition(":")
    if find_accelerator(profile.accelerator) is not None or name_key(name) != name_key(
        profile.accelerator
    ):
        return apply_profile(parse_cluster(text), profile)
    if not (
        colon
        and count.strip().isascii()
        and count.strip().isdigit()
        and 0 < int(count.strip()[:9]) < 10**7
    ):
        raise ClusterError(
            f"{text[:60]!r} needs a count of devices", hint=f"write {profile.accelerator}:1"
        )
    group = fill_nodes(_new_node(profile), num_devices=int(count), name=profile.accelerator)
    return Cluster(expression=text, groups=(group,))


def apply_profile(cluster: Cluster, profile: Profile) -> Cluster:
    """Set a profile's measured rates on all nodes with its accelerator; ClusterError if none has.

    Other nodes stay as they are. GEMM shares of the peaks, attention curves (forward FLOP/s over
    the peak of 16-bit GEMMs), element-wise bandwidth, launch and memory come from the profile where
    it has them. A fit over the devices of an island sets the scale-up link: bandwidth of the
    largest group's all_gather and reduce_scatter, one hop's latency of its all_reduce. A fit over
    whole nodes sets the cards.

    Raises:
        ClusterError: no node of the cluster has the profile's accelerator.
    """
    names = {name_key(profile.accelerator)}
    known = find_accelerator(profile.accelerator)
    if known is not None:
        names.add(name_key(known.name))
    if not any(name_key(g.kind.accelerator.name) in names for g in cluster.groups):
        has = ", ".join(dict.fromkeys(g.kind.accelerator.name for g in cluster.groups))
        raise ClusterError(
            f"the profile is of {profile.accelerator[:60]}, the cluster has {has}",
            hint="give the profile of its accelerator",
        )

    def measured(group: NodeGroup) -> NodeGroup:
        """Node group with measured rates if it has the profile's accelerator, else unchanged."""
        kind = group.kind
        if name_key(kind.accelerator.name) not in names:
            return group
        return replace(
            group,
            kind=_measured_node(
                replace(kind, accelerator=_measured_accelerator(kind.accelerator, profile)), profile
            ),
        )

    return replace(cluster, groups=tuple(measured(g) for g in cluster.groups))


def _measured_accelerator(device: Accelerator, profile: Profile) -> Accelerator:
    """Copy of a device with the GEMM, attention, element-wise and memory rates of the profile."""
    fitted = Origin(evidence=Evidence.FITTED, reference=profile.reference)
    measured = Origin(evidence=Evidence.MEASURED, reference=profile.reference)
    # A dtype that the data sheet lacks takes its best rate as its peak.
    peaks = device.peak_flops + tuple(
        (g.dtype, _best_rate(g, profile)) for g in profile.gemm if not device.peak(g.dtype)
    )
    device = replace(device, peak_flops=peaks)
    gemm = {g.dtype: g for g in device.gemm} | {
        g.dtype: _gemm_rates(g, device, fitted) for g in profile.gemm
    }
    attention = {a.generation: a for a in device.attention} | {
        a.generation: _attention_rates(a, device, measured) for a in profile.attention
    }
    assumed = device.assumed
    if profile.elements is not None:
        assumed = tuple(name for name in assumed if name not in ("element_efficiency", "launch_s"))
        device = replace(
            device,
            element_efficiency=profile.elements.bytes_per_second / device.memory_bandwidth,
            launch_s=profile.elements.launch_s,
        )
    return replace(
        device,
        memory_bytes=profile.memory_bytes or device.memory_bytes,
        gemm=tuple(gemm.values()),
        attention=tuple(attention.values()),
        assumed=assumed,
    )


def _best_rate(gemm: GemmProfile, profile: Profile) -> float:
    """Highest FLOP/s of a dtype in a profile: of measured GEMMs, their fit and attention cores."""
    measured = (2.0 * p.m * p.n * p.k / p.seconds for p in gemm.points)
    # A core's backward has twice its forward's FLOPs.
    cores = (
        rate * max(1.0, 2.0 / a.backward_ratio)
        for a in profile.attention
        if a.dtype is gemm.dtype
        for _, rate in a.curve
    )
    return max(gemm.flops_per_second, *measured, *cores)


def _gemm_rates(gemm: GemmProfile, device: Accelerator, origin: Origin) -> GemmRates:
    """Convert a GEMM profile to efficiencies: measured rates over the device's peaks."""
    return GemmRates(
        dtype=gemm.dtype,
        compute_efficiency=gemm.flops_per_second / device.peak(gemm.dtype),
        memory_efficiency=gemm.bytes_per_second / device.memory_bandwidth,
        overhead_s=gemm.overhead_s,
        exponent=gemm.exponent,
        sustained=gemm.sustained,
        error=round(_HALF_WIDTH_OF_P90 * gemm.error.p90, 3),
        origin=origin,
    )


def _attention_rates(
    attention: AttentionProfile, device: Accelerator, origin: Origin
) -> AttentionRates:
    """Convert an attention profile to shares of the peak of bf16, else fp16, else its own dtype.

    `cost.kernels.problem_accelerator_rates` multiplies the shares with the same peak.
    """
    peak = device.peak(Dtype.BF16) or device.peak(Dtype.FP16) or device.peak(attention.dtype)
    if not peak:
        raise ClusterError(
            f"{device.name} has no peak for attention in {attention.dtype.value}",
            hint="the profile needs GEMM rates in that dtype too",
        )
    return AttentionRates(
        generation=attention.generation,
        forward=tuple((length, rate / peak) for length, rate in attention.curve),
        backward_ratio=attention.backward_ratio,
        origin=origin,
    )


def _measured_node(kind: NodeKind, profile: Profile) -> NodeKind:
    """Copy of a node kind with measured scale-up link, network card and host copies."""
    inside = tuple(c for c in profile.collectives if 1 < c.num_devices <= kind.island)
    across = tuple(
        c
        for c in profile.collectives
        if c.num_devices > kind.island and c.num_devices % kind.num_devices == 0
    )
    origin = Origin(evidence=Evidence.FITTED, reference=profile.reference)
    kind = replace(kind, scale_up=_scale_up_link(kind, inside, origin)) if inside else kind
    kind = replace(kind, nic=_card_link(kind, across, origin)) if across else kind
    host = profile.host
    if host is not None and host.to_device and host.from_device:
        slower = min(host.to_device, host.from_device)
        measured = Origin(evidence=Evidence.MEASURED, reference=profile.reference)
        kind = replace(
            kind,
            host=replace(
                kind.host,
                pcie=replace(
                    kind.host.pcie, efficiency=slower / kind.host.pcie.bandwidth, origin=measured
                ),
            ),
        )
    return kind


def _fits_of_largest_group(
    fits: tuple[CollectiveFit, ...], *kinds: str
) -> tuple[CollectiveFit, ...]:
    """Fits of the named collectives over the most devices that any of them was measured on."""
    chosen = tuple(c for c in fits if c.collective in kinds)
    most = max((c.num_devices for c in chosen), default=0)
    return tuple(c for c in chosen if c.num_devices == most)


def _bus_bandwidth(fits: tuple[CollectiveFit, ...]) -> float:
    """Mean bus bytes/s of largest all_gather and reduce_scatter, else all_reduce; 0.0 if none."""
    chosen = _fits_of_largest_group(fits, *_ISLAND_KINDS) or _fits_of_largest_group(
        fits, "all_reduce"
    )
    return sum(c.large_bandwidth for c in chosen) / len(chosen) if chosen else 0.0


def _scale_up_link(kind: NodeKind, fits: tuple[CollectiveFit, ...], origin: Origin) -> Link:
    """Scale-up link with efficiency and hop latency of the collectives' fits inside an island.

    The bandwidth is derived as for the shipped tables. all_reduce alone does not give the links'
    bandwidth where the switch reduces.
    """
    link = kind.scale_up
    bus = (
        _bus_bandwidth(fits)
        if any(c.collective in _ISLAND_KINDS for c in fits) or not kind.in_network_reduction
        else 0.0
    )
    hops = tuple(
        (c, (2 if c.collective == "all_reduce" else 1) * (c.num_devices - 1)) for c in fits
    )
    ring = [
        (c.num_devices, c.collective == "all_reduce", c.latency_s / n)
        for c, n in hops
        if c.collective in (*_ISLAND_KINDS, "all_reduce")
    ]
    if not bus and not ring:
        return link
    return replace(
        link,
        efficiency=bus / link.bandwidth if bus else link.efficiency,
        latency_s=round(max(ring)[2], 12) if ring else link.latency_s,
        origin=origin,
    )


def _card_link(kind: NodeKind, fits: tuple[CollectiveFit, ...], origin: Origin) -> Link:
    """Network card with efficiency and hop latency of ring collectives over whole nodes.

    All of a node's cards carry the ring's traffic between nodes; of its n - 1 hops, one a node
    crosses them. A ring that its island's links hold back shows only that the cards are no slower;
    the cards then get the measured rate.
    """
    card = kind.nic
    bus = _bus_bandwidth(fits)
    if not bus:
        return card
    chosen = _fits_of_largest_group(fits, "all_gather") or _fits_of_largest_group(
        fits, *_ISLAND_KINDS, "all_reduce"
    )
    fit = chosen[0]
    crossing = fit.num_devices // kind.num_devices - 1
    hops = fit.num_devices - 1
    passes = 2 if fit.collective == "all_reduce" else 1
    hop = (fit.latency_s / passes - (hops - crossing) * kind.scale_up.latency_s) / max(crossing, 1)
    return replace(
        card,
        efficiency=bus / (kind.nics * card.bandwidth),
        latency_s=round(hop, 12) if hop > 0 else card.latency_s,
        origin=origin,
    )


def _new_node(profile: Profile) -> NodeKind:
    """Node kind of an accelerator outside the catalog; ClusterError if the profile lacks rates."""
    if not profile.gemm or profile.elements is None or not profile.memory_bytes:
        raise ClusterError(
            f"{profile.accelerator[:60]} is in no catalog, and its profile lacks GEMM, element-wise"
            " kernels or memory",
            hint=(
                "calibrate it without --collectives-only, or name a catalog accelerator with --name"
            ),
        )
    device = accelerator_from_sheet(
        profile.accelerator,
        vendor="",
        memory_gib=profile.memory_bytes / GIB,
        memory_gb_per_s=profile.elements.bytes_per_second / GIGA,
        peaks=tuple((g.dtype, _best_rate(g, profile)) for g in profile.gemm),
        reference=profile.reference,
        evidence=Evidence.MEASURED,
    )
    device = _measured_accelerator(device, profile)
    # Kernel generations that were not measured run as those that were, not by an assumed curve.
    known = tuple(a for a in device.attention if a.origin.evidence is Evidence.MEASURED)
    host, widest = profile.host, max((c.large_bandwidth for c in profile.collectives), default=GIGA)
    devices = host.num_devices if host else 1
    copies = max(host.to_device, host.from_device) if host else 0.0
    kind = NodeKind(
        name=f"{profile.accelerator}-x{devices}",
        accelerator=replace(device, attention=known or device.attention),
        num_devices=devices,
        island=devices,
        scale_up=Link(latency_s=10e-6, bandwidth=widest, efficiency=1.0, origin=_NO_LINK),
        nics=1,
        nic=network_card(gbit_per_s=10.0, origin=NIC_ORIGIN),
        host=Host(
            memory_bytes=host.memory_bytes if host else 0,
            pcie=Link(
                latency_s=10e-6, bandwidth=copies or 16 * GIGA, efficiency=1.0, origin=_NO_LINK
            ),
        ),
    )
    return _measured_node(kind, profile)
