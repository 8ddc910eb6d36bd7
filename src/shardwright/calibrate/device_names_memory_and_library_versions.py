"""Facts about this machine: device names, memory, and versions of libraries."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Final

import torch

from shardwright.hardware.catalog.accelerators_by_name import find_accelerator

_MAKERS: Final = ("nvidia", "amd", "intel", "tesla", "instinct", "quadro")


def accelerator_name(device: str) -> str:
    """Longest catalog name that the GPU driver's device name begins with, else that name, or "cpu".

    The driver's name itself where the catalog knows none.
    """
    if device != "cuda":
        return "cpu"
    words = [
        word
        for word in device_name(device).lower().replace("/", " ").split()
        if word not in _MAKERS
    ]
    for end in range(len(words), 0, -1):
        accelerator = find_accelerator("-".join(words[:end]))
        if accelerator is not None:
            return accelerator.name
    return "-".join(words)[:60]


def device_name(device: str) -> str:
    """Name of a device in the driver or the operating system."""
    if device == "cuda":
        return str(torch.cuda.get_device_name())
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    model = next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )
    return model or platform.processor() or platform.machine()


def host_memory() -> int:
    """Bytes of the host's memory; 0 where the operating system does not report them."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0


def device_memory(device: str, *, num_devices: int) -> int:
    """Total bytes of a GPU's memory, or the host's shared equally by `num_devices` CPU ranks."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[1])
    return host_memory() // num_devices


def library_versions(device: str) -> tuple[tuple[str, str], ...]:
    """(name, version) of the libraries that are measured with, torch first."""
    versions = [("torch", str(torch.__version__)), ("python", platform.python_version())]
    if device == "cuda":
        versions += [
            ("cuda", str(torch.version.cuda)),
            ("cudnn", str(torch.backends.cudnn.version())),
        ]
        versions.append(("nccl", ".".join(map(str, torch.cuda.nccl.version()))))
    return tuple(versions)
