"""Catalog of mixture-of-experts decoders; `dense_models` explains ``source``."""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.catalog.published_model_record import CARD, CatalogEntry, decoder, entry

_AIC: Final = (
    "config.json of the model's repository, as carried by aiconfigurator-core 0.12.0; count of the"
    " weights index, from memory"
)
_COUNTED: Final = (
    "config.json of the model's repository, as carried by aiconfigurator-core 0.12.0; text"
    " parameters as transformers 5.23.0 counts them (the published totals, 1 T, 109 B and 400 B,"
    " are rounded, and Llama 4's include the vision tower)"
)
_MTP: Final = (
    "config.json as carried by aiconfigurator-core 0.12.0; 671.0 B of the main model and 11.5 B of"
    " its own in the prediction module"
)
_GLM_MTP: Final = (
    f"{CARD}; less the copies of embedding and head that the weights store again for the prediction"
    " module"
)


def _mixtral(layers: int, hidden: int, heads: int, ffn: int, context: int) -> dict[str, Any]:
    """Hugging Face fields of a Mixtral decoder: 8 KV heads, 8 experts, 2 a token, no window."""
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2}
    return decoder(
        "MixtralForCausalLM",
        layers,
        hidden,
        heads,
        8,
        32000,
        context,
        intermediate_size=ffn,
        sliding_window=None,
        **experts,
    )


def _qwen3(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    expert_ffn: int,
    experts: int,
    context: int,
) -> dict[str, Any]:
    """Hugging Face fields of a Qwen3-MoE decoder: experts in all layers, 8 a token."""
    return decoder(
        "Qwen3MoeForCausalLM",
        layers,
        hidden,
        heads,
        kv_heads,
        151936,
        context,
        head_dim=128,
        rope_theta=1e6,
        intermediate_size=ffn,
        moe_intermediate_size=expert_ffn,
        num_experts=experts,
        num_experts_per_tok=8,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )


def _qwen2(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    expert_ffn: int,
    shared_ffn: int,
    experts: int,
    topk: int,
    context: int,
) -> dict[str, Any]:
    """Hugging Face fields of a Qwen2-MoE decoder: experts in all layers and a shared expert."""
    return decoder(
        "Qwen2MoeForCausalLM",
        layers,
        hidden,
        heads,
        kv_heads,
        151936,
        context,
        moe_intermediate_size=expert_ffn,
        shared_expert_intermediate_size=shared_ffn,
        num_experts=experts,
        num_experts_per_tok=topk,
        decoder_sparse_step=1,
    )


def _latent(
    architecture: str, layers: int, hidden: int, heads: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    """Hugging Face fields of a decoder with DeepSeek's latent attention of fixed widths."""
    sizes = {
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "moe_layer_freq": 1,
    }
    return decoder(architecture, layers, hidden, heads, heads, vocab, context, **sizes, **more)


def _deepseek_v3(predictors: int) -> dict[str, Any]:
    """Hugging Face fields of DeepSeek-V3 with `predictors` multi-token prediction modules."""
    return _latent(
        "DeepseekV3ForCausalLM",
        61,
        7168,
        128,
        129280,
        163840,
        q_lora_rank=1536,
        intermediate_size=18432,
        moe_intermediate_size=2048,
        n_routed_experts=256,
        n_shared_experts=1,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        first_k_dense_replace=3,
        num_nextn_predict_layers=predictors,
    )


def _glm(
    layers: int, hidden: int, ffn: int, expert_ffn: int, experts: int, dense: int, *, qk_norm: bool
) -> dict[str, Any]:
    """Hugging Face fields of GLM-4.5: experts, 8 a token, behind the first `dense` dense layers."""
    return decoder(
        "Glm4MoeForCausalLM",
        layers,
        hidden,
        96,
        8,
        151552,
        131072,
        head_dim=128,
        attention_bias=True,
        use_qk_norm=qk_norm,
        intermediate_size=ffn,
        moe_intermediate_size=expert_ffn,
        n_routed_experts=experts,
        n_shared_experts=1,
        num_experts_per_tok=8,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=dense,
        num_nextn_predict_layers=1,
    )


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    """Hugging Face fields of gpt-oss: even layers see 128 keys, odd ones all; 4 experts a token."""
    kinds = ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(layers)]
    return decoder(
        "GptOssForCausalLM",
        layers,
        2880,
        64,
        8,
        201088,
        131072,
        head_dim=64,
        attention_bias=True,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=kinds,
    )


def _llama4(experts: int, moe_step: int, context: int, *, qk_norm: bool) -> dict[str, Any]:
    """Hugging Face fields of Llama 4: 48 layers, 1 expert a token in every `moe_step`-th layer."""
    return decoder(
        "Llama4ForCausalLM",
        48,
        5120,
        40,
        8,
        202048,
        context,
        head_dim=128,
        intermediate_size=8192,
        intermediate_size_mlp=16384,
        num_local_experts=experts,
        num_experts_per_tok=1,
        interleave_moe_layer_step=moe_step,
        attention_chunk_size=8192,
        use_qk_norm=qk_norm,
    )


