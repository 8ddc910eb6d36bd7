"""What a framework on PyTorch has from it: its allocator, its use of cuBLAS and its collectives, where they are left as they are."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.facts import read, stated
from shardwright.runtime.options import offered
from shardwright.runtime.runtime import TpOverlap
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
FILLED: Final = read(
    "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/pipelining/schedules.py",
    on="fills_pipeline",
    note="Schedule1F1B raises a ValueError where n_microbatches < num_stages; ScheduleGPipe does not; an order by its table is not asked",
)
_MSCCL: Final = "https://github.com/Azure/msccl-executor-nccl/blob/215556d3cf0afeefe6f08fdeb3ec6af2d2f6c9a2/README.md"
COLLECTIVES: Final = (
    offered("collectives", "library", "", stated(_MSCCL, collective_library="nccl", note="NCCL runs no schedules of others")),
    offered(
        "collectives",
        "synthesised",
        "LD_LIBRARY_PATH=msccl-executor-nccl/build/lib",
        read(
            _MSCCL,
            collective_library="synthesised",
            note="executes custom-written algorithms on NCCL's transports, and NCCL's own where there is none; one device a process",
        ),
    ),
)
_ENVIRONMENT: Final = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars"
LAUNCH_BLOCKING: Final = (
    offered(
        "launch_blocking",
        "on",
        "CUDA_LAUNCH_BLOCKING=1",
        stated(
            _ENVIRONMENT,
            on="launches_block",
            off="overlap_grad_reduce overlap_param_gather overlap_p2p",
            tp_overlap=TpOverlap.NONE,
            note="a launch returns when its kernel has ended, a collective's too: against hangs, as in BLOOM's script (tr11-176B-ml.slurm)",
        ),
    ),
    offered("launch_blocking", "off", "", stated(_ENVIRONMENT, off="launches_block", note="launches return at once by default")),
)
_EIGHT_BIT: Final = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"
MOMENTS: Final = (
    offered(
        "moments", "fp32", "", stated(_EIGHT_BIT, off="moments", note="torch.optim.AdamW keeps its states in the dtype of what it updates")
    ),
    offered(
        "moments",
        "8bit",
        "optim: adamw_8bit",
        stated(_EIGHT_BIT, moments=Dtype.FP8, note="8 bits a state; the fp32 scale of each block of 256 (1.6 %) is not counted"),
    ),
)
"""Optimizer states in 8 bits: any optimizer class can be passed to FSDP and DeepSpeed."""
