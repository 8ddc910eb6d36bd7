"""Default node of each accelerator, from which cluster expressions build their nodes.

Cards: 0.8 of the line rate and 10 us a message. Vidur's measured sends between H100 nodes (MIT
licence) reach 0.70 at 64 MiB and 17 us with the launch of both kernels; a ring that is under way
has a lower latency a hop. Cards without RDMA (cloud nodes of small accelerators) reach half of the
line rate over TCP: 15 and 22 of 32 Gb/s with 8 devices a node (NVIDIA/nccl#209), 38 of 100 Gb/s
(NVIDIA/nccl#398).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.hardware.accelerator import Accelerator, Evidence, Origin
from shardwright.hardware.catalog.default_node_table import (
    DEFAULT_ROW,
    ROWS,
    NodeRow,
    ScaleUp,
    pcie_link,
)
from shardwright.hardware.cluster import Host, NodeKind
from shardwright.hardware.link_and_network_tier import Link
from shardwright.units import BITS_PER_BYTE, GIB, GIGA

NIC_EFFICIENCY: Final = 0.8
TCP_EFFICIENCY: Final = 0.5
NIC_LATENCY_S: Final = 10e-6
PCIE_EFFICIENCY: Final = 0.8
PCIE_LATENCY_S: Final = 10e-6
# One direction of a x16 slot by generation, GB/s.
PCIE_GB_PER_S: Final = {3: 16.0, 4: 32.0, 5: 64.0, 6: 128.0}

NIC_ORIGIN: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference=(
        "assumed 0.8 of line rate and 10 us; Vidur's sends between H100 nodes: 0.70 and 17 us;"
        " aiconfigurator-core 0.12.0: 10 us"
    ),
)
TCP_ORIGIN: Final = Origin(
    evidence=Evidence.PUBLISHED,
    reference=(
        "half of line rate over TCP: NCCL all_reduce 0.46 and 0.70 of 32 Gb/s (NVIDIA/nccl#209),"
        " 0.38 of 100 Gb/s (NVIDIA/nccl#398)"
    ),
)
_HOST: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="assumed: common servers of this accelerator; memory and NVMe vary by vendor",
)


def network_card(
    *, gbit_per_s: float, origin: Origin = NIC_ORIGIN, efficiency: float = NIC_EFFICIENCY
) -> Link:
    """Link of a network card of `gbit_per_s` (10^9 bits/s each way) at the assumed latency."""
    bandwidth = float(round(gbit_per_s * GIGA / BITS_PER_BYTE))
    return Link(latency_s=NIC_LATENCY_S, bandwidth=bandwidth, efficiency=efficiency, origin=origin)


def pcie_scale_up(*, gb_per_s: float) -> Link:
    """Link of a device to the others of its node over PCIe, `gb_per_s` 10^9 bytes/s one way."""
    return _link_of_row(pcie_link(gb_per_s=gb_per_s))


def nvlink_bridge(*, gb_per_s: float, latency_s: float) -> Link:
    """Link of two devices over an NVLink bridge, `gb_per_s` 10^9 bytes/s one way."""
    bridge = Origin(
        evidence=Evidence.ASSUMED, reference="NVLink bridge of a pair, efficiency assumed as A100's"
    )
    return Link(latency_s=latency_s, bandwidth=gb_per_s * GIGA, efficiency=0.71, origin=bridge)


def is_over_pcie(kind: NodeKind) -> bool:
    """True if the scale-up link is no faster than PCIe to the host; False with NVLink-C2C."""
    return kind.scale_up.bandwidth <= kind.host.pcie.bandwidth and not is_beside_host(kind)


def is_beside_host(kind: NodeKind) -> bool:
    """True if devices reach the host over NVLink-C2C instead of a PCIe slot."""
    return ROWS.get(kind.accelerator.name, DEFAULT_ROW).c2c_gb_per_s > 0


def _link_of_row(up: ScaleUp) -> Link:
    """Link in SI units from a row's scale-up link (10^9 bytes/s, microseconds)."""
    return Link(
        latency_s=round(up.hop_us * 1e-6, 12),
        bandwidth=up.gb_per_s * GIGA,
        efficiency=up.efficiency,
        origin=Origin(evidence=up.evidence, reference=up.reference),
    )


def _host_of_row(row: NodeRow) -> Host:
    """Host of a row: memory, PCIe or NVLink-C2C link, and assumed NVMe."""
    gb_per_s = row.c2c_gb_per_s or PCIE_GB_PER_S[row.pcie]
    kind = "NVLink-C2C, one device's share" if row.c2c_gb_per_s else f"PCIe {row.pcie} x16"
    origin = Origin(
        evidence=Evidence.ASSUMED, reference=f"{kind}; assumed 0.8 of the peak and 10 us"
    )
    large = row.host_gib >= 1024
    return Host(
        memory_bytes=row.host_gib * GIB,
        pcie=Link(
            latency_s=PCIE_LATENCY_S,
            bandwidth=gb_per_s * GIGA,
            efficiency=PCIE_EFFICIENCY,
            origin=origin,
        ),
        nvme_bytes=(30_720 if large else 3_840) * GIGA,
        nvme_bandwidth=(28.0 if large else 6.0) * GIGA,
        memory_bandwidth=(400.0 if large else 200.0) * GIGA,
        origin=_HOST,
    )


def default_node(accelerator: Accelerator) -> NodeKind:
    """Default node of an accelerator; 8 devices over PCIe 4 and one card if it has no row."""
    row = ROWS.get(accelerator.name, DEFAULT_ROW)
    nics = row.cards or row.devices
    up = row.scale_up
    return NodeKind(
        name=f"{accelerator.name}-x{row.devices}",
        accelerator=accelerator,
        num_devices=row.devices,
        island=row.island,
        scale_up=_link_of_row(up),
        nics=nics,
        nic=network_card(
            gbit_per_s=row.device_gbit_per_s * row.devices / nics,
            origin=TCP_ORIGIN if row.is_tcp_only else NIC_ORIGIN,
            efficiency=TCP_EFFICIENCY if row.is_tcp_only else NIC_EFFICIENCY,
        ),
        host=_host_of_row(row),
        in_network_reduction=up.reduces,
    )


def smaller_node(kind: NodeKind, *, num_devices: int) -> NodeKind:
    """Shrink a node to `num_devices` devices: islands cut, cards in proportion, rounded up.

    The host stays whole.
    """
    nics = max(1, -(-kind.nics * num_devices // kind.num_devices))
    below = (kind.island, *(tier.num_devices for tier in kind.node_tiers))
    return replace(
        kind,
        name=f"{kind.name} with {num_devices}",
        num_devices=num_devices,
        island=min(kind.island, num_devices),
        nics=nics,
        node_tiers=tuple(
            replace(tier, num_devices=min(tier.num_devices, num_devices))
            for size, tier in zip(below, kind.node_tiers, strict=False)
            if size < num_devices
        ),
    )
