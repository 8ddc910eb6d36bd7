"""Cloud instances as nodes: ``aws-p5.48xlarge``, ``azure-nd96isr-h100-v5``, ``gcp-a3-megagpu-8g``.

Network totals and card counts are from the clouds' own pages and lists; scale-up links and hosts
are those of the accelerator's default node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Final

from shardwright.hardware.accelerator import Evidence, Origin
from shardwright.hardware.catalog.accelerators_by_name import accelerator, name_key
from shardwright.hardware.catalog.default_nodes import default_node, network_card, nvlink_bridge
from shardwright.hardware.cluster import NodeKind
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """A cloud instance: accelerator, number of devices, and network cards with their rate.

    Args:
        accelerator: name in the catalog.
        island: devices of a scale-up domain, of one instance or of several.
        cards: network cards of the instance.
        gbit_per_s: line rate of all cards together, 10^9 bits/s.
        source: of devices, cards and their rate.
        scale_up_gb_per_s: of an NVLink bridge; 0 = the accelerator's usual link.
    """

    accelerator: str
    devices: int
    island: int
    cards: int
    gbit_per_s: float
    source: str
    scale_up_gb_per_s: float = 0.0


_AWS: Final = "karpenter-provider-aws generated bandwidth and VPC limits"
_AZURE: Final = "learn.microsoft.com size page"
_AZURE_MEMORY: Final = "Azure size page, from memory"
_GCP: Final = "cloud.google.com/compute/docs/gpus/gpu-network-bandwidth"

_ROWS: Final[dict[str, InstanceRow]] = {
    "aws-p3.8xlarge": InstanceRow(
        accelerator="v100-sxm-16gb", devices=4, island=4, cards=1, gbit_per_s=10, source=_AWS
    ),
    "aws-p3.16xlarge": InstanceRow(
        accelerator="v100-sxm-16gb", devices=8, island=8, cards=1, gbit_per_s=25, source=_AWS
    ),
    "aws-p3dn.24xlarge": InstanceRow(
        accelerator="v100-sxm-32gb", devices=8, island=8, cards=1, gbit_per_s=100, source=_AWS
    ),
    "aws-p4d.24xlarge": InstanceRow(
        accelerator="a100-sxm-40gb", devices=8, island=8, cards=4, gbit_per_s=400, source=_AWS
    ),
    "aws-p4de.24xlarge": InstanceRow(
        accelerator="a100-sxm-80gb", devices=8, island=8, cards=4, gbit_per_s=400, source=_AWS
    ),
    "aws-p5.48xlarge": InstanceRow(
        accelerator="h100-sxm", devices=8, island=8, cards=32, gbit_per_s=3200, source=_AWS
    ),
    "aws-p5e.48xlarge": InstanceRow(
        accelerator="h200-sxm", devices=8, island=8, cards=32, gbit_per_s=3200, source=_AWS
    ),
    "aws-p5en.48xlarge": InstanceRow(
        accelerator="h200-sxm", devices=8, island=8, cards=16, gbit_per_s=3200, source=_AWS
    ),
    "aws-p6-b200.48xlarge": InstanceRow(
        accelerator="b200-sxm", devices=8, island=8, cards=8, gbit_per_s=3200, source=_AWS
    ),
    "aws-p6-b300.48xlarge": InstanceRow(
        accelerator="b300-sxm",
        devices=8,
        island=8,
        cards=16,
        gbit_per_s=6400,
        source=f"{_AWS} (17 cards; one taken as front end)",
    ),
    "aws-p6e-gb200.36xlarge": InstanceRow(
        accelerator="gb200-nvl72",
        devices=4,
        island=72,
        cards=4,
        gbit_per_s=3200,
        source=f"{_AWS}; devices and cards from memory",
    ),
    "aws-g4dn.12xlarge": InstanceRow(
        accelerator="t4",
        devices=4,
        island=4,
        cards=1,
        gbit_per_s=50,
        source="AWS instance page, from memory",
    ),
    "aws-g5.48xlarge": InstanceRow(
        accelerator="a10g", devices=8, island=8, cards=1, gbit_per_s=100, source=_AWS
    ),
    "aws-g6.48xlarge": InstanceRow(
        accelerator="l4", devices=8, island=8, cards=1, gbit_per_s=100, source=_AWS
    ),
    "aws-g6e.48xlarge": InstanceRow(
        accelerator="l40s", devices=8, island=8, cards=4, gbit_per_s=400, source=_AWS
    ),
    "aws-trn1.32xlarge": InstanceRow(
        accelerator="trainium-1", devices=16, island=16, cards=8, gbit_per_s=800, source=_AWS
    ),
    "aws-trn1n.32xlarge": InstanceRow(
        accelerator="trainium-1", devices=16, island=16, cards=16, gbit_per_s=1600, source=_AWS
    ),
    "aws-trn2.48xlarge": InstanceRow(
        accelerator="trainium-2",
        devices=16,
        island=16,
        cards=16,
        gbit_per_s=3200,
        source=f"{_AWS}; cards from memory",
    ),
    "aws-trn2u.48xlarge": InstanceRow(
        accelerator="trainium-2",
        devices=16,
        island=64,
        cards=16,
        gbit_per_s=3200,
        source=f"{_AWS}; cards from memory",
    ),
    "azure-nd40rs-v2": InstanceRow(
        accelerator="v100-sxm-32gb",
        devices=8,
        island=8,
        cards=1,
        gbit_per_s=100,
        source=_AZURE_MEMORY,
    ),
    "azure-nd96asr-v4": InstanceRow(
        accelerator="a100-sxm-40gb", devices=8, island=8, cards=8, gbit_per_s=1600, source=_AZURE
    ),
    "azure-nd96amsr-a100-v4": InstanceRow(
        accelerator="a100-sxm-80gb", devices=8, island=8, cards=8, gbit_per_s=1600, source=_AZURE
    ),
    "azure-nd96isr-h100-v5": InstanceRow(
        accelerator="h100-sxm", devices=8, island=8, cards=8, gbit_per_s=3200, source=_AZURE
    ),
    "azure-nd96isr-h200-v5": InstanceRow(
        accelerator="h200-sxm", devices=8, island=8, cards=8, gbit_per_s=3200, source=_AZURE_MEMORY
    ),
    "azure-nd96isr-mi300x-v5": InstanceRow(
        accelerator="mi300x",
        devices=8,
        island=8,
        cards=8,
        gbit_per_s=3200,
        source="MicrosoftDocs/azure-docs nd-mi300x-v5-series",
    ),
    "azure-nd128isr-ndr-gb200-v6": InstanceRow(
        accelerator="gb200-nvl72", devices=4, island=72, cards=4, gbit_per_s=1600, source=_AZURE
    ),
    "azure-nc80adis-h100-v5": InstanceRow(
        accelerator="h100-nvl", devices=2, island=2, cards=1, gbit_per_s=80, source=_AZURE_MEMORY
    ),
    "azure-nc96ads-a100-v4": InstanceRow(
        accelerator="a100-pcie-80gb",
        devices=4,
        island=2,
        cards=1,
        gbit_per_s=80,
        source=f"{_AZURE_MEMORY}; NVLink bridges join pairs",
        scale_up_gb_per_s=300,
    ),
    "gcp-a2-highgpu-8g": InstanceRow(
        accelerator="a100-sxm-40gb", devices=8, island=8, cards=1, gbit_per_s=100, source=_GCP
    ),
    "gcp-a2-ultragpu-8g": InstanceRow(
        accelerator="a100-sxm-80gb", devices=8, island=8, cards=1, gbit_per_s=100, source=_GCP
    ),
    "gcp-a2-megagpu-16g": InstanceRow(
        accelerator="a100-sxm-40gb", devices=16, island=16, cards=1, gbit_per_s=100, source=_GCP
    ),
    "gcp-a3-edgegpu-8g": InstanceRow(
        accelerator="h100-sxm",
        devices=8,
        island=8,
        cards=4,
        gbit_per_s=600,
        source=f"{_GCP} (excerpts disagree: 600 or 800 Gb/s)",
    ),
    "gcp-a3-highgpu-8g": InstanceRow(
        accelerator="h100-sxm", devices=8, island=8, cards=4, gbit_per_s=800, source=_GCP
    ),
    "gcp-a3-megagpu-8g": InstanceRow(
        accelerator="h100-sxm", devices=8, island=8, cards=8, gbit_per_s=1600, source=_GCP
    ),
    "gcp-a3-ultragpu-8g": InstanceRow(
        accelerator="h200-sxm", devices=8, island=8, cards=8, gbit_per_s=3200, source=_GCP
    ),
    "gcp-a4-highgpu-8g": InstanceRow(
        accelerator="b200-sxm", devices=8, island=8, cards=8, gbit_per_s=3200, source=_GCP
    ),
    "gcp-a4x-highgpu-4g": InstanceRow(
        accelerator="gb200-nvl72", devices=4, island=72, cards=4, gbit_per_s=1600, source=_GCP
    ),
    "gcp-a4x-maxgpu-4g-metal": InstanceRow(
        accelerator="gb300-nvl72",
        devices=4,
        island=72,
        cards=4,
        gbit_per_s=3200,
        source=f"{_GCP}; name from memory",
    ),
    "gcp-g2-standard-96": InstanceRow(
        accelerator="l4", devices=8, island=8, cards=1, gbit_per_s=100, source=_GCP
    ),
}


def _index() -> Mapping[str, str]:
    """Mapping from keys of instance names, with and without the cloud's prefix, to names."""
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
    """Find the node kind of a cloud instance by name; None if there is none."""
    known = _BY_KEY.get(name_key(name))
    return None if known is None else _instance(known)


@cache
def _instance(name: str) -> NodeKind:
    """Node kind of an instance: its accelerator's default node with its devices and cards."""
    row = _ROWS[name]
    usual = default_node(accelerator(row.accelerator))
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
        num_devices=row.devices,
        island=row.island,
        scale_up=scale_up,
        nics=row.cards,
        nic=network_card(gbit_per_s=row.gbit_per_s / row.cards, origin=origin),
    )
