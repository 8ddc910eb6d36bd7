"""GPU generations by accelerator: the major number of NVIDIA's compute capability.

Serving engines choose kernels and defaults by it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.hardware.accelerator import Accelerator
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import MULTIPROCESSORS

# For names outside the catalog, such as a cluster file's `h100-capped`, which is like an H100.
# Longest names first where one begins another. Source: developer.nvidia.com/cuda-gpus, from memory.
_GENERATION_BY_PREFIX: Final = MappingProxyType(
    {
        "rtx-pro-6000": 12,
        "rtx-5": 12,
        "rtx-4": 8,
        "rtx-3": 8,
        "gb200": 10,
        "gb300": 10,
        "gh200": 9,
        "b200": 10,
        "b300": 10,
        "h100": 9,
        "h200": 9,
        "h800": 9,
        "h20": 9,
        "v100": 7,
        "t4": 7,
        "a100": 8,
        "a800": 8,
        "a10": 8,
        "a30": 8,
        "a40": 8,
        "l4": 8,
        "l20": 8,
    }
)


def generation_of(device: Accelerator) -> int:
    """Major number of an NVIDIA GPU's compute capability; 0 where it is not known.

    9 for Hopper, 10 for Blackwell of data centres, 12 for Blackwell's other cards; 0 for other
    vendors. A name outside the catalog has the number of the prefix that it begins with.
    """
    if device.vendor != "NVIDIA":
        return 0
    listed = MULTIPROCESSORS.get(device.name)
    return listed.generation if listed is not None else generation_by_prefix(device.name)


def generation_by_prefix(name: str) -> int:
    """Major number of the compute capability of GPUs whose names begin so; 0 if not listed."""
    return next(
        (number for begin, number in _GENERATION_BY_PREFIX.items() if name.startswith(begin)), 0
    )
