"""Megatron-Bridge's performance recipes: for mixtures of experts, what differs is how tokens travel and what captured graphs replay.

Dense models run on NeMo 25.04's runtime with another scaling; mixtures of experts on one runtime for each combination that a release's
recipes use; benchmarks/published/facts names the recipe of a published row.
"""

from __future__ import annotations

from typing import Final

from shardwright.runtime import nemo
from shardwright.runtime.facts import Statement, derive, named, read, stated
from shardwright.runtime.runtime import Capture, ExpertDispatch, Runtime

_TREE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob"
_DROP: Final = f"{_TREE}/4054233ae08b785aac1beeb028e66b6baf9dfc1b/scripts/performance/configs/qwen3/qwen3_30b_a3b_llm_pretrain.py"
_SCOPED: Final = f"{_TREE}/f29a269f8728ff9075f88a226f92e554196a7e41/scripts/performance/configs/qwen/qwen3_workload_base_configs.py"
_EAGER: Final = f"{_TREE}/04eb4f8d6045526331113ba3f0d39b7a4d22bb85/src/megatron/bridge/perf_recipes/qwen/h100/qwen3_moe.py"
_WHOLE: Final = f"{_TREE}/134e903ad65fab69a763367796e291837c82a17e/src/megatron/bridge/perf_recipes/qwen/common.py"
_DSV3: Final = f"{_TREE}/042641823051ce167c52b0ae289941a227c11535/scripts/performance/configs/deepseek/deepseek_workload_base_configs.py"
_RELEASED: Final = {"0.1": "2025-09", "0.2": "2025-11", "0.3": "2026-02", "0.4": "2026-04", "0.5": "2026-06"}

DENSE: Final = derive(
    nemo.NEMO_25_04,
    named("megatron-bridge", framework="Megatron-Bridge", version="0.1", released=_RELEASED["0.1"]),
    stated(
        f"{_TREE}/067f987df03b/docs/performance-summary.md",
        off="scales_reduced",
        note="FP8-CS and FP8-MX: scales of the tensor at hand; Transformer Engine reduces after a pass under delayed scaling only",
    ),
)


def _recipe(
    name: str,
    link: str,
    note: str,
    *more: Statement,
    version: str,
    experts: ExpertDispatch = ExpertDispatch.DEDUPLICATED,
    capture: Capture = Capture.NONE,
    on: str = "",
    capacity: bool = False,
    latent: bool = True,
    checked: bool = True,
) -> Runtime:
    """A release's runtime with what the recipes under `link` say.

    Args:
        experts, capture: see ExpertDispatch and Capture.
        on: which of `expert_overlap`, `fused_experts` and `attention_eight_bit` are on.
        capacity: experts have a fixed capacity. Without it the host reads how many tokens each got, unless a graph holds the whole
            iteration.
        latent: ``mla_up_proj`` is recomputed, as recipes of DeepSeek-V3 do unless said otherwise; other models have no latent.
    """
    off = " ".join(name for name in ("expert_overlap", "fused_experts", "attention_eight_bit") if name not in on.split())
    return derive(
        DENSE,
        named(f"megatron-bridge-{name}", version=version, released=_RELEASED[version]),
        stated(link, on=on, off=off, checked=checked, note=note, expert_dispatch=experts, capture=capture),
        read(_DSV3, note="recompute_modules of DeepSeek-V3's presets", rebuilds_latent=latent),
        stated(
            "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron/core/transformer/moe/token_dispatcher.py",
            note="counts are copied to the host unless capacity or the whole graph is static",
            routing_on_host=not (capacity or capture is Capture.ITERATION),
        ),
        *more,
    )


