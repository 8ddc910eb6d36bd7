"""Elements and attributes of NCCL's topology that the reader understands.

Unknown elements are refused where they may be a link, and listed elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.xml_tree import Element
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact

MAX_LISTED: Final = 16
_INSIDE: Final = {
    "system": ("cpu",),
    "cpu": ("pci", "nic", "gpu", "net"),
    "pci": ("pci", "gpu", "nic", "net", "pcilink"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net",),
}
"""Element -> the elements that it may contain. ``c2c`` joins a device and its processor,
``pcilink`` two PCIe switches.
"""
_ATTRIBUTES: Final = {
    "gpu": ("dev", "sm", "rank", "gdr", "gcn", "arch"),
    "nvlink": ("target", "count", "tclass"),
    "xgmi": ("target", "count", "tclass"),
    "pcilink": ("target",),
    "net": ("name", "dev", "latency", "speed", "port", "guid", "maxconn", "gdr", "coll", "keep"),
}
_MAY_LINK: Final = ("gpu", "pci")
"""Elements inside which an unknown element may be a link."""


def unknown_elements(root: Element, *, name: str) -> tuple[FoundFact, ...]:
    """Facts on unread parts of a topology (at most 16); error if one may link devices.

    They include links to devices that the file does not have.

    Raises:
        ClusterError: an element inside a device or a PCI function is not known.
    """
    present = {
        element.get("busid").lower() for element in _all_elements(root) if element.name == "pci"
    }
    found: dict[str, FoundFact] = {}
    for element in _all_elements(root):
        for inner in element.inside:
            words = f"<{inner.name[:40]}> in <{element.name[:40]}>"
            if inner.name in _INSIDE.get(element.name, ()):
                continue
            if element.name in _MAY_LINK:
                hint = (
                    "it may be a link between devices: take it out where it is none, or write the"
                    " cluster file by hand (docs/clusters.md)"
                )
                raise ClusterError(
                    f"{name}:{inner.line}: {words} is no element that is read", hint=hint
                )
            found.setdefault(words, FoundFact(FactKind.UNREAD, words, f"{name}:{inner.line}"))
        for key in element.attributes:
            words = f"{key[:40]}= of <{element.name[:40]}>"
            if key not in _ATTRIBUTES.get(element.name, (key,)):
                found.setdefault(words, FoundFact(FactKind.UNREAD, words, f"{name}:{element.line}"))
        if element.name in ("nvlink", "xgmi") and element.get("tclass").startswith(
            ("0x03", "0x12")
        ):
            target = element.get("target").lower()
            if target not in present:
                words = (
                    f"<{element.name}> to {target[:40] or 'nothing'}, a device that the file"
                    " has not"
                )
                found.setdefault(words, FoundFact(FactKind.UNREAD, words, f"{name}:{element.line}"))
    return tuple(found.values())[:MAX_LISTED]


def _all_elements(root: Element) -> Iterator[Element]:
    """Yield the element and all elements inside it, outermost first."""
    waiting = [root]
    while waiting:
        element = waiting.pop()
        yield element
        waiting += reversed(element.inside)
