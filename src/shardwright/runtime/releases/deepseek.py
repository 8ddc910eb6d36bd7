"""DeepSeek's training stack of 2024 (HAI-LLM): DualPipe, DeepEP, DeepGEMM.

Sources that were read: arXiv:2412.19437v2, section 3; deepseek-ai/DualPipe, DeepEP (V1's
documentation) and profile-data. HAI-LLM itself is not published: facts that none of these sources
states are taken from Megatron-Core, with its links (loss, buckets, overlaps of sharded states,
workspaces).

Left out: the 12-bit format of the input of the projection after attention (kept here in 16 and in 8
bits); the exponential moving average of the weights, which the host keeps beside the step;
redundant experts, which are for serving.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.dtype import Dtype
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ExpertDispatch
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases import megatron_core
from shardwright.runtime.releases import (
    megatron_core_loss_and_memory_options as megatron_core_memory,
)
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    stated,
)

_REPORT: Final = "https://arxiv.org/html/2412.19437v2"
_DUALPIPE: Final = "https://github.com/deepseek-ai/DualPipe/blob/89f5de17a303cd342b64631e06ce401b36b6e1e0/README.md"
_DEEPEP: Final = "https://github.com/deepseek-ai/DeepEP/blob/0297fc801788b14b338a46554faca28d419e518a/docs/legacy.md"
_DEEPGEMM: Final = "https://github.com/deepseek-ai/DeepGEMM/blob/main/README.md"

_DISPATCHES: Final = (
    option_offer(
        "dispatch_dtype",
        "fp8",
        "use_fp8_dispatch",
        read(
            _REPORT,
            on="dispatches_eight_bit",
            note=(
                "3.3.3: activations before up and gradients before down projections in FP8,"
                " combines in BF16"
            ),
        ),
    ),
    option_offer(
        "dispatch_dtype",
        "bf16",
        "",
        read(_DEEPEP, off="dispatches_eight_bit", note="DeepEP takes either"),
    ),
)
_MULTIPROCESSORS: Final = (
    option_offer(
        "dispatch_sms",
        "20",
        "",
        read(_REPORT, reserved_multiprocessors=20, note="3.2.2 and 3.5.1: 20 of 132, 10 channels"),
    ),
    option_offer(
        "dispatch_sms",
        "24",
        "Buffer.set_num_sms(24)",
        read(_DEEPEP, reserved_multiprocessors=24, note="DeepEP V1's example"),
    ),
    option_offer(
        "dispatch_sms",
        "6",
        "",
        read(
            "https://github.com/deepseek-ai/DeepEP/blob/0297fc801788b14b338a46554faca28d419e518a/README.md",
            reserved_multiprocessors=6,
            note="DeepEP V2: 4 to 6 where V1 took 24",
        ),
    ),
)
_KEPT: Final = (
    option_offer(
        "gate_dtype",
        "fp8",
        "",
        read(
            _REPORT,
            on="saves_gates_eight_bit",
            note="3.3.3: inputs of SwiGLU in MoE are cached in FP8",
        ),
    ),
    option_offer("gate_dtype", "activation", "", stated(_REPORT, off="saves_gates_eight_bit")),
    option_offer(
        "moments",
        "bf16",
        "",
        read(
            _REPORT,
            moments=Dtype.BF16,
            note="3.3.3: BF16 moments, master weights and gradients in FP32",
        ),
    ),
    option_offer("moments", "fp32", "", stated(_REPORT, off="moments")),
)

# HAI-LLM's own names of these are not published.
_RECOMPUTE: Final = tuple(replace(offer, flag="") for offer in megatron_core_memory.RECOMPUTE)

V3: Final = derive(
    megatron_core.V0_12,
    identity_fields("deepseek-v3", framework="HAI-LLM", version="DeepSeek-V3", released="2024-12"),
    stated(
        "https://github.com/deepseek-ai/DeepEP",
        vendors=("NVIDIA",),
        note="Hopper; ports to other vendors are not meant here",
    ),
    read(
        _DUALPIPE,
        schedules=("1f1b", "dualpipe", "dualpipe-v"),
        note="DualPipe and DualPipe-V; 1F1B for a pipeline of one, and as what it is compared with",
    ),
    read(
        _REPORT,
        on="overlap_p2p",
        off=(
            "plain_p2p_blocks fills_pipeline ties_experts equal_stages equal_between"
            " checkpoints_on_host parameters_on_host hybrid_dispatch launches_block"
            " gradients_on_host host_gradient_bytes host_buffer_percent"
        ),
        zero_stages=(0, 1),
        zero_with_pipeline=1,
        note="3.2: PP, EP and ZeRO-1; transfers between stages run beside compute (figure 4)",
    ),
    stated(
        _REPORT,
        off="hybrid_sharding optimizer_offload",
        note="only the moving average is kept on the host",
    ),
    read(
        _DEEPEP,
        on="routing_on_host",
        expert_dispatch=ExpertDispatch.DEDUPLICATED,
        note=(
            "a copy for each node, forwarded over NVLink; dispatch waits on the host for the counts"
            " that were received"
        ),
    ),
    read(
        _REPORT,
        on="dispatches_eight_bit saves_gates_eight_bit saves_quantized",
        moments=Dtype.BF16,
        gradient_dtype=Dtype.FP32,
        note="3.3.3; weight gradients and master weights in FP32",
    ),
    read(
        _REPORT,
        on="rebuilds_norms rebuilds_latent rebuilds_expert_activation",
        note=(
            "3.2.3 and 3.3.3: norms, up projections of latent attention and the output of SwiGLU in"
            " MoE run again"
        ),
    ),
    read(
        _REPORT,
        reserved_multiprocessors=20,
        note=(
            "3.2.1: the ratio of multiprocessors dedicated to communication and to computation is"
            " set by hand; 3.5.1: 20 of 132"
        ),
    ),
    stated(_REPORT, off="router_kernels", note="its router's kernels are not published"),
    read(
        _REPORT, off="scales_reduced", note="3.3.2, online quantization: scales of the tile at hand"
    ),
    stated(
        _DEEPGEMM,
        on="fused_experts",
        note="grouped GEMMs, contiguous layout: one kernel for all local experts",
    ),
    offers=(*_DISPATCHES, *_MULTIPROCESSORS, *_KEPT, *_RECOMPUTE),
)
