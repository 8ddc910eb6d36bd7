"""Megatron-Bridge's performance recipes: for mixtures of experts, what differs is how tokens travel and what captured graphs replay.

Dense models run on NeMo 25.04's runtime with another scaling; mixtures of experts on one runtime for each combination that a release's
recipes use; benchmarks/published/facts names the recipe of a published row.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.runtime import nemo_2504
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import Capture, ExpertDispatch, Fact, Runtime, ScaleGroup

_TREE: Final = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob"
_DROP: Final = f"{_TREE}/4054233ae08b785aac1beeb028e66b6baf9dfc1b/scripts/performance/configs/qwen3/qwen3_30b_a3b_llm_pretrain.py"
_SCOPED: Final = f"{_TREE}/f29a269f8728ff9075f88a226f92e554196a7e41/scripts/performance/configs/qwen/qwen3_workload_base_configs.py"
_EAGER: Final = f"{_TREE}/04eb4f8d6045526331113ba3f0d39b7a4d22bb85/src/megatron/bridge/perf_recipes/qwen/h100/qwen3_moe.py"
_WHOLE: Final = f"{_TREE}/134e903ad65fab69a763367796e291837c82a17e/src/megatron/bridge/perf_recipes/qwen/common.py"
_DEEPSEEK: Final = (
    f"{_TREE}/042641823051ce167c52b0ae289941a227c11535/scripts/performance/configs/deepseek/deepseek_workload_base_configs.py"
)
_DISPATCHER: Final = "https://github.com/NVIDIA/Megatron-LM/blob/core_v0.12.0/megatron/core/transformer/moe/token_dispatcher.py"
_FIELDS: Final = ("expert_dispatch", "capture", "expert_overlap", "fused_experts", "attention_eight_bit")

DENSE: Final = derive(
    nemo_2504.RUNTIME,
    name="megatron-bridge",
    framework="Megatron-Bridge",
    version="0.1",
    released="2025-09",
    scales_reduced=ScaleGroup.NONE,
    facts=cite(
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987df03b/docs/performance-summary.md",
        "scales_reduced",
        note="FP8-CS and FP8-MX: scales of the tensor at hand; Transformer Engine reduces after a pass under delayed scaling only",
    ),
)


def _recipe(
    name: str, link: str, note: str, *, version: str, released: str, checked: bool = True, more: tuple[Fact, ...] = (), **changes: Any
) -> Runtime:
    """NeMo 24.11's runtime with what the recipes under `link` say; fields that `changes` leaves out are off.

    Recipes of DeepSeek-V3 recompute ``mla_up_proj`` unless said otherwise; other models have no latent.
    """
    stated = {
        "expert_dispatch": ExpertDispatch.DEDUPLICATED,
        "capture": Capture.NONE,
        "routing_on_host": True,
        "expert_overlap": False,
        "fused_experts": False,
        "attention_eight_bit": False,
        "rebuilds_latent": True,
        **changes,
    }
    return derive(
        DENSE,
        name=name,
        version=version,
        released=released,
        facts=(
            *cite(link, *_FIELDS, checked=checked, note=note),
            *cite(_DEEPSEEK, "rebuilds_latent", checked=True, note="recompute_modules of DeepSeek-V3's presets"),
            *more,
            *cite(_DISPATCHER, "routing_on_host", note="counts are copied to the host unless capacity or the whole graph is static"),
        ),
        **stated,
    )


DROPPED: Final = _recipe(
    "megatron-bridge-dropped",
    _DROP,
    "apply_moe_token_drop: fixed capacity, all-to-all; cuda_graph_scope full_iteration",
    version="0.1",
    released="2025-09",
    expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    capture=Capture.ITERATION,
    routing_on_host=False,
)
DROPPED_EAGER: Final = _recipe(
    "megatron-bridge-dropped-eager",
    _DROP,
    "apply_moe_token_drop: fixed capacity, all-to-all; no graphs on H100",
    version="0.1",
    released="2025-09",
    expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    routing_on_host=False,
)
ALL_TO_ALL: Final = _recipe(
    "megatron-bridge-alltoall",
    _SCOPED,
    "no dispatcher backend: all-to-all of every copy; no graphs; dropless",
    version="0.3",
    released="2026-02",
    expert_dispatch=ExpertDispatch.ALL_TO_ALL,
)
ALL_TO_ALL_OVERLAP: Final = _recipe(
    "megatron-bridge-alltoall-overlap",
    _EAGER,
    "moe_token_dispatcher_type alltoall with overlap_moe_expert_parallel_comm and delay_wgrad_compute; no graphs",
    version="0.3",
    released="2026-02",
    expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    expert_overlap=True,
)
FLEX: Final = _recipe(
    "megatron-bridge-flex",
    _EAGER,
    "hybridep dispatcher, no graphs, no overlap of expert traffic",
    version="0.4",
    released="2026-04",
)
ROUTER: Final = _recipe(
    "megatron-bridge-router",
    _SCOPED,
    "hybridep dispatcher; cuda_graph_scope moe_router and moe_preprocess",
    version="0.3",
    released="2026-02",
    capture=Capture.ROUTER,
)
ROUTER_OVERLAP: Final = _recipe(
    "megatron-bridge-router-overlap",
    f"{_TREE}/067f987df03b/skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md",
    "as megatron-bridge-router, with overlap_moe_expert_parallel_comm",
    version="0.5",
    released="2026-06",
    checked=False,
    capture=Capture.ROUTER,
    expert_overlap=True,
)
SCOPED: Final = _recipe(
    "megatron-bridge-scoped",
    _SCOPED,
    "hybridep dispatcher; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.3",
    released="2026-02",
    capture=Capture.ATTENTION_ROUTER,
)
SCOPED_KEPT: Final = _recipe(
    "megatron-bridge-scoped-kept",
    f"{_TREE}/d19cb73c80ae84b17e296b66e85058b129319510/scripts/performance/configs/deepseek/workload_base_configs.py",
    "DeepSeek-V3 on GB300: hybridep dispatcher; cuda_graph_scope attn, moe_router and moe_preprocess; recompute_modules empty",
    version="0.2",
    released="2025-11",
    capture=Capture.ATTENTION_ROUTER,
    rebuilds_latent=False,
)
SCOPED_ALL_TO_ALL: Final = _recipe(
    "megatron-bridge-scoped-alltoall",
    f"{_TREE}/767255d2f5c7c96b619a873a8ad17a3086f3e5c5/scripts/performance/configs/qwen3/workload_base_configs.py",
    "no dispatcher backend: all-to-all of every copy; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.2",
    released="2025-11",
    expert_dispatch=ExpertDispatch.ALL_TO_ALL,
    capture=Capture.ATTENTION_ROUTER,
)
GRAPHED: Final = _recipe(
    "megatron-bridge-graphed",
    _WHOLE,
    "full_iteration graph with paged stash, overlap_moe_expert_parallel_comm, one kernel for all experts "
    "(use_transformer_engine_op_fuser), fp8_dot_product_attention",
    version="0.5",
    released="2026-06",
    capture=Capture.ITERATION,
    routing_on_host=False,
    expert_overlap=True,
    fused_experts=True,
    attention_eight_bit=True,
)
GRAPHED_KEPT: Final = _recipe(
    "megatron-bridge-graphed-kept",
    _DEEPSEEK,
    "DeepSeek-V3 on GB300: full_iteration graph, overlap, fused grouped MLP, fp8_dot_product_attention, recompute_modules empty",
    version="0.5",
    released="2026-06",
    capture=Capture.ITERATION,
    routing_on_host=False,
    expert_overlap=True,
    fused_experts=True,
    attention_eight_bit=True,
    rebuilds_latent=False,
)
GRAPHED_SIXTEEN: Final = _recipe(
    "megatron-bridge-graphed-sixteen",
    _DEEPSEEK,
    "DeepSeek-V3 on GB200: full_iteration graph, overlap, fused grouped MLP, recompute_modules mla_up_proj; attention in 16 bits",
    version="0.5",
    released="2026-06",
    capture=Capture.ITERATION,
    routing_on_host=False,
    expert_overlap=True,
    fused_experts=True,
)
SCOPED_OVERLAP: Final = _recipe(
    "megatron-bridge-scoped-overlap",
    _DEEPSEEK,
    "DeepSeek-V3 on B200: deepep dispatcher, moe_a2a_overlap; cuda_graph_scope attn, moe_router and moe_preprocess",
    version="0.4",
    released="2026-04",
    capture=Capture.ATTENTION_ROUTER,
    expert_overlap=True,
)
FLEX_OVERLAP: Final = _recipe(
    "megatron-bridge-flex-overlap",
    f"{_TREE}/27dfb3df3c2cba55e54ec67016061048d4ce03c1/scripts/performance/configs/deepseek/deepseek_v3_llm_pretrain.py",
    "DeepSeek-V3 on H100: enable_deepep and a2a_1f1b; no graphs",
    version="0.1",
    released="2025-09",
    expert_overlap=True,
    overlap_grad_reduce=False,
    more=cite(
        f"{_TREE}/013284246bc0714e406c8a519b8686b7e50628ec/scripts/performance/configs/deepseek/deepseek_llm_pretrain.py",
        "overlap_grad_reduce",
        checked=True,
        note="H100: comm_overlap.overlap_grad_reduce False beside overlapped expert traffic",
    ),
)
