"""Names of accelerators as others write them, PCI's numbers, and NVLinks that come to what the
catalog's nodes have."""

from __future__ import annotations

import pytest

from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS, accelerator
from shardwright.hardware.catalog.default_nodes import default_node, is_over_pcie
from shardwright.hardware.inventories.accelerator_names import (
    PCI_NUMBERS,
    accelerators_by_name,
    nvlink_of,
)


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("NVIDIA-H100-80GB-HBM3", ["h100-sxm"]),
        ("NVIDIA H100 PCIe", ["h100-pcie"]),
        ("NVIDIA-H100-NVL", ["h100-nvl"]),
        ("nvidia_a100-sxm4-80gb", ["a100-sxm-80gb"]),
        ("NVIDIA-A100-80GB-PCIe", ["a100-pcie-80gb"]),
        ("NVIDIA-A10G-SHARED", ["a10g"]),
        ("Tesla-V100-SXM2-16GB", ["v100-sxm-16gb"]),
        ("NVIDIA-GB200", ["gb200-nvl72"]),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", ["rtx-pro-6000"]),
        ("AMD_Instinct_MI300X_OAM", ["mi300x"]),
        ("h100", ["h100-sxm", "h100-sxm-96gb-500w", "h100-pcie", "h100-nvl"]),
        ("V100", ["v100-sxm-32gb", "v100-sxm-16gb"]),
        ("h20", ["h20"]),
        ("pci 10DE:2330", ["h100-sxm"]),
        ("pci 10de:ffff", []),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", []),
        ("nvidia_b200_2g.45gb", []),
        ("shiny", []),
        ("", []),
    ],
)
def test_what_a_word_may_mean(word: str, names: list[str]) -> None:
    assert [device.name for device in accelerators_by_name(word)] == names


def test_numbers_of_pci_are_of_accelerators_of_the_catalog() -> None:
    assert all(accelerator(name).name == name for name in PCI_NUMBERS.values())


@pytest.mark.parametrize(
    "device", [one for one in ACCELERATORS if nvlink_of(one)], ids=lambda device: device.name
)
def test_links_come_to_the_catalogs_rate(device: Accelerator) -> None:
    """But for cards that have them only with a bridge, and GH200, whose entry has the links of one
    pair of four."""
    link, node = nvlink_of(device), default_node(device)
    assert link is not None
    assert is_over_pcie(node) or link.rate * link.links == node.scale_up.bandwidth * (
        3 if device.name == "gh200-96gb" else 1
    )
