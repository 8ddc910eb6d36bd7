"""Outputs of commands that say less than a cluster needs: which they are, and the command to run
instead.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from shardwright.errors import ClusterError

_TOPO: Final = "nvidia-smi topo -m, with nvidia-smi -L for the model"
_ROCM: Final = "rocm-smi --showtopo --showproductname"
_KUBERNETES: Final = "kubectl get nodes -o json"
_BEGIN: Final = 65_536
"""Characters of a text in which the words are looked for."""


class Other(NamedTuple):
    """An output: words that it has and others have not, the command that prints it, and what to run
    instead.
    """

    words: str
    printed_by: str
    instead: str


OTHERS: Final = (
    Other(r"=+NVSMI LOG=+|<nvidia_smi_log>", "nvidia-smi -q", _TOPO),
    Other(r"\| NVIDIA-SMI [0-9]", "nvidia-smi", _TOPO),
    Other(r"^\s*Link [0-9]+: [0-9.]+ GB/s", "nvidia-smi nvlink -s", _TOPO),
    Other(r"NVLINK BRIDGE|topo -p2p|^\s*OK\s+= Status Ok", "nvidia-smi topo -p2p", _TOPO),
    Other(r"Weight between two GPUs|Hops between two GPUs", "rocm-smi --showweight", _ROCM),
    Other(r"ROCm System Management Interface|ROCm SMI", "rocm-smi", _ROCM),
    Other(r"ROCk module|HSA System Attributes", "rocminfo", _ROCM),
    Other(r"LINK TYPE TABLE|ACCESS TABLE|^GPU: [0-9]+\s*$", "amd-smi", _ROCM),
    Other(r"^NAME +STATUS +ROLES +AGE", "kubectl get nodes", _KUBERNETES),
    Other(r"^Name: +\S+\s*\n^Roles: ", "kubectl describe nodes", _KUBERNETES),
    Other(r"^PARTITION +AVAIL |^NODELIST\b", "sinfo", 'sinfo -N -o "%N %G %m %T"'),
    Other(r"^\s*PartitionName=", "scontrol show partition", "scontrol show nodes"),
    Other(r"^ *JOBID +PARTITION ", "squeue", "scontrol show nodes"),
    Other(
        r"^(topology|- topology):",
        "topology.yaml of Slurm",
        "scontrol show topology, or topology.conf",
    ),
    Other(r"^([0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] ", "lspci", _TOPO),
    Other(r"^CA '[^'\n]{1,80}'", "ibstat", f"{_TOPO}; --nodes N says how many nodes"),
    Other(
        r"^Switch\s+[0-9]+ \"S-|^vendid=0x",
        "ibnetdiscover",
        "a topology.conf of Slurm: slurmibtopology prints one",
    ),
    Other(r"^Architecture: +\S+\s*\n^ *CPU op-mode", "lscpu", _TOPO),
)


def unread_form(text: str, *, name: str, formats: tuple[str, ...]) -> ClusterError:
    """The error of a text that has none of the forms that are read: where it is a known command's
    output, with the command to run.
    """
    begin = text[:_BEGIN]
    found = next((one for one in OTHERS if re.search(one.words, begin, re.MULTILINE)), None)
    if found is None:
        return ClusterError(f"{name} has no form that is read", hint="; ".join(formats))
    return ClusterError(
        f"{name} looks like the output of {found.printed_by}, which does not say enough",
        hint=f"run {found.instead}",
    )
