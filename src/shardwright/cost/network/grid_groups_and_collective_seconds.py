"""Process groups of a grid's axes on network tiers, and seconds of communication in them.

On a uniform cluster.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.collectives.algorithm_registry import CALL_NCCL, OWN_KERNELS, algorithms_for
from shardwright.collectives.cheapest_algorithm import PriceList, collective_seconds, price_list
from shardwright.collectives.groups.span_members_by_network_tier import (
    Span,
    lie_alike,
    span_of,
    span_with,
)
from shardwright.collectives.groups.span_of_device_list import PairRates
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    SAME_LINKS,
    TABLE_ORIGIN,
    CollectiveCurve,
    collective_curves,
    curve_seconds,
)
from shardwright.hardware.catalog.measured_serving_kernels import engine_curves
from shardwright.hardware.cluster import Cluster
from shardwright.hardware.cluster_network_levels import network_units
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.hardware.link_and_network_tier import Link, Tier
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Network as some devices see it: tiers, collective library and measured curves.

    Equal only to itself.

    Args:
        tiers: bandwidth and latency of each level.
        units: units of each level.
        in_network_reduction: their scale-up switches reduce.
        library: collective library whose algorithms run on it.
        curves: measurements of that library inside the island.
        domain: devices that the scale-up switch could join.
        between: bytes/s of a device, and seconds of a message, from each zone to each; None = there
            is one.
    """

    tiers: tuple[Tier, ...]
    units: tuple[Units, ...]
    in_network_reduction: bool
    library: str = "nccl"
    curves: tuple[CollectiveCurve, ...] = ()
    curve_origin: Origin = TABLE_ORIGIN
    domain: int = 1
    between: tuple[PairRates, PairRates] | None = None


def network_of(cluster: Cluster, *, library: str = "nccl") -> Network:
    """Network of a uniform cluster as one device sees it, for a collective library."""
    name, link = cluster.node.accelerator.name, cluster.node.scale_up
    curves = _curves(cluster, library) if library in CALL_NCCL else ()
    return Network(
        tiers=cluster.tiers(),
        units=network_units(cluster),
        in_network_reduction=cluster.node.in_network_reduction,
        library=library,
        curves=curves,
        curve_origin=_curve_origin(name, link, curves),
        domain=cluster.node.island,
    )


def _curves(cluster: Cluster, library: str) -> tuple[CollectiveCurve, ...]:
    """NCCL's measured curves, replaced by those of an engine's own kernels where it has some."""
    engines_curves = (
        engine_curves(cluster.node, library=library.removesuffix("-multimem"))
        if library in OWN_KERNELS
        else ()
    )
    replaced = {(c.collective, c.num_devices) for c in engines_curves}
    return (
        *(
            c
            for c in collective_curves(cluster.node)
            if (c.collective, c.num_devices) not in replaced
        ),
        *engines_curves,
    )


def _curve_origin(name: str, link: Link, curves: tuple[CollectiveCurve, ...]) -> Origin:
    """Origin of the curves: measured on this link, on another part's, or scaled to this link.

    Scaled where the link differs from the catalog's.
    """
    if name in SAME_LINKS:
        return Origin(
            evidence=Evidence.ASSUMED,
            reference=f"links as {SAME_LINKS[name]}; {TABLE_ORIGIN.reference}",
        )
    if any((c.bandwidth, c.latency_s) != (link.achieved, link.latency_s) for c in curves):
        return Origin(
            evidence=Evidence.ASSUMED, reference=f"scaled to this link; {TABLE_ORIGIN.reference}"
        )
    return TABLE_ORIGIN


Axes = tuple[tuple[IntArray, IntArray], ...]


def tokens_copied(rows: DegreeRows) -> BoolArray:
    """(n,) True where tp > 1 without sequence parallelism: every tp rank has the same tokens.

    Experts are cut like the MLP.
    """
    copied: BoolArray = (rows["tp"] > 1) & (rows["sp"] == 0)
    return copied


