"""Command outputs that lack facts a cluster needs, and the command to run instead."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shardwright.errors import ClusterError

_TOPO: Final = "nvidia-smi topo -m, with nvidia-smi -L for the model"
_ROCM: Final = "rocm-smi --showtopo --showproductname"
_KUBERNETES: Final = "kubectl get nodes -o json"
_BEGIN: Final = 65_536
"""Number of characters at the start of a text in which the words are searched."""


class InsufficientOutput(NamedTuple):
    """An output with too few facts: its words, its command, and the command to run instead.

    Args:
        words: pattern that the output has and other outputs do not.
    """

    words: str
    printed_by: str
    instead: str


OTHERS: Final = (
    InsufficientOutput(r"=+NVSMI LOG=+|<nvidia_smi_log>", "nvidia-smi -q", _TOPO),
    InsufficientOutput(r"\| NVIDIA-SMI [0-9]", "nvidia-smi", _TOPO),
    InsufficientOutput(r"^\s*Link [0-9]+: [0-9.]+ GB/s", "nvidia-smi nvlink -s", _TOPO),
    InsufficientOutput(
        r"NVLINK BRIDGE|topo -p2p|^\s*OK\s+= Status Ok", "nvidia-smi topo -p2p", _TOPO
    ),
    InsufficientOutput(
        r"Weight between two GPUs|Hops between two GPUs", "rocm-smi --showweight", _ROCM
    ),
    InsufficientOutput(r"ROCm System Management Interface|ROCm SMI", "rocm-smi", _ROCM),
    InsufficientOutput(r"ROCk module|HSA System Attributes", "rocminfo", _ROCM),
    InsufficientOutput(r"LINK TYPE TABLE|ACCESS TABLE|^GPU: [0-9]+\s*$", "amd-smi", _ROCM),
    InsufficientOutput(r"^NAME +STATUS +ROLES +AGE", "kubectl get nodes", _KUBERNETES),
    InsufficientOutput(r"^Name: +\S+\s*\n^Roles: ", "kubectl describe nodes", _KUBERNETES),
    InsufficientOutput(r"^PARTITION +AVAIL |^NODELIST\b", "sinfo", 'sinfo -N -o "%N %G %m %T"'),
    InsufficientOutput(r"^\s*PartitionName=", "scontrol show partition", "scontrol show nodes"),
    InsufficientOutput(r"^ *JOBID +PARTITION ", "squeue", "scontrol show nodes"),
    InsufficientOutput(
        r"^(topology|- topology):",
        "topology.yaml of Slurm",
        "scontrol show topology, or topology.conf",
    ),
    InsufficientOutput(r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ", "lspci", _TOPO),
    InsufficientOutput(r"^CA '[^'\n]{1,80}'", "ibstat", f"{_TOPO}; --nodes N says how many nodes"),
    InsufficientOutput(
        r"^Switch\s+[0-9]+ \"S-|^vendid=0x",
        "ibnetdiscover",
        "a topology.conf of Slurm: slurmibtopology prints one",
    ),
    InsufficientOutput(r"^Architecture: +\S+\s*\n^ *CPU op-mode", "lscpu", _TOPO),
)


def unknown_format_error(text: str, *, name: str, formats: tuple[str, ...]) -> ClusterError:
    """Make the error for a text in no known format, with the command to run as a hint."""
    begin = text[:_BEGIN]
    found = next((one for one in OTHERS if re.search(one.words, begin, re.MULTILINE)), None)
    if found is None:
        return ClusterError(f"{name} has no form that is read", hint="; ".join(formats))
    return ClusterError(
        f"{name} looks like the output of {found.printed_by}, which does not say enough",
        hint=f"run {found.instead}",
    )
