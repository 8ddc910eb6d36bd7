"""A cluster as the text of a cluster file that loads as the same cluster: every number written out,
catalog accelerators by name."""

from __future__ import annotations

import math

import yaml

from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Accelerator, AttentionRates, GemmRates, Origin
from shardwright.hardware.catalog.accelerators_by_name import find_accelerator
from shardwright.hardware.cluster import Cluster, FabricTier, Host, NodeGroup
from shardwright.hardware.link_and_network_tier import Link
from shardwright.units import GIB, scale_decimal


def dump_cluster(cluster: Cluster) -> str:
    return yaml.safe_dump(
        cluster_record(cluster),
        sort_keys=False,
        default_flow_style=None,
        width=140,
        allow_unicode=True,
    )


def cluster_record(cluster: Cluster) -> dict[str, object]:
    """`cluster` as nested dicts and lists; accelerators that differ from the catalog's of that name
    are written out."""
    own: dict[str, Accelerator] = {}
    for group in cluster.groups:
        device = group.kind.accelerator
        if find_accelerator(device.name) == device:
            continue
        if own.setdefault(device.name, device) != device:
            raise ClusterError(
                f"two different accelerators are called {device.name}", hint="rename one of them"
            )
    record: dict[str, object] = {"name": cluster.expression[:200] or "cluster"}
    if own:
        record["accelerators"] = {name: _accelerator(device) for name, device in own.items()}
    record["nodes"] = [_nodes(group) for group in cluster.groups]
    if cluster.fabric:
        record |= {
            "fabric": [_tier(tier) for tier in cluster.fabric],
            "fabric_origin": _origin(cluster.fabric_origin),
        }
    said = cluster.reliability
    stated = {
        "failures_per_device_hour": said.failures_per_device_hour,
        "storage_gigabytes_per_s": (
            _in_unit(said.storage_bandwidth, 9) if said.storage_bandwidth else None
        ),
        "restart_s": said.restart_s,
    }
    if any(value is not None for value in stated.values()):
        record["reliability"] = {
            key: value for key, value in stated.items() if value is not None
        } | {"origin": _origin(said.origin)}
    return record


def _in_unit(value: float, power: int) -> float:
    """`value` in units of 10^power, so that reading it back gives `value` again where a float
    can."""
    near = scale_decimal(value, -power)
    candidates = (near, math.nextafter(near, math.inf), math.nextafter(near, 0.0))
    return next((c for c in candidates if scale_decimal(c, power) == value), near)


def _origin(origin: Origin) -> dict[str, object]:
    return {"evidence": origin.evidence.value, "reference": origin.reference}


def _link(link: Link) -> dict[str, object]:
    record: dict[str, object] = {
        "latency_us": _in_unit(link.latency_s, -6),
        "bandwidth_gigabytes_per_s": _in_unit(link.bandwidth, 9),
        "efficiency": link.efficiency,
        "origin": _origin(link.origin),
    }
    if link.reverse_bandwidth:
        record["reverse_bandwidth_gigabytes_per_s"] = _in_unit(link.reverse_bandwidth, 9)
    return record


def _host(host: Host) -> dict[str, object]:
    record: dict[str, object] = {
        "memory_gib": host.memory_bytes / GIB,
        "memory_gigabytes_per_s": _in_unit(host.memory_bandwidth, 9),
        "pcie": _link(host.pcie),
        "nvme_gib": host.nvme_bytes / GIB,
        "nvme_gigabytes_per_s": _in_unit(host.nvme_bandwidth, 9),
    }
    if host.origin is not None:
        record["origin"] = _origin(host.origin)
    return record


def _gemm(rates: GemmRates) -> dict[str, object]:
    return {
        "compute_efficiency": rates.compute_efficiency,
        "memory_efficiency": rates.memory_efficiency,
        "overhead_us": _in_unit(rates.overhead_s, -6),
        "exponent": rates.exponent,
        "sustained": rates.sustained,
        "error": rates.error,
        "origin": _origin(rates.origin),
    }


def _attention(rates: AttentionRates) -> dict[str, object]:
    return {
        "forward": dict(rates.forward),
        "backward_ratio": rates.backward_ratio,
        **({"reach": rates.reach} if rates.reach != 1.0 else {}),
        **({"long_run": True} if rates.long_run else {}),
        **({"backward": [list(b) for b in rates.backward]} if rates.backward else {}),
        "origin": _origin(rates.origin),
    }


def _accelerator(device: Accelerator) -> dict[str, object]:
    record: dict[str, object] = {
        "vendor": device.vendor,
        "memory_gib": device.memory_bytes / GIB,
        "memory_bandwidth_gigabytes_per_s": _in_unit(device.memory_bandwidth, 9),
        "peak_tflops": {dtype.value: _in_unit(flops, 12) for dtype, flops in device.peak_flops},
        "gemm": {g.dtype.value: _gemm(g) for g in device.gemm},
        "attention": {a.generation: _attention(a) for a in device.attention},
        "element_efficiency": device.element_efficiency,
        "launch_us": _in_unit(device.launch_s, -6),
        "overlap_slowdown": device.overlap_slowdown,
        "failures_per_device_hour": device.failures_per_device_hour,
        "assumed": list(device.assumed),
        "aliases": list(device.aliases),
        "origin": _origin(device.origin),
    }
    if device.failures_origin is not None:
        record["failures_origin"] = _origin(device.failures_origin)
    return record


def _nodes(group: NodeGroup) -> dict[str, object]:
    kind = group.kind
    return {
        "accelerator": kind.accelerator.name,
        "name": kind.name,
        "count": group.count,
        "devices_per_node": kind.num_devices,
        "island_devices": kind.island,
        "scale_up": _link(kind.scale_up),
        "nics": kind.nics,
        "nic": _link(kind.nic),
        "host": _host(kind.host),
        "in_network_reduction": kind.in_network_reduction,
        "node_tiers": [
            {"name": tier.name, "devices": tier.num_devices, **_link(tier.link)}
            for tier in kind.node_tiers
        ],
    }


def _tier(tier: FabricTier) -> dict[str, object]:
    return {
        "name": tier.name,
        "devices": tier.num_devices,
        "oversubscription": tier.oversubscription,
        "latency_us": _in_unit(tier.latency_s, -6),
        "rails": tier.rails,
    }
