"""Catalog of vision-language models, and of language models that come with an image tower.

`dense_models` explains the counts.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.catalog.published_model_record import CARD, CatalogEntry, entry, sizes

_COUNTED: Final = (
    "config.json as carried by aiconfigurator-core 0.12.0; parameters with the tower as"
    " transformers 5.23.0 counts them"
)
_MTP: Final = (
    "config.json as carried by aiconfigurator-core 0.12.0; main model and tower as transformers"
    " 5.23.0 counts them, plus one prediction module: a layer with softmax attention, a projection"
    " of 2 x hidden squared and three norms"
)


def _tower(depth: int, hidden: int, ffn: int, out: int, deep: tuple[int, ...]) -> dict[str, Any]:
    """Vision section of Qwen3-VL and Qwen3.5; DeepStack reads the layers with indices `deep`."""
    patch = {
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "num_position_embeddings": 2304,
    }
    sizes = {
        "depth": depth,
        "hidden_size": hidden,
        "num_heads": 16,
        "intermediate_size": ffn,
        "out_hidden_size": out,
    }
    return {**sizes, **patch, "deepstack_visual_indexes": list(deep)}


def _vl(
    architecture: str, text: dict[str, Any], vision: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Hugging Face fields of a vision-language model; `more` are further top-level fields."""
    return {"architectures": [architecture], "text_config": text, "vision_config": vision, **more}


def _qwen3_vl(
    layers: int, hidden: int, heads: int, ffn: int, tower: dict[str, Any], *, tied: bool
) -> dict[str, Any]:
    """Hugging Face fields of a dense Qwen3-VL: 8 KV heads, tied at the top level if `tied`."""
    text = sizes(layers, hidden, heads, 8, 151936, 262144, head_dim=128, intermediate_size=ffn)
    return _vl("Qwen3VLForConditionalGeneration", text, tower, tie_word_embeddings=tied)


def _qwen3_vl_moe(layers: int, hidden: int, heads: int, expert_ffn: int) -> dict[str, Any]:
    """Hugging Face fields of Qwen3-VL with 128 experts, 8 a token, and a 27-layer tower."""
    experts = {
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": expert_ffn,
        "decoder_sparse_step": 1,
    }
    text = sizes(
        layers, hidden, heads, 4, 151936, 262144, head_dim=128, mlp_only_layers=[], **experts
    )
    return _vl(
        "Qwen3VLMoeForConditionalGeneration",
        text,
        _tower(27, 1152, 4304, hidden, (8, 16, 24)),
        tie_word_embeddings=False,
    )


def _qwen3_5(
    layers: int, hidden: int, heads: int, kv_heads: int, value_heads: int, **feed: Any
) -> dict[str, Any]:
    """Hugging Face fields of Qwen3.5 with its image tower; the MoE class if `feed` has experts.

    `feed`: ``intermediate_size``, or ``num_experts``, ``num_experts_per_tok`` and
    ``moe_intermediate_size``.
    """
    linear = {
        "linear_num_key_heads": 16,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    more = {
        "head_dim": 256,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "mtp_num_hidden_layers": 1,
    }
    kind = "Qwen3_5"
    if "num_experts" in feed:
        kind = "Qwen3_5Moe"
        feed = {**feed, "shared_expert_intermediate_size": feed["moe_intermediate_size"]}
    text = sizes(layers, hidden, heads, kv_heads, 248320, 262144, **linear, **more, **feed)
    return _vl(
        f"{kind}ForConditionalGeneration",
        text,
        _tower(27, 1152, 4304, hidden, ()),
        tie_word_embeddings=False,
    )


def _gemma4(
    layers: int, hidden: int, heads: int, kv_heads: int, global_kv_heads: int, ffn: int, **moe: Any
) -> dict[str, Any]:
    """Hugging Face fields of Gemma 4 with its image tower: every sixth layer sees all keys."""
    kinds = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(layers)]
    wide = {
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": global_kv_heads,
        "attention_k_eq_v": True,
    }
    text = sizes(
        layers,
        hidden,
        heads,
        kv_heads,
        262144,
        262144,
        layer_types=kinds,
        sliding_window=1024,
        intermediate_size=ffn,
        **wide,
    )
    vision = {
        "num_hidden_layers": 27,
        "hidden_size": 1152,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "intermediate_size": 4304,
        "patch_size": 16,
        "position_embedding_size": 10240,
        "pooling_kernel_size": 3,
    }
    text = {**text, "hidden_size_per_layer_input": 0, "enable_moe_block": bool(moe), **moe}
    return _vl("Gemma4ForConditionalGeneration", text, vision, tie_word_embeddings=True)


