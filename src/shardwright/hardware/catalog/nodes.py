"""The usual node of each accelerator: island, cards, host. What a cluster expression builds with.

Scale-up links: `efficiency` is bus bandwidth over the sheet's peak for all_gather and
reduce_scatter of 512 MiB over the whole node (NCCL tables of aiconfigurator-core 0.12.0).
All_reduce is left out where the switch reduces (NVLink SHARP): it passes what a ring can do (H100:
445 of 450 GB/s against 336 for a ring) and belongs to that algorithm. `latency_s` is one hop of a
ring: the latency of an alpha-beta fit of all_reduce over 8 devices, 18.0 us on H100, over its 14
hops, 1.29 us. That spreads a fixed 5 us a collective over the hops, so groups of 2 and 4 come out
up to 4 us too fast.

Cards: 0.8 of the line rate and 10 us a message. Vidur's measured sends between H100 nodes (MIT
licence) reach 0.70 at 64 MiB and 17 us with the launch of both kernels; a ring that is under way
pays less a hop. Cards without RDMA (cloud nodes of small accelerators) reach half of the line rate
over TCP: 15 and 22 of 32 Gb/s with 8 devices a node (NVIDIA/nccl#209), 38 of 100 Gb/s
(NVIDIA/nccl#398).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from shardwright.hardware.cluster import Host, NodeKind
from shardwright.hardware.device import Accelerator, Evidence, Origin
from shardwright.hardware.link import Link
from shardwright.units import BITS_PER_BYTE, GIB, GIGA

NIC_EFFICIENCY: Final = 0.8
TCP_EFFICIENCY: Final = 0.5
NIC_LATENCY_S: Final = 10e-6
PCIE_EFFICIENCY: Final = 0.8
PCIE_LATENCY_S: Final = 10e-6
# One direction of a x16 slot by generation, GB/s; C2C is one device's share of NVLink-C2C.
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
_TABLE: Final = (
    "NCCL table of aiconfigurator-core 0.12.0, all_gather and reduce_scatter of 512 MiB; hop"
    " latency from all_reduce over 8 devices"
)
_HOST: Final = Origin(
    evidence=Evidence.ASSUMED,
    reference="assumed: common servers of this accelerator; memory and NVMe vary by vendor",
)


class ScaleUp(NamedTuple):
    """Scale-up link of a row: GB/s one direction, efficiency, hop latency in us, how known, where
    from, switch reduces.
    """

    gb_per_s: float
    efficiency: float
    hop_us: float
    evidence: Evidence
    reference: str
    reduces: bool = False


class NodeRow(NamedTuple):
    """A node: devices, island, scale-up link, Gb/s of network a device, PCIe generation (0 = C2C),
    host GiB (0 = unknown), cards (0 = one a device), whether they speak TCP only.
    """

    num_devices: int
    island: int
    scale_up: ScaleUp
    network_gbit_per_s: float
    pcie: int
    host_gib: int
    nics: int = 0
    tcp: bool = False


def _measured(
    gb_per_s: float, bus: float, hop_us: float, *, name: str, reduces: bool = False
) -> ScaleUp:
    reference = f"{_TABLE}, {name}"
    return ScaleUp(
        gb_per_s, round(bus / gb_per_s, 3), hop_us, Evidence.MEASURED, reference, reduces
    )


def _assumed(
    gb_per_s: float, efficiency: float, hop_us: float, reference: str, *, reduces: bool = False
) -> ScaleUp:
    return ScaleUp(gb_per_s, efficiency, hop_us, Evidence.ASSUMED, f"assumed: {reference}", reduces)


_A100: Final = _measured(300, 213, 1.70, name="A100 (205 and 213, all_reduce 222 GB/s)")
_H100: Final = _measured(450, 336, 1.29, name="H100 (336 and 336 GB/s)", reduces=True)
_B200: Final = _measured(900, 616, 1.96, name="B200 (618 and 614 GB/s)", reduces=True)
_B300: Final = _measured(900, 617, 1.95, name="B300 (621 and 614 GB/s)", reduces=True)
_NVL72: Final = _assumed(
    900,
    0.68,
    1.96,
    "as B200; 4 devices of a GB200 reach 556 GB/s (0.62), the other 68 were not measured",
    reduces=True,
)
_CUT_A800: Final = _assumed(200, 0.71, 1.70, "efficiency as measured on A100")
_CUT_H800: Final = _assumed(200, 0.75, 1.29, "efficiency as measured on H100", reduces=True)
_H20: Final = _assumed(450, 0.747, 1.29, "as H100", reduces=True)
_H200: Final = _measured(450, 337, 1.30, name="H200 (337 and 337 GB/s)", reduces=True)
_NVLINK_2: Final = _assumed(150, 0.75, 1.7, "hybrid cube mesh of NVLink 2, efficiency as NVLink 3")
_L40S: Final = _measured(
    32, 2, 1.61, name="L40S over PCIe (20, 6 and 2 GB/s with 2, 4 and 8 devices)"
)
_RTX_PRO: Final = _measured(64, 24, 1.92, name="RTX PRO 6000 over PCIe (24 GB/s)")


def _pcie(gb_per_s: float) -> ScaleUp:
    return _assumed(
        gb_per_s,
        0.3,
        1.9,
        "PCIe shared by the node; RTX PRO 6000 measures 0.38 of its peak over 8 devices, L40S 0.06",
    )


# Cloud nodes give a T4 half of its slot (8 lanes of PCIe 3, 7.9 GB/s; H2D copies of 6 GB/s, from
# memory) and no peer access.
_T4: Final = _assumed(
    8,
    0.38,
    1.9,
    "8 lanes of PCIe 3 a device through host memory; efficiency as RTX PRO 6000, the best PCIe node"
    " measured",
)


def _torus(gb_per_s: float, name: str) -> ScaleUp:
    return _assumed(
        gb_per_s, 0.8, 1.0, f"{name}, all axes together; efficiency and latency not measured here"
    )


ROWS: Final[dict[str, NodeRow]] = {
    "a100-sxm-40gb": NodeRow(8, 8, _A100, 200, 4, 1024),
    "a100-sxm-80gb": NodeRow(8, 8, _A100, 200, 4, 2048),
    "a100-pcie-80gb": NodeRow(8, 8, _pcie(32), 200, 4, 1024, 1),
    "a100-pcie-40gb": NodeRow(8, 8, _pcie(32), 25, 4, 512, 1),
    "a800-sxm-80gb": NodeRow(8, 8, _CUT_A800, 200, 4, 2048),
    "a30": NodeRow(8, 8, _pcie(32), 200, 4, 512, 1),
    "h100-sxm": NodeRow(8, 8, _H100, 400, 5, 2048),
    "h100-sxm-96gb-500w": NodeRow(8, 8, _H100, 400, 5, 2048),
    "h100-pcie": NodeRow(8, 8, _pcie(64), 400, 5, 1024),
    "h100-nvl": NodeRow(
        8, 2, _assumed(300, 0.71, 1.7, "NVLink bridge of a pair, efficiency as A100"), 400, 5, 1024
    ),
    "h200-sxm": NodeRow(8, 8, _H200, 400, 5, 2048),
    "h800-sxm": NodeRow(8, 8, _CUT_H800, 400, 5, 2048),
    "h20": NodeRow(8, 8, _H20, 400, 5, 2048),
    "gh200-96gb": NodeRow(
        4, 4, _assumed(150, 0.71, 1.7, "NVLink 4 between the 4 superchips of a node"), 200, 0, 480
    ),
    "b200-sxm": NodeRow(8, 8, _B200, 400, 5, 2048),
    "gb200-nvl72": NodeRow(4, 72, _NVL72, 400, 0, 960),
    "b300-sxm": NodeRow(8, 8, _B300, 800, 6, 2048),
    "gb300-nvl72": NodeRow(4, 72, _NVL72, 800, 0, 960),
    "v100-sxm-32gb": NodeRow(8, 8, _NVLINK_2, 100, 3, 768),
    "v100-sxm-16gb": NodeRow(8, 8, _NVLINK_2, 100, 3, 488),
    "t4": NodeRow(4, 4, _T4, 12.5, 3, 192, 1, tcp=True),
    "l4": NodeRow(8, 8, _pcie(32), 12.5, 4, 768, 1, tcp=True),
    "l40s": NodeRow(8, 8, _L40S, 200, 4, 1024),
    "a10": NodeRow(4, 4, _pcie(32), 25, 4, 512, 1, tcp=True),
    "a10g": NodeRow(8, 8, _pcie(32), 12.5, 4, 768, 1, tcp=True),
    "rtx-3090": NodeRow(8, 8, _pcie(32), 12.5, 4, 256, 1),
    "rtx-4090": NodeRow(8, 8, _pcie(32), 12.5, 4, 256, 1),
    "rtx-5090": NodeRow(8, 8, _pcie(64), 12.5, 5, 256, 1),
    "rtx-pro-6000": NodeRow(8, 8, _RTX_PRO, 400, 5, 1024),
    "mi250x": NodeRow(
        8, 8, _assumed(100, 0.7, 2.0, "Infinity Fabric 3, 100 GB/s a die"), 100, 4, 512, 4
    ),
    "mi300x": NodeRow(
        8, 8, _assumed(448, 0.7, 2.0, "7 links of Infinity Fabric a device"), 400, 5, 2048
    ),
    "mi325x": NodeRow(
        8, 8, _assumed(448, 0.7, 2.0, "7 links of Infinity Fabric a device"), 400, 5, 2048
    ),
    "mi355x": NodeRow(
        8, 8, _assumed(538, 0.7, 2.0, "7 links of Infinity Fabric 4 a device"), 400, 5, 2048
    ),
    "gaudi-2": NodeRow(8, 8, _assumed(262.5, 0.8, 4.0, "21 ports of 100 Gb/s RoCE"), 300, 4, 1024),
    "gaudi-3": NodeRow(8, 8, _assumed(525, 0.8, 4.0, "21 ports of 200 Gb/s RoCE"), 600, 5, 1024),
    "tpu-v3": NodeRow(4, 1024, _torus(140, "ICI, 2D torus"), 25, 3, 340, 1),
    "tpu-v4": NodeRow(4, 4096, _torus(150, "ICI, 3D torus"), 50, 3, 400, 1),
    "tpu-v5e": NodeRow(8, 256, _torus(200, "ICI, 2D torus"), 25, 3, 400, 2),
    "tpu-v5p": NodeRow(4, 8960, _torus(600, "ICI, 3D torus"), 50, 3, 448, 1),
    "tpu-v6e": NodeRow(4, 256, _torus(400, "ICI, 2D torus"), 200, 5, 720, 4),
    "tpu-7x": NodeRow(4, 9216, _torus(600, "ICI, 3D torus"), 100, 5, 960, 2),
    "ascend-910b": NodeRow(8, 8, _assumed(196, 0.75, 2.0, "HCCS full mesh"), 200, 4, 1536),
    "ascend-910c": NodeRow(
        8, 384, _assumed(392, 0.7, 2.0, "UB switches of a 384-device pod"), 400, 5, 1536
    ),
    "trainium-1": NodeRow(16, 16, _torus(192, "NeuronLink 2, 2D torus"), 50, 4, 512, 8),
    "trainium-2": NodeRow(16, 16, _torus(640, "NeuronLink 3, 4 x 4 torus"), 200, 5, 2048),
    "trainium-3": NodeRow(4, 144, _torus(1280, "NeuronLink 4, switched"), 400, 5, 512),
}

_C2C_GB_PER_S: Final = {"gh200-96gb": 450.0, "gb200-nvl72": 225.0, "gb300-nvl72": 225.0}
_DEFAULT: Final = NodeRow(8, 8, _pcie(32), 100, 4, 0, 1)


def network_card(
    *, gbit_per_s: float, origin: Origin = NIC_ORIGIN, efficiency: float = NIC_EFFICIENCY
) -> Link:
    """A network card of `gbit_per_s` (10^9 bits/s each way) at `efficiency` and the assumed
    latency.
    """
    bandwidth = float(round(gbit_per_s * GIGA / BITS_PER_BYTE))
    return Link(latency_s=NIC_LATENCY_S, bandwidth=bandwidth, efficiency=efficiency, origin=origin)


def pcie_scale_up(*, gb_per_s: float) -> Link:
    """The link of a device to the others of its node over PCIe, of so many 10^9 bytes/s in one
    direction.
    """
    return _link(_pcie(gb_per_s))


def nvlink_bridge(*, gb_per_s: float, latency_s: float) -> Link:
    """The link that a bridge of NVLinks gives two devices."""
    bridge = Origin(
        evidence=Evidence.ASSUMED, reference="NVLink bridge of a pair, efficiency assumed as A100's"
    )
    return Link(latency_s=latency_s, bandwidth=gb_per_s * GIGA, efficiency=0.71, origin=bridge)


def is_over_pcie(kind: NodeKind) -> bool:
    """Devices of a node reach each other over the slots that they have to the host."""
    return kind.scale_up.bandwidth <= kind.host.pcie.bandwidth and not is_beside_host(kind)


def is_beside_host(kind: NodeKind) -> bool:
    """Devices reach the host over NVLink-C2C, not over a slot of PCIe."""
    return kind.accelerator.name in _C2C_GB_PER_S


def _link(up: ScaleUp) -> Link:
    return Link(
        latency_s=round(up.hop_us * 1e-6, 12),
        bandwidth=up.gb_per_s * GIGA,
        efficiency=up.efficiency,
        origin=Origin(evidence=up.evidence, reference=up.reference),
    )


def _host(name: str, row: NodeRow) -> Host:
    gb_per_s = PCIE_GB_PER_S.get(row.pcie) or _C2C_GB_PER_S[name]
    kind = f"PCIe {row.pcie} x16" if row.pcie else "NVLink-C2C, one device's share"
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


def node_of(accelerator: Accelerator) -> NodeKind:
    """The usual node of `accelerator`; an accelerator without a row gets 8 devices over PCIe 4 and
    one 800 Gb/s of cards, assumed.
    """
    row = ROWS.get(accelerator.name, _DEFAULT)
    nics = row.nics or row.num_devices
    up = row.scale_up
    return NodeKind(
        name=f"{accelerator.name}-x{row.num_devices}",
        accelerator=accelerator,
        num_devices=row.num_devices,
        island=row.island,
        scale_up=_link(up),
        nics=nics,
        nic=network_card(
            gbit_per_s=row.network_gbit_per_s * row.num_devices / nics,
            origin=TCP_ORIGIN if row.tcp else NIC_ORIGIN,
            efficiency=TCP_EFFICIENCY if row.tcp else NIC_EFFICIENCY,
        ),
        host=_host(accelerator.name, row),
        in_network_reduction=up.reduces,
    )


def smaller_node(kind: NodeKind, *, num_devices: int) -> NodeKind:
    """`kind` with fewer devices: the island and the cards shrink with them (at least one card), the
    host stays whole.
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
