"""PyTorch facts that its frameworks share: allocator, cuBLAS workspace, NCCL, fused losses."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import LinearLoss, TpOverlap
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.runtime_from_sourced_statements import read, stated
from shardwright.units import MIB

ALLOCATOR: Final = stated(
    "https://pytorch.org/docs/stable/notes/cuda.html#memory-management",
    allocator_reserve_percent=3,
    note="SimuMax prints 3 to 8 %",
)
CUBLAS: Final = stated(
    "https://docs.nvidia.com/cuda/cublas/#cublassetworkspace",
    workspace_bytes=32 * MIB,
    note="32 MiB recommended from Hopper on",
)
NCCL: Final = stated(
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/index.html",
    collective_library="nccl",
    note="torch.distributed's nccl backend",
)
FILLED: Final = read(
    "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/pipelining/schedules.py",
    on="fills_pipeline",
    note=(
        "Schedule1F1B raises a ValueError where n_microbatches < num_stages; ScheduleGPipe does"
        " not; an order by its table is not asked"
    ),
)
_MSCCL: Final = "https://github.com/Azure/msccl-executor-nccl/blob/215556d3cf0afeefe6f08fdeb3ec6af2d2f6c9a2/README.md"
COLLECTIVES: Final = (
    option_offer(
        "collectives",
        "library",
        "",
        stated(_MSCCL, collective_library="nccl", note="NCCL runs no schedules of others"),
    ),
    option_offer(
        "collectives",
        "synthesised",
        "LD_LIBRARY_PATH=msccl-executor-nccl/build/lib",
        read(
            _MSCCL,
            collective_library="synthesised",
            note=(
                "executes custom-written algorithms on NCCL's transports, and NCCL's own where"
                " there is none; one device a process"
            ),
        ),
    ),
)
_ENVIRONMENT: Final = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars"
LAUNCH_BLOCKING: Final = (
    option_offer(
        "launch_blocking",
        "on",
        "CUDA_LAUNCH_BLOCKING=1",
        stated(
            _ENVIRONMENT,
            on="launches_block",
            off="overlap_grad_reduce overlap_param_gather overlap_p2p",
            tp_overlap=TpOverlap.NONE,
            note=(
                "a launch returns when its kernel has ended, a collective's too: against hangs, as"
                " in BLOOM's script (tr11-176B-ml.slurm)"
            ),
        ),
    ),
    option_offer(
        "launch_blocking",
        "off",
        "",
        stated(_ENVIRONMENT, off="launches_block", note="launches return at once by default"),
    ),
)
_LIGER: Final = "https://github.com/linkedin/Liger-Kernel/blob/00eba634c2e9b5f05badbfb67e9b0a4caba301a2/src/liger_kernel/ops/fused_linear_cross_entropy.py"
_CUT: Final = "https://github.com/apple/ml-cross-entropy"
_PARTS: Final = "https://github.com/pytorch/torchtitan/blob/b5bcd76c66d0acb1a08b176d9639425bc55e0b2a/torchtitan/components/loss.py"
_CHUNKED: Final = "https://github.com/pytorch/torchtune/blob/02b12d36215937b7e1671d05ca9053abb857283e/torchtune/modules/loss/cross_entropy_loss.py"
LINEAR_LOSSES: Final = (
    option_offer(
        "linear_loss",
        "off",
        "",
        stated(_LIGER, off="linear_loss", note="the loss reads the logits that the model made"),
    ),
    option_offer(
        "linear_loss",
        "liger",
        "linear_loss: liger",
        read(
            _LIGER,
            linear_loss=LinearLoss.LIGER,
            note=(
                "fused_linear_cross_entropy_forward: the next power of two of BT / ceil(V / H)"
                " tokens a part; the kernel reads a part's logits twice and writes their gradient"
                " in their place; gradients of input and weight are made in forward. That the"
                " smaller products take longer, and each adds to the weight's gradient, is not"
                " counted"
            ),
        ),
    ),
    option_offer(
        "linear_loss",
        "cut",
        "linear_loss: cut",
        stated(
            _CUT,
            linear_loss=LinearLoss.CUT,
            note=(
                "linear_cross_entropy: no logits in memory; backward makes them again; from memory"
            ),
        ),
    ),
    option_offer(
        "linear_loss",
        "chunked",
        "linear_loss: chunked",
        read(
            _CHUNKED,
            linear_loss=LinearLoss.CHUNKED,
            note=(
                "num_output_chunks 8: F.cross_entropy of a part's logits.float(). Eager autograd"
                " keeps each part's log-softmax (4 bytes), and the backward of one part makes two"
                " fp32 copies and one in bf16 (10); compiled, bf16 logits are kept (2), and one"
                " part's gradient made (2)"
            ),
        ),
    ),
    option_offer(
        "linear_loss",
        "parts",
        "linear_loss: parts",
        read(
            _PARTS,
            linear_loss=LinearLoss.PARTS,
            note=(
                "ChunkedLossWrapper, num_chunks 8: the head, the loss and their backward of one"
                " part after another; the head's parameters stay gathered. The fp32 gradient of the"
                " hidden states is not counted"
            ),
        ),
    ),
)
"""Fused head-and-loss operators of Transformers' models and torchtune, whatever shards them."""
_EIGHT_BIT: Final = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"
MOMENTS: Final = (
    option_offer(
        "moments",
        "fp32",
        "",
        stated(
            _EIGHT_BIT,
            off="moments",
            note="torch.optim.AdamW keeps its states in the dtype of what it updates",
        ),
    ),
    option_offer(
        "moments",
        "8bit",
        "optim: adamw_8bit",
        stated(
            _EIGHT_BIT,
            moments=Dtype.FP8,
            note="8 bits a state; the fp32 scale of each block of 256 (1.6 %) is not counted",
        ),
    ),
)
"""Optimizer states in 8 bits: any optimizer class can be passed to FSDP and DeepSpeed."""
