"""What a framework on PyTorch has from it: its allocator, its use of cuBLAS and its collectives, where they are left as they are."""

from __future__ import annotations

from typing import Final

from shardwright.runtime.facts import stated
from shardwright.units import MIB

ALLOCATOR: Final = stated(
    "https://pytorch.org/docs/stable/notes/cuda.html#memory-management", allocator_reserve_percent=3, note="SimuMax prints 3 to 8 %"
)
CUBLAS: Final = stated(
    "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace", workspace_bytes=32 * MIB, note="32 MiB recommended from Hopper on"
)
NCCL: Final = stated(
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
    collective_library="nccl",
    note="torch.distributed's nccl backend",
)
