"""Detection of an inventory file's format by its text, and dispatch to its reader."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from shardwright.hardware.inventories.documents.size_limited_text import (
    read_text_up_to_limit,
    require_text,
)
from shardwright.hardware.inventories.node_facts import Inventory
from shardwright.hardware.inventories.outputs.kubernetes_nodes import (
    is_kubernetes,
    read_kubernetes_nodes,
)
from shardwright.hardware.inventories.outputs.nccl_topology import is_nccl_xml, read_nccl_xml
from shardwright.hardware.inventories.outputs.nvidia_smi_list import is_gpu_list, read_gpu_list
from shardwright.hardware.inventories.outputs.nvidia_smi_topology import (
    is_topo_matrix,
    read_topo_matrix,
)
from shardwright.hardware.inventories.outputs.rocm_smi_topology import (
    is_rocm_topology,
    read_rocm_topology,
)
from shardwright.hardware.inventories.outputs.slurm_scontrol import is_slurm_nodes, read_slurm_nodes
from shardwright.hardware.inventories.outputs.slurm_sinfo import is_sinfo, read_sinfo
from shardwright.hardware.inventories.outputs.slurm_topology_conf import (
    is_slurm_topology,
    read_slurm_topology,
)
from shardwright.hardware.inventories.outputs.unsupported_outputs import unknown_format_error
from shardwright.lazily_compiled_dataclass import dataclass


class InventoryReader(Protocol):
    """Function that reads an inventory from text; ``name`` is the text's name in messages."""

    def __call__(self, text: str, *, name: str) -> Inventory:
        """Read the inventory; ClusterError if the text does not have the format."""


@dataclass(frozen=True, slots=True)
class Format:
    """An inventory format: its name, the test whether a text has it, and its reader."""

    name: str
    found_in: Callable[[str], bool]
    read: InventoryReader


FORMATS: Final = (
    Format("NCCL topology", is_nccl_xml, read_nccl_xml),
    Format("Kubernetes nodes", is_kubernetes, read_kubernetes_nodes),
    Format("nvidia-smi topo -m", is_topo_matrix, read_topo_matrix),
    Format("nvidia-smi -L", is_gpu_list, read_gpu_list),
    Format("rocm-smi topology", is_rocm_topology, read_rocm_topology),
    Format("Slurm nodes", is_slurm_nodes, read_slurm_nodes),
    Format("Slurm topology", is_slurm_topology, read_slurm_topology),
    Format("sinfo", is_sinfo, read_sinfo),
)


def read_inventory(text: str, *, name: str, formats: tuple[Format, ...] = FORMATS) -> Inventory:
    """Read an inventory in the first format that recognises the text; ClusterError if none.

    Raises:
        ClusterError: no format recognises the text, or the text breaks its format.
    """
    require_text(text, name=name)
    found = next((one for one in formats if one.found_in(text)), None)
    if found is None:
        raise unknown_format_error(text, name=name, formats=tuple(one.name for one in formats))
    return found.read(text, name=name)


def read_inventory_file(path: Path, *, formats: tuple[Format, ...] = FORMATS) -> Inventory:
    """Read an inventory from a file, in the first format that recognises its text."""
    return read_inventory(read_text_up_to_limit(path), name=path.name[-80:], formats=formats)