_V2: Final = _latent(
    "DeepseekV2ForCausalLM",
    60,
    5120,
    128,
    102400,
    163840,
    q_lora_rank=1536,
    intermediate_size=12288,
    moe_intermediate_size=1536,
    n_routed_experts=160,
    n_shared_experts=2,
    num_experts_per_tok=6,
    n_group=8,
    topk_group=3,
    first_k_dense_replace=1,
)
_V2_LITE: Final = _latent(
    "DeepseekV2ForCausalLM",
    27,
    2048,
    16,
    102400,
    163840,
    q_lora_rank=None,
    intermediate_size=10944,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
)
_KIMI_K2: Final = _latent(
    "DeepseekV3ForCausalLM",
    61,
    7168,
    64,
    163840,
    131072,
    q_lora_rank=1536,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_nextn_predict_layers=0,
)

_MOONLIGHT: Final = _latent(
    "DeepseekV3ForCausalLM",
    27,
    2048,
    16,
    163840,
    8192,
    intermediate_size=11264,
    moe_intermediate_size=1408,
    n_routed_experts=64,
    n_shared_experts=2,
    num_experts_per_tok=6,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    num_nextn_predict_layers=0,
    q_lora_rank=None,
)

MOE_ENTRIES: Final[tuple[CatalogEntry, ...]] = (
    entry(
        "mixtral-8x7b mixtral-8x7b-v0.1", _mixtral(32, 4096, 32, 14336, 32768), 46_702_792_704, _AIC
    ),
    entry(
        "mixtral-8x22b mixtral-8x22b-v0.1",
        _mixtral(56, 6144, 48, 16384, 65536),
        140_620_634_112,
        _AIC,
    ),
    entry("qwen1.5-moe-a2.7b", _qwen2(24, 2048, 16, 16, 1408, 5632, 60, 4, 8192), 14_315_784_192),
    entry("qwen2-57b-a14b", _qwen2(28, 3584, 28, 4, 2560, 20480, 64, 8, 131072), 57.41e9),
    entry("qwen3-30b-a3b", _qwen3(48, 2048, 32, 4, 6144, 768, 128, 40960), 30_532_122_624, _AIC),
    entry(
        "qwen3-235b-a22b", _qwen3(94, 4096, 64, 4, 12288, 1536, 128, 40960), 235_093_634_560, _AIC
    ),
    entry(
        "qwen3-coder-480b-a35b qwen3-coder-480b-a35b-instruct qwen3-coder",
        _qwen3(62, 6144, 96, 8, 8192, 2560, 160, 262144),
        480_154_875_392,
        _AIC,
    ),
    entry("deepseek-v2 deepseek-v2-236b", _V2, 235_741_434_880),
    entry("deepseek-v2-lite deepseek-v2-lite-16b", _V2_LITE, 15_706_484_224),
    entry("deepseek-v3 deepseek-v3-671b deepseek-v3.1", _deepseek_v3(1), 682.5e9, _MTP),
    entry("deepseek-r1 deepseek-r1-671b", _deepseek_v3(1), 682.5e9, _MTP),
    entry("deepseek-v3-no-mtp", _deepseek_v3(0), 671.0e9, _MTP),
    entry("kimi-k2 kimi-k2-instruct kimi-k2-base", _KIMI_K2, 1.0264e12, _COUNTED),
    entry("moonlight-16b-a3b moonlight-16b moonlight", _MOONLIGHT, 15.96e9, _COUNTED),
    entry(
        "glm-4.5 glm-4.6",
        _glm(92, 5120, 12288, 1536, 160, 3, qk_norm=True),
        358_337_776_896 - 2 * 151552 * 5120,
        _GLM_MTP,
    ),
    entry(
        "glm-4.5-air",
        _glm(46, 4096, 10944, 1408, 128, 1, qk_norm=False),
        110_468_824_832 - 2 * 151552 * 4096,
        _GLM_MTP,
    ),
    entry(
        "gpt-oss-20b",
        _gpt_oss(24, 32),
        20.91e9,
        "config.json as carried by aiconfigurator-core 0.12.0; gpt-oss model card",
    ),
    entry(
        "gpt-oss-120b",
        _gpt_oss(36, 128),
        116.83e9,
        "config.json as carried by aiconfigurator-core 0.12.0; gpt-oss model card",
    ),
    entry(
        "llama-4-scout-text llama4-scout-text llama-4-scout llama4-scout llama-4-scout-17b-16e",
        _llama4(16, 1, 10485760, qk_norm=True),
        107.77e9,
        _COUNTED,
    ),
    entry(
        "llama-4-maverick-text llama4-maverick-text llama-4-maverick llama4-maverick"
        " llama-4-maverick-17b-128e",
        _llama4(128, 2, 1048576, qk_norm=False),
        400.71e9,
        _COUNTED,
    ),
)
