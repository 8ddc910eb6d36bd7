"""Megatron-Core 0.16 with every overlap switched off: gradients and parameters travel when nothing else runs."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_core_plain
from shardwright.runtime.facts import cite, derive

_LAUNCH: Final = "https://github.com/MooreThreads/SimuMax/blob/5c8e4022ab0fa75110a5daed526c89927f37f08d/simu_tools/megatron_scripts/scripts"

RUNTIME: Final = derive(
    megatron_core_plain.RUNTIME,
    name="megatron-core-0.16-serial",
    version="0.16",
    released="2026-01",
    overlap_grad_reduce=False,
    overlap_param_gather=False,
    overlap_p2p=False,
    fused_loss=True,
    loss_bytes=10,
    row_kernels=True,
    facts=(
        *cite(
            f"{_LAUNCH}/run_pretrain_llama3.sh",
            "overlap_grad_reduce",
            "overlap_param_gather",
            "overlap_p2p",
            checked=True,
            note="use-distributed-optimizer and accumulate-allreduce-grads-in-fp32 without overlap-grad-reduce and overlap-param-gather; "
            "no-overlap-p2p-communication by the guide beside it",
        ),
        *cite(
            "https://github.com/MooreThreads/SimuMax/blob/1b8ca90bec07db48005ff04c69c002dc0626484f/docs/b200/b200_real_repro_guide.md",
            "fused_loss",
            "loss_bytes",
            checked=True,
            note="cross-entropy fusion by Transformer Engine's Triton kernel: statistics 2, gradient in place of the logits 4, scaled 4",
        ),
        *cite(
            "https://github.com/MooreThreads/SimuMax/blob/1b8ca90bec07db48005ff04c69c002dc0626484f/simu_tools/megatron_scripts/scripts/"
            "run_pretrain_deepseekv2.sh",
            "row_kernels",
            checked=True,
            note="moe-permute-fusion; the cross-entropy is Transformer Engine's as well",
        ),
    ),
    aliases=("megatron-core-serial",),
)
