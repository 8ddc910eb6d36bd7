"""Cloud instances as nodes: ``aws-p5.48xlarge``, ``azure-nd96isr-h100-v5``, ``gcp-a3-megagpu-8g``.

Network totals and card counts are from the clouds' own pages and lists; scale-up links and hosts
are those of the accelerator's usual node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

from shardwright.hardware.catalog.catalog import accelerator, name_key
from shardwright.hardware.catalog.nodes import network_card, node_of, nvlink_bridge
from shardwright.hardware.cluster import NodeKind
from shardwright.hardware.device import Evidence, Origin


class InstanceRow(NamedTuple):
    """An instance: accelerator, devices, island (0 = all its devices), cards, Gb/s of all cards,
    where from, scale-up GB/s.

    Scale-up 0 is the accelerator's usual link.
    """

    accelerator: str
    num_devices: int
    island: int
    nics: int
    total_gbit_per_s: float
    source: str
    scale_up_gb_per_s: float = 0.0


_AWS: Final = "karpenter-provider-aws generated bandwidth and VPC limits"
_AZURE: Final = "learn.microsoft.com size page"
_AZURE_MEMORY: Final = "Azure size page, from memory"
_GCP: Final = "cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"

_ROWS: Final[dict[str, InstanceRow]] = {
    "aws-p3.8xlarge": InstanceRow("v100-sxm-16gb", 4, 4, 1, 10, _AWS),
    "aws-p3.16xlarge": InstanceRow("v100-sxm-16gb", 8, 8, 1, 25, _AWS),
    "aws-p3dn.24xlarge": InstanceRow("v100-sxm-32gb", 8, 8, 1, 100, _AWS),
    "aws-p4d.24xlarge": InstanceRow("a100-sxm-40gb", 8, 8, 4, 400, _AWS),
    "aws-p4de.24xlarge": InstanceRow("a100-sxm-80gb", 8, 8, 4, 400, _AWS),
    "aws-p5.48xlarge": InstanceRow("h100-sxm", 8, 8, 32, 3200, _AWS),
    "aws-p5e.48xlarge": InstanceRow("h200-sxm", 8, 8, 32, 3200, _AWS),
    "aws-p5en.48xlarge": InstanceRow("h200-sxm", 8, 8, 16, 3200, _AWS),
    "aws-p6-b200.48xlarge": InstanceRow("b200-sxm", 8, 8, 8, 3200, _AWS),
    "aws-p6-b300.48xlarge": InstanceRow(
        "b300-sxm", 8, 8, 16, 6400, f"{_AWS} (17 cards; one taken as front end)"
    ),
    "aws-p6e-gb200.36xlarge": InstanceRow(
        "gb200-nvl72", 4, 72, 4, 3200, f"{_AWS}; devices and cards from memory"
    ),
    "aws-g4dn.12xlarge": InstanceRow("t4", 4, 4, 1, 50, "AWS instance page, from memory"),
    "aws-g5.48xlarge": InstanceRow("a10g", 8, 0, 1, 100, _AWS),
    "aws-g6.48xlarge": InstanceRow("l4", 8, 0, 1, 100, _AWS),
    "aws-g6e.48xlarge": InstanceRow("l40s", 8, 0, 4, 400, _AWS),
    "aws-trn1.32xlarge": InstanceRow("trainium-1", 16, 16, 8, 800, _AWS),
    "aws-trn1n.32xlarge": InstanceRow("trainium-1", 16, 16, 16, 1600, _AWS),
    "aws-trn2.48xlarge": InstanceRow("trainium-2", 16, 16, 16, 3200, f"{_AWS}; cards from memory"),
    "aws-trn2u.48xlarge": InstanceRow("trainium-2", 16, 64, 16, 3200, f"{_AWS}; cards from memory"),
    "azure-nd40rs-v2": InstanceRow("v100-sxm-32gb", 8, 8, 1, 100, _AZURE_MEMORY),
    "azure-nd96asr-v4": InstanceRow("a100-sxm-40gb", 8, 8, 8, 1600, _AZURE),
    "azure-nd96amsr-a100-v4": InstanceRow("a100-sxm-80gb", 8, 8, 8, 1600, _AZURE),
    "azure-nd96isr-h100-v5": InstanceRow("h100-sxm", 8, 8, 8, 3200, _AZURE),
    "azure-nd96isr-h200-v5": InstanceRow("h200-sxm", 8, 8, 8, 3200, _AZURE_MEMORY),
    "azure-nd96isr-mi300x-v5": InstanceRow(
        "mi300x", 8, 8, 8, 3200, "MicrosoftDocs/azure-docs nd-mi300x-v5-series"
    ),
    "azure-nd128isr-ndr-gb200-v6": InstanceRow("gb200-nvl72", 4, 72, 4, 1600, _AZURE),
    "azure-nc80adis-h100-v5": InstanceRow("h100-nvl", 2, 2, 1, 80, _AZURE_MEMORY),
    "azure-nc96ads-a100-v4": InstanceRow(
        "a100-pcie-80gb", 4, 2, 1, 80, f"{_AZURE_MEMORY}; NVLink bridges join pairs", 300
    ),
    "gcp-a2-highgpu-8g": InstanceRow("a100-sxm-40gb", 8, 8, 1, 100, _GCP),
    "gcp-a2-ultragpu-8g": InstanceRow("a100-sxm-80gb", 8, 8, 1, 100, _GCP),
    "gcp-a2-megagpu-16g": InstanceRow("a100-sxm-40gb", 16, 16, 1, 100, _GCP),
    "gcp-a3-edgegpu-8g": InstanceRow(
        "h100-sxm", 8, 8, 4, 600, f"{_GCP} (excerpts disagree: 600 or 800 Gb/s)"
    ),
    "gcp-a3-highgpu-8g": InstanceRow("h100-sxm", 8, 8, 4, 800, _GCP),
    "gcp-a3-megagpu-8g": InstanceRow("h100-sxm", 8, 8, 8, 1600, _GCP),
    "gcp-a3-ultragpu-8g": InstanceRow("h200-sxm", 8, 8, 8, 3200, _GCP),
    "gcp-a4-highgpu-8g": InstanceRow("b200-sxm", 8, 8, 8, 3200, _GCP),
    "gcp-a4x-highgpu-4g": InstanceRow("gb200-nvl72", 4, 72, 4, 1600, _GCP),
    "gcp-a4x-maxgpu-4g-metal": InstanceRow(
        "gb300-nvl72", 4, 72, 4, 3200, f"{_GCP}; name from memory"
    ),
    "gcp-g2-standard-96": InstanceRow("l4", 8, 0, 1, 100, _GCP),
}


def _index() -> Mapping[str, str]:
    keys = {name_key(name): name for name in _ROWS}
    for name in _ROWS:
        cloud, _, rest = name.partition("-")
        if cloud == "azure":
            keys[name_key(f"azure-standard-{rest}")] = name
            keys[name_key(f"standard-{rest}")] = name
        else:
            keys.setdefault(name_key(rest), name)
    return MappingProxyType(keys)


_BY_KEY: Final = _index()


def instance_names() -> tuple[str, ...]:
    """Names of all cloud instances, sorted; the cloud's prefix may be left out when writing one."""
    return tuple(sorted(_ROWS))


def find_instance(name: str) -> NodeKind | None:
    """The instance called `name` as a node; None if there is none."""
    known = _BY_KEY.get(name_key(name))
    return None if known is None else _instance(known)


@cache
def _instance(name: str) -> NodeKind:
    row = _ROWS[name]
    usual = node_of(accelerator(row.accelerator))
    origin = Origin(
        evidence=Evidence.PUBLISHED,
        reference=f"{row.source}; 0.8 of the line rate and 10 us assumed",
    )
    scale_up = usual.scale_up
    if row.scale_up_gb_per_s:
        scale_up = nvlink_bridge(gb_per_s=row.scale_up_gb_per_s, latency_s=scale_up.latency_s)
    return replace(
        usual,
        name=name,
        num_devices=row.num_devices,
        island=row.island or row.num_devices,
        scale_up=scale_up,
        nics=row.nics,
        nic=network_card(gbit_per_s=row.total_gbit_per_s / row.nics, origin=origin),
    )
