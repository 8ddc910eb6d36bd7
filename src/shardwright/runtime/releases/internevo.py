"""InternEvo of 2023: eager kernels, FlashAttention 1, ZeRO-1 with shard groups inside a node."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    TpOverlap,
)
from shardwright.runtime.releases import deepspeed
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    stated,
)
from shardwright.units import MIB

_EVO: Final = "https://github.com/InternLM/InternEvo/blob"

RUNTIME: Final = derive(
    deepspeed.V0_16,
    identity_fields("internevo", framework="InternEvo", version="0.2", released="2023-08"),
    read(
        f"{_EVO}/00de61348f53850e5aea5ed5003996220cc64116/configs/7B_sft.py",
        on="overlap_grad_reduce hybrid_sharding sequence_parallel",
        off="overlap_param_gather",
        bucket_bytes=512 * MIB,
        default_recompute="none",
        zero_stages=(0, 1, 3),
        note=(
            "overlap_sync_grad on, overlap_sync_param off, reduce_bucket_size 512 MiB, tensor modes"
            " mtp and msp, checkpoint off"
        ),
    ),
    stated(
        f"{_EVO}/main/internlm/solver/optimizer/hybrid_zero_optim.py",
        on="zero1_broadcasts",
        off="main_grad_copy optimizer_offload reduce_every_microbatch gathers_from_master",
        gradient_dtype=Dtype.BF16,
        zero_with_pipeline=1,
        note="each owner broadcasts its updated parameters in turn",
    ),
    stated(
        f"{_EVO}/main/internlm/core/scheduler/pipeline_scheduler.py",
        off="overlap_p2p context_ulysses expert_parallel",
        schedules=("1f1b", "interleaved-1f1b"),
    ),
    read(
        f"{_EVO}/0c964f4e03bbf59cc043a2f8da57f0cb886b6abe/internlm/model/modeling_internlm.py",
        on="rebuilds_norms fp32_norms",
        note=(
            "norm1(residual.float()); dropout_selective_checkpoint, on by default: dropout and norm"
            " of a layer that has no checkpoint under one of their own"
        ),
    ),
    read(
        f"{_EVO}/264a64231bcf5e10c66d457ef6afee51449b28ff/internlm/model/ops/norm.py",
        element_kernels=ElementKernels.EAGER,
        note="one kernel an operator, no compiler",
    ),
    read(
        f"{_EVO}/08eaa9a1d54969f8773a03a02fe66847ec434ebf/internlm/model/modules/embedding.py",
        on="fused_chains",
        note=(
            "flash-attn's rotary kernel in place; silu(gate) * up scripted"
            " (internlm/model/utils.py), which fuses it; Apex's RMSNorm, which"
            " doc/en/train_performance.md names"
        ),
    ),
    read(
        f"{_EVO}/0817b8cf204aef1c0f0b3ec74cbc59acbf3f93a6/internlm/model/utils.py",
        on="adds_gradients",
        note=(
            "weight gradients are made whole by linear_bias_wgrad; autograd adds them to .grad from"
            " the second microbatch on"
        ),
    ),
    stated(f"{_EVO}/main/internlm/model/modeling_internlm.py", tp_overlap=TpOverlap.DGRAD),
    read(
        "https://github.com/InternLM/InternLM/blob/0f5ee057171578f3ed29fb9ae8bf4f13823e3ba6/doc/en/install.md",
        attention_kernel=AttentionKernel.FLASH_1,
        note=(
            "Flash-Attention 1.0.5, Apex 23.05, PyTorch 1.13.1; that repository published the"
            " tables (doc/en/train_performance.md)"
        ),
    ),
    stated(f"{_EVO}/main/internlm/model/losses/ce_loss.py", off="fused_loss", logits_bytes=6),
    read(
        f"{_EVO}/5b3db063ddaccec7f5f7f54cf546ca9c22503133/internlm/model/losses/ce_loss.py",
        loss_bytes=24,
        note=(
            "NaiveAMPModel's output_to_fp32 casts logits (6) and their gradient (6); flash-attn's"
            " loss reads them (4), and writes the gradient in place (8)"
        ),
    ),
)
