"""Table of default nodes by accelerator: devices, scale-up link, network cards and host.

Scale-up links: `efficiency` is bus bandwidth over the sheet's peak for all_gather and
reduce_scatter of 512 MiB over the whole node (NCCL tables of aiconfigurator-core 0.12.0).
All_reduce is left out where the switch reduces (NVLink SHARP): it exceeds the rate of a ring (H100:
445 of 450 GB/s against 336 for a ring) and belongs to that algorithm. `latency_s` is one hop of a
ring: the latency of an alpha-beta fit of all_reduce over 8 devices, 18.0 us on H100, over its 14
hops, 1.29 us. That spreads a fixed 5 us a collective over the hops, so groups of 2 and 4 come out
up to 4 us too fast.
"""

from __future__ import annotations

from typing import Final

from shardwright.hardware.accelerator import Evidence
from shardwright.lazily_compiled_dataclass import dataclass

_TABLE: Final = (
    "NCCL table of aiconfigurator-core 0.12.0, all_gather and reduce_scatter of 512 MiB; hop"
    " latency from all_reduce over 8 devices"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleUp:
    """Scale-up link of a device: peak bytes/s, efficiency, hop latency, and evidence.

    Args:
        gb_per_s: peak in one direction, 10^9 bytes/s.
        efficiency: bus bandwidth over the peak.
        hop_us: latency of a hop of a ring, in microseconds.
        reduces: the switch reduces (NVLink SHARP).
    """

    gb_per_s: float
    efficiency: float
    hop_us: float
    evidence: Evidence
    reference: str
    reduces: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """Default node of an accelerator, in the units of data sheets.

    Args:
        devices: of the node.
        island: devices of a scale-up domain, of one node or of several.
        device_gbit_per_s: line rate of all cards of the node over its devices, 10^9 bits/s.
        pcie: generation of the x16 slots to the host; 0 where `c2c_gb_per_s` is given.
        host_gib: memory of the host; 0 = not known.
        cards: network cards of the node; 0 = one per device.
        is_tcp_only: the cards have no RDMA.
        c2c_gb_per_s: one device's share of NVLink-C2C to the host, 10^9 bytes/s one way; 0 = the
            host is reached over PCIe.
    """

    devices: int
    island: int
    scale_up: ScaleUp
    device_gbit_per_s: float
    pcie: int
    host_gib: int
    cards: int = 0
    is_tcp_only: bool = False
    c2c_gb_per_s: float = 0.0


def _measured_scale_up(
    *, gb_per_s: float, bus_gb_per_s: float, hop_us: float, name: str, reduces: bool = False
) -> ScaleUp:
    """Scale-up link from a data sheet's and a measured bus bandwidth; efficiency is their ratio."""
    return ScaleUp(
        gb_per_s=gb_per_s,
        efficiency=round(bus_gb_per_s / gb_per_s, 3),
        hop_us=hop_us,
        evidence=Evidence.MEASURED,
        reference=f"{_TABLE}, {name}",
        reduces=reduces,
    )


def _assumed_scale_up(
    *, gb_per_s: float, efficiency: float, hop_us: float, reference: str, reduces: bool = False
) -> ScaleUp:
    """Scale-up link with a stated (not measured) share of its bandwidth and hop latency."""
    return ScaleUp(
        gb_per_s=gb_per_s,
        efficiency=efficiency,
        hop_us=hop_us,
        evidence=Evidence.ASSUMED,
        reference=f"assumed: {reference}",
        reduces=reduces,
    )


_A100: Final = _measured_scale_up(
    gb_per_s=300, bus_gb_per_s=213, hop_us=1.70, name="A100 (205 and 213, all_reduce 222 GB/s)"
)
_H100: Final = _measured_scale_up(
    gb_per_s=450, bus_gb_per_s=336, hop_us=1.29, name="H100 (336 and 336 GB/s)", reduces=True
)
_B200: Final = _measured_scale_up(
    gb_per_s=900, bus_gb_per_s=616, hop_us=1.96, name="B200 (618 and 614 GB/s)", reduces=True
)
_B300: Final = _measured_scale_up(
    gb_per_s=900, bus_gb_per_s=617, hop_us=1.95, name="B300 (621 and 614 GB/s)", reduces=True
)
_NVL72: Final = _assumed_scale_up(
    gb_per_s=900,
    efficiency=0.68,
    hop_us=1.96,
    reference="as B200; 4 devices of a GB200 reach 556 GB/s (0.62), the other 68 were not measured",
    reduces=True,
)
_CUT_A800: Final = _assumed_scale_up(
    gb_per_s=200, efficiency=0.71, hop_us=1.70, reference="efficiency as measured on A100"
)
_CUT_H800: Final = _assumed_scale_up(
    gb_per_s=200,
    efficiency=0.75,
    hop_us=1.29,
    reference="efficiency as measured on H100",
    reduces=True,
)
_H20: Final = _assumed_scale_up(
    gb_per_s=450, efficiency=0.747, hop_us=1.29, reference="as H100", reduces=True
)
_H200: Final = _measured_scale_up(
    gb_per_s=450, bus_gb_per_s=337, hop_us=1.30, name="H200 (337 and 337 GB/s)", reduces=True
)
_NVLINK_2: Final = _assumed_scale_up(
    gb_per_s=150,
    efficiency=0.75,
    hop_us=1.7,
    reference="hybrid cube mesh of NVLink 2, efficiency as NVLink 3",
)
_L40S: Final = _measured_scale_up(
    gb_per_s=32,
    bus_gb_per_s=2,
    hop_us=1.61,
    name="L40S over PCIe (20, 6 and 2 GB/s with 2, 4 and 8 devices)",
)
_RTX_PRO: Final = _measured_scale_up(
    gb_per_s=64, bus_gb_per_s=24, hop_us=1.92, name="RTX PRO 6000 over PCIe (24 GB/s)"
)


def pcie_link(*, gb_per_s: float) -> ScaleUp:
    """Scale-up link over PCIe: 0.3 of a slot's `gb_per_s` (10^9 bytes/s one way), 1.9 us a hop."""
    return _assumed_scale_up(
        gb_per_s=gb_per_s,
        efficiency=0.3,
        hop_us=1.9,
        reference=(
            "PCIe shared by the node; RTX PRO 6000 measures 0.38 of its peak over 8 devices, L40S"
            " 0.06"
        ),
    )


# Cloud nodes give a T4 half of its slot (8 lanes of PCIe 3, 7.9 GB/s; H2D copies of 6 GB/s, from
# memory) and no peer access.
_T4: Final = _assumed_scale_up(
    gb_per_s=8,
    efficiency=0.38,
    hop_us=1.9,
    reference=(
        "8 lanes of PCIe 3 a device through host memory; efficiency as RTX PRO 6000, the best PCIe"
        " node measured"
    ),
)


def _torus(*, gb_per_s: float, name: str) -> ScaleUp:
    """Scale-up link of a TPU torus, all axes as one link: 0.8 of its bandwidth, 1 us a hop."""
    return _assumed_scale_up(
        gb_per_s=gb_per_s,
        efficiency=0.8,
        hop_us=1.0,
        reference=f"{name}, all axes together; efficiency and latency not measured here",
    )


_PCIE_4: Final = pcie_link(gb_per_s=32)
_PCIE_5: Final = pcie_link(gb_per_s=64)
_H100_NVL: Final = _assumed_scale_up(
    gb_per_s=300,
    efficiency=0.71,
    hop_us=1.7,
    reference="NVLink bridge of a pair, efficiency as A100",
)
_GH200_96GB: Final = _assumed_scale_up(
    gb_per_s=150,
    efficiency=0.71,
    hop_us=1.7,
    reference="NVLink 4 between the 4 superchips of a node",
)
_MI250X: Final = _assumed_scale_up(
    gb_per_s=100, efficiency=0.7, hop_us=2.0, reference="Infinity Fabric 3, 100 GB/s a die"
)
_MI300X: Final = _assumed_scale_up(
    gb_per_s=448, efficiency=0.7, hop_us=2.0, reference="7 links of Infinity Fabric a device"
)
_MI355X: Final = _assumed_scale_up(
    gb_per_s=538, efficiency=0.7, hop_us=2.0, reference="7 links of Infinity Fabric 4 a device"
)
_GAUDI_2: Final = _assumed_scale_up(
    gb_per_s=262.5, efficiency=0.8, hop_us=4.0, reference="21 ports of 100 Gb/s RoCE"
)
_GAUDI_3: Final = _assumed_scale_up(
    gb_per_s=525, efficiency=0.8, hop_us=4.0, reference="21 ports of 200 Gb/s RoCE"
)
_TPU_V3: Final = _torus(gb_per_s=140, name="ICI, 2D torus")
_TPU_V4: Final = _torus(gb_per_s=150, name="ICI, 3D torus")
_TPU_V5E: Final = _torus(gb_per_s=200, name="ICI, 2D torus")
_TPU_V5P: Final = _torus(gb_per_s=600, name="ICI, 3D torus")
_TPU_V6E: Final = _torus(gb_per_s=400, name="ICI, 2D torus")
_ASCEND_910B: Final = _assumed_scale_up(
    gb_per_s=196, efficiency=0.75, hop_us=2.0, reference="HCCS full mesh"
)
_ASCEND_910C: Final = _assumed_scale_up(
    gb_per_s=392, efficiency=0.7, hop_us=2.0, reference="UB switches of a 384-device pod"
)
_TRAINIUM_1: Final = _torus(gb_per_s=192, name="NeuronLink 2, 2D torus")
_TRAINIUM_2: Final = _torus(gb_per_s=640, name="NeuronLink 3, 4 x 4 torus")
_TRAINIUM_3: Final = _torus(gb_per_s=1280, name="NeuronLink 4, switched")

ROWS: Final[dict[str, NodeRow]] = {
    "a100-sxm-40gb": NodeRow(
        devices=8, island=8, scale_up=_A100, device_gbit_per_s=200, pcie=4, host_gib=1024
    ),
    "a100-sxm-80gb": NodeRow(
        devices=8, island=8, scale_up=_A100, device_gbit_per_s=200, pcie=4, host_gib=2048
    ),
    "a100-pcie-80gb": NodeRow(
        devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=200, pcie=4, host_gib=1024, cards=1
    ),
    "a100-pcie-40gb": NodeRow(
        devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=25, pcie=4, host_gib=512, cards=1
    ),
    "a800-sxm-80gb": NodeRow(
        devices=8, island=8, scale_up=_CUT_A800, device_gbit_per_s=200, pcie=4, host_gib=2048
    ),
    "a30": NodeRow(
        devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=200, pcie=4, host_gib=512, cards=1
    ),
    "h100-sxm": NodeRow(
        devices=8, island=8, scale_up=_H100, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "h100-sxm-96gb-500w": NodeRow(
        devices=8, island=8, scale_up=_H100, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "h100-pcie": NodeRow(
        devices=8, island=8, scale_up=_PCIE_5, device_gbit_per_s=400, pcie=5, host_gib=1024
    ),
    "h100-nvl": NodeRow(
        devices=8, island=2, scale_up=_H100_NVL, device_gbit_per_s=400, pcie=5, host_gib=1024
    ),
    "h200-sxm": NodeRow(
        devices=8, island=8, scale_up=_H200, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "h800-sxm": NodeRow(
        devices=8, island=8, scale_up=_CUT_H800, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "h20": NodeRow(
        devices=8, island=8, scale_up=_H20, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "gh200-96gb": NodeRow(
        devices=4,
        island=4,
        scale_up=_GH200_96GB,
        device_gbit_per_s=200,
        pcie=0,
        c2c_gb_per_s=450.0,
        host_gib=480,
    ),
    "b200-sxm": NodeRow(
        devices=8, island=8, scale_up=_B200, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "gb200-nvl72": NodeRow(
        devices=4,
        island=72,
        scale_up=_NVL72,
        device_gbit_per_s=400,
        pcie=0,
        c2c_gb_per_s=225.0,
        host_gib=960,
    ),
    "b300-sxm": NodeRow(
        devices=8, island=8, scale_up=_B300, device_gbit_per_s=800, pcie=6, host_gib=2048
    ),
    "gb300-nvl72": NodeRow(
        devices=4,
        island=72,
        scale_up=_NVL72,
        device_gbit_per_s=800,
        pcie=0,
        c2c_gb_per_s=225.0,
        host_gib=960,
    ),
    "v100-sxm-32gb": NodeRow(
        devices=8, island=8, scale_up=_NVLINK_2, device_gbit_per_s=100, pcie=3, host_gib=768
    ),
    "v100-sxm-16gb": NodeRow(
        devices=8, island=8, scale_up=_NVLINK_2, device_gbit_per_s=100, pcie=3, host_gib=488
    ),
    "t4": NodeRow(
        devices=4,
        island=4,
        scale_up=_T4,
        device_gbit_per_s=12.5,
        pcie=3,
        host_gib=192,
        cards=1,
        is_tcp_only=True,
    ),
    "l4": NodeRow(
        devices=8,
        island=8,
        scale_up=_PCIE_4,
        device_gbit_per_s=12.5,
        pcie=4,
        host_gib=768,
        cards=1,
        is_tcp_only=True,
    ),
    "l40s": NodeRow(
        devices=8, island=8, scale_up=_L40S, device_gbit_per_s=200, pcie=4, host_gib=1024
    ),
    "a10": NodeRow(
        devices=4,
        island=4,
        scale_up=_PCIE_4,
        device_gbit_per_s=25,
        pcie=4,
        host_gib=512,
        cards=1,
        is_tcp_only=True,
    ),
    "a10g": NodeRow(
        devices=8,
        island=8,
        scale_up=_PCIE_4,
        device_gbit_per_s=12.5,
        pcie=4,
        host_gib=768,
        cards=1,
        is_tcp_only=True,
    ),
    "rtx-3090": NodeRow(
        devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=12.5, pcie=4, host_gib=256, cards=1
    ),
    "rtx-4090": NodeRow(
        devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=12.5, pcie=4, host_gib=256, cards=1
    ),
    "rtx-5090": NodeRow(
        devices=8, island=8, scale_up=_PCIE_5, device_gbit_per_s=12.5, pcie=5, host_gib=256, cards=1
    ),
    "rtx-pro-6000": NodeRow(
        devices=8, island=8, scale_up=_RTX_PRO, device_gbit_per_s=400, pcie=5, host_gib=1024
    ),
    "mi250x": NodeRow(
        devices=8, island=8, scale_up=_MI250X, device_gbit_per_s=100, pcie=4, host_gib=512, cards=4
    ),
    "mi300x": NodeRow(
        devices=8, island=8, scale_up=_MI300X, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "mi325x": NodeRow(
        devices=8, island=8, scale_up=_MI300X, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "mi355x": NodeRow(
        devices=8, island=8, scale_up=_MI355X, device_gbit_per_s=400, pcie=5, host_gib=2048
    ),
    "gaudi-2": NodeRow(
        devices=8, island=8, scale_up=_GAUDI_2, device_gbit_per_s=300, pcie=4, host_gib=1024
    ),
    "gaudi-3": NodeRow(
        devices=8, island=8, scale_up=_GAUDI_3, device_gbit_per_s=600, pcie=5, host_gib=1024
    ),
    "tpu-v3": NodeRow(
        devices=4,
        island=1024,
        scale_up=_TPU_V3,
        device_gbit_per_s=25,
        pcie=3,
        host_gib=340,
        cards=1,
    ),
    "tpu-v4": NodeRow(
        devices=4,
        island=4096,
        scale_up=_TPU_V4,
        device_gbit_per_s=50,
        pcie=3,
        host_gib=400,
        cards=1,
    ),
    "tpu-v5e": NodeRow(
        devices=8,
        island=256,
        scale_up=_TPU_V5E,
        device_gbit_per_s=25,
        pcie=3,
        host_gib=400,
        cards=2,
    ),
    "tpu-v5p": NodeRow(
        devices=4,
        island=8960,
        scale_up=_TPU_V5P,
        device_gbit_per_s=50,
        pcie=3,
        host_gib=448,
        cards=1,
    ),
    "tpu-v6e": NodeRow(
        devices=4,
        island=256,
        scale_up=_TPU_V6E,
        device_gbit_per_s=200,
        pcie=5,
        host_gib=720,
        cards=4,
    ),
    "tpu-7x": NodeRow(
        devices=4,
        island=9216,
        scale_up=_TPU_V5P,
        device_gbit_per_s=100,
        pcie=5,
        host_gib=960,
        cards=2,
    ),
    "ascend-910b": NodeRow(
        devices=8, island=8, scale_up=_ASCEND_910B, device_gbit_per_s=200, pcie=4, host_gib=1536
    ),
    "ascend-910c": NodeRow(
        devices=8, island=384, scale_up=_ASCEND_910C, device_gbit_per_s=400, pcie=5, host_gib=1536
    ),
    "trainium-1": NodeRow(
        devices=16,
        island=16,
        scale_up=_TRAINIUM_1,
        device_gbit_per_s=50,
        pcie=4,
        host_gib=512,
        cards=8,
    ),
    "trainium-2": NodeRow(
        devices=16, island=16, scale_up=_TRAINIUM_2, device_gbit_per_s=200, pcie=5, host_gib=2048
    ),
    "trainium-3": NodeRow(
        devices=4, island=144, scale_up=_TRAINIUM_3, device_gbit_per_s=400, pcie=5, host_gib=512
    ),
}

DEFAULT_ROW: Final = NodeRow(
    devices=8, island=8, scale_up=_PCIE_4, device_gbit_per_s=100, pcie=4, host_gib=0, cards=1
)
"""Node of an accelerator without a row of its own."""
