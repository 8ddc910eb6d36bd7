"""Reader of ``nvidia-smi -L``: model and number of a node's GPUs.

A line is ``GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-..)``. The list does not state how devices are
joined: ``nvidia-smi topo -m`` does. Source: nvidia-smi's manual page.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, numbered_lines
from shardwright.hardware.inventories.node_facts import FactKind, FoundFact, Inventory, SeenNode

MAX_DEVICES: Final = 1024
_LINE: Final = re.compile(r"GPU ([0-9]{1,4}): ([^()]{1,200}?) *\(UUID: [^()]{1,200}\)")
_PART: Final = re.compile(r"MIG [^:]{1,80}: *\(UUID: ")


def is_gpu_list(text: str) -> bool:
    """True if the text has a line of ``nvidia-smi -L``."""
    return re.search(r"^[ \t]*GPU [0-9]{1,4}: [^\n]{1,400}\(UUID: ", text, re.MULTILINE) is not None


def read_gpu_list(text: str, *, name: str) -> Inventory:
    """Read number and model of one node's devices from ``nvidia-smi -L``; ClusterError for MIG."""
    models: dict[str, str] = {}
    product, first = "", ""
    for where, line in numbered_lines(text, name=name):
        if _PART.match(line):
            raise ClusterError(
                f"{where}: a part of a device (MIG)",
                hint="clusters are of whole devices: nvidia-smi -mig 0, or --accelerator NAME",
            )
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        if found[1] in models or len(models) >= MAX_DEVICES:
            raise ClusterError(
                f"{where}: GPU {found[1]} again, or more than {MAX_DEVICES}",
                hint="the list of one node",
            )
        models[found[1]] = found[2][:MAX_WORD]
        product, first = product or models[found[1]], first or where
        if models[found[1]] != product:
            raise ClusterError(
                f"{where}: {models[found[1]][:60]!r} beside {product[:60]!r} in {first}",
                hint="one model a node",
            )
    if not models:
        raise ClusterError(f"{name}: no line of a device", hint="all that nvidia-smi -L prints")
    facts = (
        FoundFact(FactKind.DEVICES, len(models), first),
        FoundFact(FactKind.PRODUCT, product, first),
    )
    return Inventory(file=name, samples=(SeenNode(name="", where=first, facts=facts),))
