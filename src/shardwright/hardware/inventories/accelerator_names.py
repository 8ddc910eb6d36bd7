"""Accelerators by the names that drivers, schedulers and PCI numbers use, and their NVLinks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from shardwright.errors import ClusterError, nearest
from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.accelerators_by_name import (
    ACCELERATORS,
    accelerator,
    accelerator_names,
    driver_words,
    find_accelerator,
)
from shardwright.hardware.catalog.cloud_instances import find_instance
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact
from shardwright.units import GIGA

# Source: lists after the public PCI ID database (pci-ids.ucw.cz), vendors 10de and 1002; 20f3,
# 2204, 2342, 2b85, 2bb5 and 74a5 from memory.
PCI_NUMBERS: Final = {
    "10de:1eb8": "t4",
    "10de:1db1": "v100-sxm-16gb",
    "10de:1db5": "v100-sxm-32gb",
    "10de:20b0": "a100-sxm-40gb",
    "10de:20b2": "a100-sxm-80gb",
    "10de:20b1": "a100-pcie-40gb",
    "10de:20f1": "a100-pcie-40gb",
    "10de:20b5": "a100-pcie-80gb",
    "10de:20f3": "a800-sxm-80gb",
    "10de:20b7": "a30",
    "10de:2236": "a10",
    "10de:2237": "a10g",
    "10de:2204": "rtx-3090",
    "10de:26b9": "l40s",
    "10de:27b8": "l4",
    "10de:2684": "rtx-4090",
    "10de:2330": "h100-sxm",
    "10de:2331": "h100-pcie",
    "10de:2321": "h100-nvl",
    "10de:2335": "h200-sxm",
    "10de:2324": "h800-sxm",
    "10de:2329": "h20",
    "10de:2342": "gh200-96gb",
    "10de:2901": "b200-sxm",
    "10de:2941": "gb200-nvl72",
    "10de:3182": "b300-sxm",
    "10de:31c2": "gb300-nvl72",
    "10de:31c3": "gb300-nvl72",
    "10de:2b85": "rtx-5090",
    "10de:2bb5": "rtx-pro-6000",
    "1002:74a1": "mi300x",
    "1002:74a5": "mi325x",
}
# Profiles of MIG (1g.10gb) are parts of devices; devices that several jobs share by time are whole.
_PART: Final = re.compile(r"(\d+g\.\d+gb|\bmig\b)", re.IGNORECASE)
_SHARED: Final = re.compile(r"-shared$", re.IGNORECASE)


class NvLink(NamedTuple):
    """NVLinks (or XGMI links) of an accelerator: bytes/s of one link one way, and their number."""

    rate: float
    links: int


# By the beginning of the name, longest first where one begins another. Source: NVIDIA's data sheets
# (total over both directions, halved, over the number of links), from memory; NCCL's own figures
# (src/graph/topo.h) are achieved rates: 20 of 25, 12 of 14 and 40 of 50 GB/s.
_NVLINKS: Final = (
    ("gb200", NvLink(50 * GIGA, 18)),
    ("gb300", NvLink(50 * GIGA, 18)),
    ("b200", NvLink(50 * GIGA, 18)),
    ("b300", NvLink(50 * GIGA, 18)),
    ("gh200", NvLink(25 * GIGA, 18)),
    ("h100-pcie", NvLink(25 * GIGA, 12)),
    ("h100-nvl", NvLink(25 * GIGA, 12)),
    ("h100", NvLink(25 * GIGA, 18)),
    ("h200", NvLink(25 * GIGA, 18)),
    ("h20", NvLink(25 * GIGA, 18)),
    ("h800", NvLink(25 * GIGA, 8)),
    ("a100", NvLink(25 * GIGA, 12)),
    ("a800", NvLink(25 * GIGA, 8)),
    ("a30", NvLink(25 * GIGA, 4)),
    ("v100", NvLink(25 * GIGA, 6)),
    ("rtx-3090", NvLink(14.0625 * GIGA, 4)),
    # Source: AMD CDNA 3 and 4 white papers, from memory: 7 links of 64 (76.9) GB/s one way to the
    # other devices of a node.
    ("mi300x", NvLink(64 * GIGA, 7)),
    ("mi325x", NvLink(64 * GIGA, 7)),
    ("mi355x", NvLink(538 * GIGA / 7, 7)),
)


def nvlink_of(device: Accelerator) -> NvLink | None:
    """(Bytes/s of one link, number of links) of a device's NVLink or XGMI; None if unknown."""
    return next((link for begin, link in _NVLINKS if device.name.startswith(begin)), None)


def accelerators_by_name(word: str) -> tuple[Accelerator, ...]:
    """Accelerators that a driver's, scheduler's or PCI name may mean, likeliest first, or empty.

    ``NVIDIA-H100-80GB-HBM3`` is one device, ``h100`` any of its forms; empty = unknown.

    Args:
        word: a driver's name, a scheduler's type, or ``pci 10de:2330``.
    """
    if word.startswith("pci "):
        name = PCI_NUMBERS.get(word.removeprefix("pci ").lower())
        return (accelerator(name),) if name else ()
    plain = _SHARED.sub("", word.strip())
    found = None if _PART.search(plain) else find_accelerator(plain)
    if found is None:
        return ()
    begin = "-".join(driver_words(plain))
    others = [
        device
        for device in ACCELERATORS
        if device is not found and device.name.startswith(f"{begin}-")
    ]
    return (found, *others) if found.name.startswith(f"{begin}-") else (found,)


def nvlink_fact(facts: Mapping[FactKind, FoundFact]) -> FoundFact | None:
    """Fact of a device's NVLinks, else of its XGMI links; None = stated in no file."""
    return facts.get(FactKind.LINKS) or facts.get(FactKind.XGMI)


def possible_accelerators(facts: Mapping[FactKind, FoundFact]) -> tuple[Accelerator, ...]:
    """Accelerators that a node may have, from its product name or else its instance type.

    The likeliest is first; empty = unknown.
    """
    product, instance = facts.get(FactKind.PRODUCT), facts.get(FactKind.INSTANCE)
    called = accelerators_by_name(str(product.value)) if product is not None else ()
    kind = find_instance(str(instance.value)) if instance is not None else None
    return called or ((kind.accelerator,) if kind is not None else ())


def unknown_product_error(word: str, *, where: str) -> ClusterError:
    """Make the error for a product name that is no catalog accelerator, or is a MIG part."""
    plain = word.removeprefix("pci ")[:60]
    if _PART.search(word):
        return ClusterError(
            f"{where}: {plain!r} is a part of a device (MIG)",
            hint="clusters are of whole devices: --accelerator NAME",
        )
    told = "-".join(driver_words(plain)) or plain
    return ClusterError(
        f"{where}: unknown accelerator {plain!r}",
        hint=f"--accelerator NAME says what it is; {nearest(told, accelerator_names())}",
    )