def axes_of(axis: str, rows: DegreeRows) -> Axes:
    """(degree, device stride) arrays of each mesh axis that the groups along `axis` consist of.

    A mesh axis, or one folded from several.

    `dp-cp`: holders of a dense parameter. `tp-cp`: devices of one replica of a stage; `stage`: all
    devices of one. `ep`, `etp`, `edp`: experts, folded over tp x cp x dp, etp innermost; `coset`:
    both of the first, devices that share experts.
    """
    tp, cp, dp = rows["tp"], rows["cp"], rows["dp"]
    if axis == "tp":
        return ((tp, rows["s_tp"]),)
    if axis == "ulysses":
        return ((rows["ulysses"], rows["s_cp"]),)
    if axis == "ring":
        return ((cp // rows["ulysses"], rows["s_cp"] * rows["ulysses"]),)
    if axis == "dp-cp":
        return ((cp, rows["s_cp"]), (dp, rows["s_dp"]))
    if axis == "tp-cp":
        return ((tp, rows["s_tp"]), (cp, rows["s_cp"]))
    if axis == "stage":
        return ((tp, rows["s_tp"]), (cp, rows["s_cp"]), (dp, rows["s_dp"]))
    if axis == "pp":
        return ((rows["pp"], rows["s_pp"]),)
    if axis == "world":
        return ((tp * cp * dp * rows["pp"], np.ones_like(tp)),)
    if axis == "coset":
        return _folded(rows["ep"] * rows["etp"], np.ones_like(tp), rows)
    start = {"etp": np.ones_like(tp), "ep": rows["etp"], "edp": rows["etp"] * rows["ep"]}[axis]
    copied = tokens_copied(rows)
    edp = tp * cp * dp // (rows["ep"] * rows["etp"])
    if axis == "edp" and bool(copied.any()):
        folded, dense = _folded(edp, rows["etp"] * rows["ep"], rows), axes_of("dp-cp", rows)
        return tuple(
            (np.where(copied, d, f), np.where(copied, s, t))
            for (d, s), (f, t) in zip(dense, folded, strict=True)
        )
    degree = {"etp": rows["etp"], "ep": rows["ep"], "edp": edp}[axis]
    return _folded(degree, start, rows)


def _folded(degree: IntArray, start: IntArray, rows: DegreeRows) -> Axes:
    """Mesh axes of a run of `degree` members with stride `start`, split at the pipeline axis.

    In the stage's own numbering: parts inside and outside the pipeline axis.

    In the stage's own numbering.
    """
    inner = rows["s_pp"]
    below = np.clip(inner // np.maximum(start, 1), 1, degree)
    below = np.where(start >= inner, 1, below)
    above = degree // below
    stride_above = np.maximum(start, inner) * rows["pp"]
    return ((below, start), (above, stride_above))


def spans_along(axis: str, rows: DegreeRows, network: Network) -> tuple[Span, ...]:
    """Spans of the groups along `axis`: one if all groups lie the same way, else each possible one.

    One also where the rows say how the groups lie (`DegreeRows.lying`).

    The least cost over these is a lower bound of every device's cost: where an island's link is
    slower than the network's, a group of one island is not the fastest.
    """
    axes = axes_of(axis, rows)
    most_in_units = rows.lying(axis)
    if most_in_units:
        size = np.prod([degree for degree, _ in axes], axis=0)
        return (
            span_with(
                network.tiers,
                (*most_in_units, size),
                in_network_reduction=network.in_network_reduction,
            ),
        )
    densest = span_of(network.tiers, axes, in_network_reduction=network.in_network_reduction)
    alike = lie_alike(network.tiers, axes)
    if bool(alike.all()):
        return (densest,)
    # The other groups of a row that is not alike may have as many members in a unit as the densest
    # group, down to half as many.
    halves = [int((below[~alike] // 2).max()) for below in densest.below[:-1]]
    fewer = [
        tuple(np.where(alike, 0, members) for members in fewer_members)
        for fewer_members in product(*(range(number + 1) for number in halves))
    ]
    return tuple(
        span_of(
            network.tiers,
            axes,
            in_network_reduction=network.in_network_reduction,
            fewer=fewer_members,
        )
        for fewer_members in fewer
    )


def all_alike(rows: DegreeRows, network: Network) -> BoolArray:
    """(n,) True where all TP, CP and EP groups of a layer lie the same way; DP is not compared.

    Or as the rows say.
    """
    if rows.lying("tp"):
        return np.ones(len(rows), dtype=np.bool_)
    alike: BoolArray = np.all(
        [
            lie_alike(network.tiers, axes_of(axis, rows))
            for axis in ("tp", "ulysses", "ring", "ep", "etp", "coset")
        ],
        axis=0,
    )
    return alike


def move_seconds(
    kind: Collective, *, volume: FloatArray, span: Span, network: Network
) -> FloatArray:
    """Seconds of one collective: the measured curve, else the library's cheapest algorithm.

    Curves are for groups inside an island of a measured size; 0 for groups of one.
    """
    if len(span.size) == 1:
        prices, measured = _prices_of_one_group(kind, span, network)
    else:
        prices, name = (
            price_list(kind, span=span, algorithms=algorithms_for(kind, library=network.library)),
            kind.value,
        )
        measured = tuple(curve for curve in network.curves if curve.collective == name)
    seconds = prices.seconds(volume)[0]
    for curve in measured:
        measured_places = np.flatnonzero(measured_groups(span, curve))
        if measured_places.size:
            bandwidth, latency_s = (
                span.bandwidth[0][measured_places],
                span.latency_s[0][measured_places],
            )
            seconds[measured_places] = curve_seconds(
                curve, volume=volume[measured_places], bandwidth=bandwidth, latency_s=latency_s
            )
    return seconds


def wire_bytes(
    kind: Collective, *, volume: FloatArray, span: Span, network: Network
) -> tuple[FloatArray, ...]:
    """Bytes that the busiest member of each group sends over each tier's links.

    By the algorithm that the library would choose.
    """
    algorithms = algorithms_for(kind, library=network.library)
    _, chosen = collective_seconds(kind, volume=volume, span=span, algorithms=algorithms)
    sent = np.zeros((len(network.tiers), len(span.size)))
    for index in set(chosen.tolist()):
        sent += np.stack(algorithms[index].wire_bytes(kind, volume=volume, span=span)) * (
            (chosen == index) & (span.size > 1)
        )
    return tuple(sent)


def least_seconds(
    kind: Collective, *, volume: FloatArray, spans: tuple[Span, ...], network: Network
) -> FloatArray:
    """(n,) minimum of a collective's seconds (`move_seconds`) over alternative `spans`."""
    return np.asarray(
        np.min(
            [move_seconds(kind, volume=volume, span=span, network=network) for span in spans],
            axis=0,
        )
    )


@lru_cache(maxsize=4096)
def _prices_of_one_group(
    kind: Collective, span: Span, network: Network
) -> tuple[PriceList, tuple[CollectiveCurve, ...]]:
    """Price list of one group, and the curves that were measured for the group (cached).

    The devices of a plan need the same few many times.
    """
    curves = tuple(
        c for c in network.curves if c.collective == kind.value and measured_groups(span, c)[0]
    )
    return price_list(
        kind, span=span, algorithms=algorithms_for(kind, library=network.library)
    ), curves


def measured_groups(span: Span, curve: CollectiveCurve) -> BoolArray:
    """(n,) True for groups that lie in one island and have as many members as `curve`."""
    return np.asarray(
        (span.below[0] == curve.num_devices) & (span.size == curve.num_devices), dtype=np.bool_
    )


def border_seconds(rows: DegreeRows, network: Network, *, volume: FloatArray) -> FloatArray:
    """(tiers, n) seconds of one send of `volume` bytes a device between pipeline ranks.

    Across the border after a rank: one row a tier.
    """
    return np.stack([t.latency_s + volume / t.bandwidth for t in network.tiers])
