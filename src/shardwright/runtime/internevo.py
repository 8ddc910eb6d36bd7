"""InternLM's trainer (now InternEvo) of 2023: eager kernels, flash attention 1, ZeRO-1 with a shard group that may be one node."""

from __future__ import annotations

from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime import deepspeed_0_16
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import AttentionKernel, ElementKernels, TpOverlap
from shardwright.units import MIB

_CONFIG: Final = "https://github.com/InternLM/InternEvo/blob/00de61348f53850e5aea5ed5003996220cc64116/configs/7B_sft.py"
_SOLVER: Final = "https://github.com/InternLM/InternEvo/blob/main/internlm/solver/optimizer/hybrid_zero_optim.py"

RUNTIME: Final = derive(
    deepspeed_0_16.RUNTIME,
    name="internevo",
    framework="InternEvo",
    version="0.2",
    released="2023-08",
    gradient_dtype=Dtype.BF16,
    zero_stages=(0, 1, 3),
    zero_with_pipeline=1,
    hybrid_sharding=True,
    optimizer_offload=False,
    schedules=("1f1b", "interleaved-1f1b"),
    sequence_parallel=True,
    context_ulysses=False,
    expert_parallel=False,
    overlap_param_gather=False,
    bucket_bytes=512 * MIB,
    reduce_every_microbatch=False,
    tp_overlap=TpOverlap.DGRAD,
    element_kernels=ElementKernels.EAGER,
    attention_kernel=AttentionKernel.FLASH_1,
    logits_bytes=6,
    zero1_broadcasts=True,
    adds_gradients=True,
    rebuilds_norms=True,
    fused_chains=True,
    fp32_norms=True,
    loss_bytes=24,
    facts=(
        *cite(
            _CONFIG,
            "overlap_grad_reduce",
            "overlap_param_gather",
            "bucket_bytes",
            "hybrid_sharding",
            "sequence_parallel",
            "default_recompute",
            "zero_stages",
            checked=True,
            note="overlap_sync_grad on, overlap_sync_param off, reduce_bucket_size 512 MiB, tensor modes mtp and msp, checkpoint off",
        ),
        *cite(
            _SOLVER,
            "gradient_dtype",
            "main_grad_copy",
            "zero_with_pipeline",
            "optimizer_offload",
            "reduce_every_microbatch",
            "zero1_broadcasts",
            "gathers_from_master",
            note="each owner broadcasts its updated parameters in turn",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/main/internlm/core/scheduler/pipeline_scheduler.py",
            "schedules",
            "overlap_p2p",
            "context_ulysses",
            "expert_parallel",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/0c964f4e03bbf59cc043a2f8da57f0cb886b6abe/internlm/model/modeling_internlm.py",
            "rebuilds_norms",
            "fp32_norms",
            checked=True,
            note="norm1(residual.float()); dropout_selective_checkpoint, on by default: dropout and norm of a layer that has no checkpoint "
            "under one of their own",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/264a64231bcf5e10c66d457ef6afee51449b28ff/internlm/model/ops/norm.py",
            "element_kernels",
            checked=True,
            note="one kernel an operator, no compiler",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/08eaa9a1d54969f8773a03a02fe66847ec434ebf/internlm/model/modules/embedding.py",
            "fused_chains",
            checked=True,
            note="flash-attn's rotary kernel in place; silu(gate) * up scripted (internlm/model/utils.py), which fuses it; Apex's RMSNorm, "
            "which doc/en/train_performance.md names",
        ),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/0817b8cf204aef1c0f0b3ec74cbc59acbf3f93a6/internlm/model/utils.py",
            "adds_gradients",
            checked=True,
            note="weight gradients are made whole by linear_bias_wgrad; autograd adds them to .grad from the second microbatch on",
        ),
        *cite("https://github.com/InternLM/InternEvo/blob/main/internlm/model/modeling_internlm.py", "tp_overlap"),
        *cite(
            "https://github.com/InternLM/InternLM/blob/0f5ee057171578f3ed29fb9ae8bf4f13823e3ba6/doc/en/install.md",
            "attention_kernel",
            checked=True,
            note="Flash-Attention 1.0.5, Apex 23.05, PyTorch 1.13.1; that repository published the tables (doc/en/train_performance.md)",
        ),
        *cite("https://github.com/InternLM/InternEvo/blob/main/internlm/model/losses/ce_loss.py", "fused_loss", "logits_bytes"),
        *cite(
            "https://github.com/InternLM/InternEvo/blob/5b3db063ddaccec7f5f7f54cf546ca9c22503133/internlm/model/losses/ce_loss.py",
            "loss_bytes",
            checked=True,
            note="NaiveAMPModel's output_to_fp32 casts logits (6) and their gradient (6); flash-attn's loss reads them (4), and writes the "
            "gradient in place (8)",
        ),
    ),
    aliases=("internlm",),
)
