"""Catalog of state-space, hybrid, sparse-attention, encoder-decoder and vision models.

`dense_models` explains ``source``.

Counts that a name only rounds are those of the weights (transformers 5.23.0 builds the same
modules) plus the prediction module.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.catalog.published_model_record import CARD, CatalogEntry, decoder, entry
from shardwright.model.catalog.vision_models import VISION_ENTRIES

_COUNTED: Final = (
    "config.json as carried by aiconfigurator-core 0.12.0; parameters as transformers 5.23.0 counts"
    " them"
)
_MTP: Final = (
    "config.json as carried by aiconfigurator-core 0.12.0; main model as transformers 5.23.0 counts"
    " it, plus one prediction module: a layer of the model, a projection of 2 x hidden squared and"
    " three norms"
)


def _jamba(layers: int, hidden: int, heads: int, ffn: int, dt_rank: int) -> dict[str, Any]:
    """Hugging Face fields of a Jamba decoder: 8 KV heads, 16 experts in every second layer."""
    periods = {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    }
    mamba = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": dt_rank}
    experts = {"num_experts": 16, "num_experts_per_tok": 2}
    return decoder(
        "JambaForCausalLM",
        layers,
        hidden,
        heads,
        8,
        65536,
        262144,
        intermediate_size=ffn,
        **periods,
        **mamba,
        **experts,
    )


def _falcon_h1(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    ssm_heads: int,
    ssm_groups: int,
    ssm_chunk: int,
) -> dict[str, Any]:
    """Hugging Face fields of a Falcon-H1 decoder; attention and Mamba-2 heads are 128 wide."""
    mamba = {
        "mamba_d_ssm": ssm_heads * 128,
        "mamba_n_heads": ssm_heads,
        "mamba_d_head": 128,
        "mamba_n_groups": ssm_groups,
    }
    sizes = {
        "head_dim": 128,
        "intermediate_size": ffn,
        "mamba_d_state": 256,
        "mamba_d_conv": 4,
        "mamba_chunk_size": ssm_chunk,
    }
    return decoder(
        "FalconH1ForCausalLM", layers, hidden, heads, kv_heads, vocab, 262144, **mamba, **sizes
    )


def _nemotron(
    hidden: int,
    heads: int,
    kv_heads: int,
    ssm_heads: int,
    ssm_state: int,
    ffn: int,
    pattern: str,
    **more: Any,
) -> dict[str, Any]:
    """Hugging Face fields of a Nemotron-H decoder with one layer for each letter of `pattern`."""
    scan = {
        "mamba_num_heads": ssm_heads,
        "mamba_head_dim": 64,
        "ssm_state_size": ssm_state,
        "n_groups": 8,
    }
    mamba = {**scan, "conv_kernel": 4, "chunk_size": 128}
    return decoder(
        "NemotronHForCausalLM",
        len(pattern),
        hidden,
        heads,
        kv_heads,
        131072,
        more.pop("context", 262144),
        head_dim=128,
        intermediate_size=ffn,
        hybrid_override_pattern=pattern,
        **mamba,
        **more,
    )


def _nemotron_experts(experts: int, topk: int, ffn: int, **more: Any) -> dict[str, Any]:
    """Expert fields of a Nemotron 3 config with a shared expert 2 x `ffn` wide, and `more`."""
    sizes = {
        "moe_intermediate_size": ffn,
        "moe_shared_expert_intermediate_size": 2 * ffn,
        "n_shared_experts": 1,
    }
    return {"n_routed_experts": experts, "num_experts_per_tok": topk, **sizes, **more}


_LATENT_PREDICTION: Final = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}
_GRANITE_SMALL: Final = decoder(
    "GraniteMoeHybridForCausalLM",
    40,
    4096,
    32,
    8,
    100352,
    131072,
    layer_types=["attention" if i % 10 == 5 else "mamba" for i in range(40)],
    num_local_experts=72,
    num_experts_per_tok=10,
    intermediate_size=768,
    shared_intermediate_size=1536,
    mamba_n_heads=128,
    mamba_d_head=64,
    mamba_d_state=128,
    mamba_n_groups=1,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=256,
    tie_word_embeddings=True,
)
_MAMBA_CODESTRAL: Final[dict[str, Any]] = {
    "architectures": ["Mamba2ForCausalLM"],
    "num_hidden_layers": 64,
    "hidden_size": 4096,
    "num_heads": 128,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "chunk_size": 256,
    "expand": 2,
    "vocab_size": 32768,
}
_QWEN3_NEXT: Final = decoder(
    "Qwen3NextForCausalLM",
    48,
    2048,
    16,
    2,
    151936,
    262144,
    head_dim=256,
    intermediate_size=5120,
    full_attention_interval=4,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
)


def _latent(
    architecture: str, layers: int, hidden: int, heads: int, vocab: int, context: int, **more: Any
) -> dict[str, Any]:
    """Hugging Face fields of a decoder with latent attention, an indexer and 256 experts."""
    experts = {
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048,
        "moe_layer_freq": 1,
    }
    depth = {"first_k_dense_replace": 3, "num_nextn_predict_layers": 1}
    index = {"index_head_dim": 128, "index_topk": 2048}
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    return decoder(
        architecture,
        layers,
        hidden,
        heads,
        heads,
        vocab,
        context,
        **experts,
        **depth,
        **index,
        **latent,
        **more,
    )


_DEEPSEEK_V32: Final = _latent(
    "DeepseekV32ForCausalLM",
    61,
    7168,
    128,
    129280,
    163840,
    intermediate_size=18432,
    q_lora_rank=1536,
    qk_nope_head_dim=128,
    v_head_dim=128,
    index_n_heads=64,
    n_group=8,
    topk_group=4,
)


def _glm5(**more: Any) -> dict[str, Any]:
    """Hugging Face fields of GLM-5 with its published sizes; `more` adds or replaces fields."""
    sizes = {
        "intermediate_size": 12288,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_n_heads": 32,
    }
    return _latent(
        "GlmMoeDsaForCausalLM", 78, 6144, 64, 154880, **{"context": 202752, **sizes, **more}
    )


_MINIMAX_M2: Final = decoder(
    "MiniMaxM2ForCausalLM",
    62,
    3072,
    48,
    8,
    200064,
    196608,
    head_dim=128,
    intermediate_size=1536,
    num_local_experts=256,
    num_experts_per_tok=8,
    use_qk_norm=True,
    qk_norm_type="per_layer",
    use_routing_bias=True,
)
_MIMO_V2: Final = decoder(
    "MiMoV2FlashForCausalLM",
    48,
    4096,
    64,
    4,
    152576,
    262144,
    head_dim=192,
    v_head_dim=128,
    intermediate_size=16384,
    sliding_window=128,
    swa_num_attention_heads=64,
    swa_num_key_value_heads=8,
    swa_head_dim=192,
    swa_v_head_dim=128,
    hybrid_layer_pattern=[0 if i in (0, 47) or i % 6 == 5 else 1 for i in range(48)],
    moe_layer_freq=[0] + [1] * 47,
    n_routed_experts=256,
    num_experts_per_tok=8,
    moe_intermediate_size=2048,
    n_group=1,
    topk_group=1,
    add_swa_attention_sink_bias=True,
    add_full_attention_sink_bias=False,
)
_MIMO: Final = decoder(
    "MiMoForCausalLM",
    36,
    4096,
    32,
    8,
    151680,
    32768,
    head_dim=128,
    intermediate_size=11008,
    attention_bias=True,
    num_nextn_predict_layers=1,
)


def _bert(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Hugging Face fields of a masked-LM BERT: feed-forward 4 x `hidden`, 512 positions."""
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }
    return {
        "architectures": ["BertForMaskedLM"],
        **sizes,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


def _t5(layers: int, hidden: int, heads: int, key: int, ffn: int, *, gated: bool) -> dict[str, Any]:
    """Hugging Face fields of a T5, heads `key` wide: gated GELU and untied, or ReLU and tied."""
    sizes = {
        "d_model": hidden,
        "num_heads": heads,
        "d_kv": key,
        "d_ff": ffn,
        "num_layers": layers,
        "vocab_size": 32128,
    }
    form = {
        "feed_forward_proj": "gated-gelu" if gated else "relu",
        "tie_word_embeddings": not gated,
    }
    return {"architectures": ["T5ForConditionalGeneration"], **sizes, **form}


_NANO: Final = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
_SUPER: Final = (
    "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"
)
_H56: Final = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"


EXTRA_ENTRIES: Final[tuple[CatalogEntry, ...]] = (
    entry("mamba-codestral-7b mamba-codestral-7b-v0.1", _MAMBA_CODESTRAL, 7_285_403_648, CARD),
    entry("jamba-v0.1", _jamba(32, 4096, 32, 14336, 256), 51_570_323_328, CARD),
    entry(
        "jamba-1.5-large",
        _jamba(72, 8192, 64, 24576, 512),
        398_000_000_000,
        "model card (398 B), from memory",
    ),
    entry(
        "falcon-h1-7b falcon-h1-7b-base",
        _falcon_h1(44, 3072, 12, 2, 12288, 130048, 24, 1, 256),
        7_590_000_000,
        CARD,
    ),
    entry(
        "falcon-h1-34b falcon-h1-34b-base",
        _falcon_h1(72, 5120, 20, 4, 21504, 261120, 32, 2, 128),
        33_600_000_000,
        CARD,
    ),
    entry("granite-4.0-h-small", _GRANITE_SMALL, 32_207_337_984, CARD),
    entry(
        "nemotron-h-56b nemotron-h-56b-base-8k",
        _nemotron(8192, 64, 8, 256, 256, 32768, _H56, context=8192),
        56_324_350_464,
        _COUNTED,
    ),
    entry(
        "nemotron-3-nano nemotron-3-nano-30b-a3b nvidia-nemotron-3-nano-30b-a3b-bf16",
        _nemotron(2688, 32, 2, 64, 128, 1856, _NANO, **_nemotron_experts(128, 6, 1856)),
        31_577_937_344,
        _COUNTED,
    ),
    entry(
        "nemotron-3-super nemotron-3-super-120b-a12b",
        _nemotron(
            4096,
            32,
            2,
            128,
            128,
            2688,
            _SUPER,
            **_nemotron_experts(512, 22, 2688, moe_latent_size=1024, **_LATENT_PREDICTION),
        ),
        123_611_012_096,
        _MTP,
    ),
    entry("qwen3-next-80b-a3b qwen3-next-80b-a3b-instruct", _QWEN3_NEXT, 79_674_391_296, CARD),
    entry("deepseek-v3.2", _DEEPSEEK_V32, 683_501_956_608, _MTP),
    entry("glm-5 glm-5.1", _glm5(), 753_864_119_552, _MTP),
    entry(
        "glm-5.3 glm-5.2",
        _glm5(context=1048576, index_topk_freq=4, index_skip_topk_offset=3),
        753_320_549_120,
        _MTP,
    ),
    entry("minimax-m2.5 minimax-m2 minimax-m2.7", _MINIMAX_M2, 228_689_748_992, _COUNTED),
    entry("mimo-7b mimo-7b-base", _MIMO, 7_833_409_536, f"{CARD}, with the prediction module"),
    entry("mimo-v2-flash", _MIMO_V2, 308_778_768_832, _COUNTED),
    entry(
        "bert-base bert-base-uncased",
        _bert(12, 768, 12),
        109_514_298,
        "parameters as transformers 5.23.0 counts BertForMaskedLM",
    ),
    entry(
        "bert-large bert-large-uncased",
        _bert(24, 1024, 16),
        335_174_458,
        "model card (335 M with the masked head), from memory",
    ),
    entry("t5-11b", _t5(24, 1024, 128, 128, 65536, gated=False), 11_307_321_344, CARD),
    entry(
        "t5-v1.1-xxl flan-t5-xxl", _t5(24, 4096, 64, 64, 10240, gated=True), 11_135_332_352, CARD
    ),
    *VISION_ENTRIES,
)