_KIMI_TEXT: Final = sizes(
    61,
    7168,
    64,
    64,
    163840,
    262144,
    intermediate_size=18432,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    moe_intermediate_size=2048,
    n_routed_experts=384,
    n_shared_experts=1,
    num_experts_per_tok=8,
    n_group=1,
    topk_group=1,
)
_KIMI: Final = _vl(
    "KimiK25ForConditionalGeneration",
    _KIMI_TEXT,
    {
        "vt_num_hidden_layers": 27,
        "vt_hidden_size": 1152,
        "vt_num_attention_heads": 16,
        "vt_intermediate_size": 4304,
        "patch_size": 14,
        "init_pos_emb_height": 64,
        "init_pos_emb_width": 64,
        "merge_kernel_size": [2, 2],
        "mm_projector_type": "patchmerger",
    },
    tie_word_embeddings=False,
)
_MINIMAX_M3: Final = _vl(
    "MiniMaxM3SparseForConditionalGeneration",
    sizes(
        60,
        6144,
        64,
        4,
        200064,
        262144,
        head_dim=128,
        intermediate_size=3072,
        dense_intermediate_size=12288,
        shared_intermediate_size=3072,
        n_shared_experts=1,
        num_local_experts=128,
        num_experts_per_tok=4,
        use_qk_norm=True,
        qk_norm_type="per_head",
        use_routing_bias=True,
        moe_layer_freq=[0] * 3 + [1] * 57,
        sparse_attention_config={
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    ),
    {
        "num_hidden_layers": 32,
        "hidden_size": 1280,
        "num_attention_heads": 16,
        "intermediate_size": 5120,
        "patch_size": 14,
        "img_token_compression_config": {
            "image_token_compression_method": "patch_merge",
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    },
    projector_hidden_size=6144,
    tie_word_embeddings=False,
)
_CLIP_LARGE: Final = {
    "model_type": "clip_vision_model",
    "num_hidden_layers": 24,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "image_size": 336,
    "patch_size": 14,
}


def _llava(layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    """Hugging Face fields of LLaVA 1.5: CLIP-L tower, features of the last layer but one."""
    text = {
        "model_type": "llama",
        **sizes(layers, hidden, heads, heads, 32064, 4096, intermediate_size=ffn),
    }
    return _vl("LlavaForConditionalGeneration", text, _CLIP_LARGE, vision_feature_layer=-2)


_DEEP_LARGE: Final = (8, 16, 24)
_EXPERTS_256: Final = {"num_experts": 256, "num_experts_per_tok": 8}
VISION_ENTRIES: Final[tuple[CatalogEntry, ...]] = (
    entry("llava-1.5-7b llava-1.5-7b-hf", _llava(32, 4096, 32, 11008), 7_063_427_072, CARD),
    entry("llava-1.5-13b llava-1.5-13b-hf", _llava(40, 5120, 40, 13824), 13_350_839_296, CARD),
    entry(
        "qwen3-vl-2b",
        _qwen3_vl(28, 2048, 16, 6144, _tower(24, 1024, 4096, 2048, (5, 11, 17)), tied=True),
        2_127_532_032,
        _COUNTED,
    ),
    entry(
        "qwen3-vl-4b",
        _qwen3_vl(36, 2560, 32, 9728, _tower(24, 1024, 4096, 2560, (5, 11, 17)), tied=True),
        4_437_815_808,
        _COUNTED,
    ),
    entry(
        "qwen3-vl-8b",
        _qwen3_vl(36, 4096, 32, 12288, _tower(27, 1152, 4304, 4096, _DEEP_LARGE), tied=False),
        8_767_123_696,
        _COUNTED,
    ),
    entry(
        "qwen3-vl-32b",
        _qwen3_vl(64, 5120, 64, 25600, _tower(27, 1152, 4304, 5120, _DEEP_LARGE), tied=False),
        33_357_390_064,
        _COUNTED,
    ),
    entry("qwen3-vl-30b-a3b", _qwen3_vl_moe(48, 2048, 32, 768), 31_070_754_032, _COUNTED),
    entry("qwen3-vl-235b-a22b", _qwen3_vl_moe(94, 4096, 64, 1536), 235_670_022_896, _COUNTED),
    entry(
        "qwen3.5-27b qwen3.6-27b",
        _qwen3_5(64, 5120, 24, 4, 48, intermediate_size=17408),
        27_781_427_952,
        _MTP,
    ),
    entry(
        "qwen3.5-35b-a3b qwen3.6-35b-a3b",
        _qwen3_5(40, 2048, 16, 2, 32, moe_intermediate_size=512, **_EXPERTS_256),
        35_951_822_704,
        _MTP,
    ),
    entry(
        "qwen3.5-122b-a10b",
        _qwen3_5(48, 3072, 32, 2, 64, moe_intermediate_size=1024, **_EXPERTS_256),
        125_086_497_008,
        _MTP,
    ),
    entry(
        "qwen3.5-397b-a17b",
        _qwen3_5(
            60, 4096, 32, 2, 64, moe_intermediate_size=1024, num_experts=512, num_experts_per_tok=10
        ),
        403_397_928_944,
        _MTP,
    ),
    entry(
        "gemma-4-26b-a4b",
        _gemma4(
            30, 2816, 16, 8, 2, 2112, num_experts=128, top_k_experts=8, moe_intermediate_size=704
        ),
        25_805_933_872,
        _COUNTED,
    ),
    entry(
        "gemma-4-31b gemma-4-31b-it", _gemma4(60, 5376, 32, 16, 4, 21504), 31_273_086_512, _COUNTED
    ),
    entry("kimi-k2.5 kimi-k2.6", _KIMI, 1_026_879_353_328, _COUNTED),
    entry("minimax-m3", _MINIMAX_M3, 427_040_132_864, _COUNTED),
)
