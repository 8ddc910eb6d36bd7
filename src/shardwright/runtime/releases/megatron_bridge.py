"""Megatron-Bridge: NeMo 25.04's runtime with its own FP8 scaling and recipe options.

Recipes of mixtures of experts differ in how tokens travel, what captured graphs replay and what is
recomputed; benchmarks/published/facts says which options the recipe behind a published row set.
"""

from __future__ import annotations

from typing import Final

from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import Capture, Scaling
from shardwright.runtime.option_vocabulary import option_offer
from shardwright.runtime.releases import megatron_core, nemo
from shardwright.runtime.runtime_from_sourced_statements import (
    derive,
    identity_fields,
    read,
    stated,
)

_TREE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob"
_SCOPED: Final = (
    f"{_TREE}/f29a269f8728ff9075f88a226f92e554196a7e41"
    "/scripts/performance/configs/qwen/qwen3_workload_base_configs.py"
)
_EAGER: Final = (
    f"{_TREE}/04eb4f8d6045526331113ba3f0d39b7a4d22bb85"
    "/src/megatron/bridge/perf_recipes/qwen/h100/qwen3_moe.py"
)
_WHOLE: Final = (
    f"{_TREE}/134e903ad65fab69a763367796e291837c82a17e"
    "/src/megatron/bridge/perf_recipes/qwen/common.py"
)
_HYBRID: Final = (
    f"{_TREE}/06e8da4ede242ba8e8e60325b69baa1dec59aa30"
    "/scripts/performance/configs/nemotronh/nemotron_3_workload_base_configs.py"
)
_SUMMARY: Final = f"{_TREE}/067f987df03b/docs/performance-summary.md"
_PRECISION: Final = (
    f"{_TREE}/05097809102de3cbe888267e7d701868165153d8"
    "/src/megatron/bridge/training/mixed_precision.py"
)
_DISPATCHER: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron/core/transformer/moe/token_dispatcher.py"
_HOST_NOTE: Final = "counts are copied to the host unless capacity or the whole graph is static"

_GRAPHS: Final = (
    option_offer(
        "graphs", "none", "cuda_graph_impl=none", stated(_EAGER, off="capture", note="no graphs")
    ),
    option_offer(
        "graphs",
        "router",
        "cuda_graph_scope=moe_router,moe_preprocess",
        stated(
            _SCOPED,
            checked=True,
            capture=Capture.ROUTER,
            note="cuda_graph_scope moe_router and moe_preprocess",
        ),
    ),
    option_offer(
        "graphs",
        "mamba",
        "cuda_graph_scope=mamba",
        read(
            _HYBRID,
            capture=Capture.MAMBA,
            note="cuda_graph_scope mamba (Nemotron 3 Nano in fp8 on H100)",
        ),
    ),
    option_offer(
        "graphs",
        "attn",
        "cuda_graph_scope=attn,mamba",
        read(_HYBRID, capture=Capture.ATTENTION, note="cuda_graph_scope attn and mamba"),
    ),
    option_offer(
        "graphs",
        "attention-router",
        "cuda_graph_scope=attn,moe_router,moe_preprocess",
        read(
            _SCOPED,
            capture=Capture.ATTENTION_ROUTER,
            note="cuda_graph_scope attn, moe_router and moe_preprocess",
        ),
    ),
    option_offer(
        "graphs",
        "iteration",
        "cuda_graph_impl=local cuda_graph_scope=full_iteration",
        read(_WHOLE, capture=Capture.ITERATION, note="full_iteration graph with paged stash"),
    ),
)
_EXPERTS: Final = (
    option_offer("expert_overlap", "off", "", stated(_EAGER, off="expert_overlap")),
    option_offer(
        "expert_overlap",
        "on",
        "overlap_moe_expert_parallel_comm=true delay_wgrad_compute=true",
        read(
            _EAGER,
            on="expert_overlap",
            note="overlap_moe_expert_parallel_comm with delay_wgrad_compute",
        ),
        # comm_overlap.py (OVERLAP of megatron_core) asserts it where
        # overlap_moe_expert_parallel_comm is set.
        needs={"dispatcher": ("alltoall", "flex", "hybridep")},
    ),
    option_offer("grouped_experts", "each", "", stated(_WHOLE, off="fused_experts")),
    option_offer(
        "grouped_experts",
        "fused",
        "use_transformer_engine_op_fuser=true",
        read(
            _WHOLE,
            on="fused_experts",
            note="one kernel for all experts (use_transformer_engine_op_fuser)",
        ),
    ),
    option_offer("fp8_attention", "off", "", stated(_WHOLE, off="attention_eight_bit")),
    option_offer(
        "fp8_attention",
        "on",
        "fp8_dot_product_attention=true",
        read(_WHOLE, on="attention_eight_bit", note="fp8_dot_product_attention"),
    ),
)

RUNTIME: Final = derive(
    nemo.NEMO_25_04,
    identity_fields(
        "megatron-bridge", framework="Megatron-Bridge", version="0.5", released="2026-06"
    ),
    stated(
        _SUMMARY,
        off="scales_reduced",
        scaling=Scaling.CURRENT,
        note=(
            "FP8-CS and FP8-MX: scales of the tensor at hand; Transformer Engine reduces after a"
            " pass under delayed scaling only"
        ),
    ),
    read(
        _PRECISION,
        on="gathers_narrow",
        note="its recipes set fp8_param_gather, but for blockwise scaling",
    ),
    stated(_DISPATCHER, on="routing_on_host", note=_HOST_NOTE),
    offers=(*nemo.NEMO_25_04.offers, *megatron_core.HYBRID, *_GRAPHS, *_EXPERTS),
)