DROPPED: Final = _recipe(
    "dropped",
    _DROP,
    "apply_moe_token_drop: fixed capacity, all-to-all; cuda_graph_scope full_iteration",
    version="0.1",
    experts=ExpertDispatch.ALL_TO_ALL,
    capture=Capture.ITERATION,
    capacity=True,
)
DROPPED_EAGER: Final = _recipe(
    "dropped-eager",
    _DROP,
    "apply_moe_token_drop: fixed capacity, all-to-all; no graphs on H100",
    version="0.1",
    experts=ExpertDispatch.ALL_TO_ALL,
    capacity=True,
)
ALL_TO_ALL: Final = _recipe(
    "alltoall",
    _SCOPED,
    "no dispatcher backend: all-to-all of every copy; no graphs; dropless",
    version="0.3",
    experts=ExpertDispatch.ALL_TO_ALL,
)
ALL_TO_ALL_OVERLAP: Final = _recipe(
    "alltoall-overlap",
    _EAGER,
    "moe_token_dispatcher_type alltoall with overlap_moe_expert_parallel_comm and delay_wgrad_compute; no graphs",
    version="0.3",
    experts=ExpertDispatch.ALL_TO_ALL,
    on="expert_overlap",
)
FLEX: Final = _recipe("flex", _EAGER, "hybridep dispatcher, no graphs, no overlap of expert traffic", version="0.4")
FLEX_OVERLAP: Final = _recipe(
    "flex-overlap",
    f"{_TREE}/27dfb3df3c2cba55e54ec67016061048d4ce03c1/scripts/performance/configs/deepseek/deepseek_v3_llm_pretrain.py",
    "DeepSeek-V3 on H100: enable_deepep and a2a_1f1b; no graphs",
    read(
        f"{_TREE}/013284246bc0714e406c8a519b8686b7e50628ec/scripts/performance/configs/deepseek/deepseek_llm_pretrain.py",
        off="overlap_grad_reduce",
        note="H100: comm_overlap.overlap_grad_reduce False beside overlapped expert traffic",
    ),
    version="0.1",
    on="expert_overlap",
)
ROUTER: Final = _recipe(
    "router", _SCOPED, "hybridep dispatcher; cuda_graph_scope moe_router and moe_preprocess", version="0.3", capture=Capture.ROUTER
)
ROUTER_OVERLAP: Final = _recipe(
    "router-overlap",
    f"{_TREE}/067f987df03b/skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md",
    "as megatron-bridge-router, with overlap_moe_expert_parallel_comm",
    version="0.5",
    capture=Capture.ROUTER,
    on="expert_overlap",
    checked=False,
)
SCOPED: Final = _recipe(
    "scoped",
    _SCOPED,
    "hybridep dispatcher; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.3",
    capture=Capture.ATTENTION_ROUTER,
)
SCOPED_KEPT: Final = _recipe(
    "scoped-kept",
    f"{_TREE}/d19cb73c80ae84b17e296b66e85058b129319510/scripts/performance/configs/deepseek/workload_base_configs.py",
    "DeepSeek-V3 on GB300: hybridep dispatcher; cuda_graph_scope attn, moe_router and moe_preprocess; recompute_modules empty",
    version="0.2",
    capture=Capture.ATTENTION_ROUTER,
    latent=False,
)
SCOPED_ALL_TO_ALL: Final = _recipe(
    "scoped-alltoall",
    f"{_TREE}/767255d2f5c7c96b619a873a8ad17a3086f3e5c5/scripts/performance/configs/qwen3/workload_base_configs.py",
    "no dispatcher backend: all-to-all of every copy; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.2",
    experts=ExpertDispatch.ALL_TO_ALL,
    capture=Capture.ATTENTION_ROUTER,
)
SCOPED_OVERLAP: Final = _recipe(
    "scoped-overlap",
    _DSV3,
    "DeepSeek-V3 on B200: deepep dispatcher, moe_a2a_overlap; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.4",
    capture=Capture.ATTENTION_ROUTER,
    on="expert_overlap",
)
GRAPHED: Final = _recipe(
    "graphed",
    _WHOLE,
    "full_iteration graph with paged stash, overlap_moe_expert_parallel_comm, one kernel for all experts "
    "(use_transformer_engine_op_fuser), fp8_dot_product_attention",
    version="0.5",
    capture=Capture.ITERATION,
    on="expert_overlap fused_experts attention_eight_bit",
)
GRAPHED_KEPT: Final = _recipe(
    "graphed-kept",
    _DSV3,
    "DeepSeek-V3 on GB300: full_iteration graph, overlap, fused grouped MLP, fp8_dot_product_attention, recompute_modules empty",
    version="0.5",
    capture=Capture.ITERATION,
    on="expert_overlap fused_experts attention_eight_bit",
    latent=False,
)
GRAPHED_SIXTEEN: Final = _recipe(
    "graphed-sixteen",
    _DSV3,
    "DeepSeek-V3 on GB200: full_iteration graph, overlap, fused grouped MLP, recompute_modules mla_up_proj; attention in 16 bits",
    version="0.5",
    capture=Capture.ITERATION,
    on="expert_overlap fused_experts",
)
