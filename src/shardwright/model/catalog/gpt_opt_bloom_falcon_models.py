"""Catalog of GPT, GPT-NeoX, OPT, BLOOM, MPT, Falcon and Nemotron models, and of Megatron's papers.

`dense_models` explains ``source``.
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.catalog.published_model_record import CatalogEntry, decoder, entry

_SC21: Final = (
    "Narayanan et al. 2021 (arXiv:2104.04473), table 1: vocabulary 51,200, sequence 2,048, learned"
    " positions, tied embedding"
)
_KORTHIKANTI: Final = (
    "Korthikanti et al. 2022 (arXiv:2205.05198), table 3: vocabulary 51,200, sequence 2,048; count"
    " as named there"
)
_BROWN: Final = (
    "Brown et al. 2020 (arXiv:2005.14165), table 2.1, with heads of whole width and Megatron's"
    " vocabulary of 51,200; count by equation 2 of arXiv:2104.04473"
)
_CARD: Final = "config.json and weights of the model's repository, from memory"


def _gpt2(
    layers: int, hidden: int, heads: int, vocab: int = 51200, positions: int = 2048
) -> dict[str, Any]:
    """Hugging Face configuration of a GPT-2 decoder with `positions` learned positions."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "vocab_size": vocab,
        "n_positions": positions,
    }


def _neox(layers: int, hidden: int, heads: int, vocab: int) -> dict[str, Any]:
    """Hugging Face configuration of a GPT-NeoX decoder: feed-forward 4 x hidden, context 2,048."""
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "vocab_size": vocab,
        "max_position_embeddings": 2048,
    }


def _opt(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Hugging Face configuration of an OPT decoder: feed-forward 4 x hidden, context 2,048."""
    return {
        "architectures": ["OPTForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "num_attention_heads": heads,
        "ffn_dim": 4 * hidden,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    }


def _bloom(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Hugging Face configuration of a BLOOM decoder: vocabulary 250,880, context 2,048."""
    return {
        "architectures": ["BloomForCausalLM"],
        "n_layer": layers,
        "hidden_size": hidden,
        "n_head": heads,
        "vocab_size": 250880,
        "seq_length": 2048,
    }


def _mpt(layers: int, hidden: int, heads: int, context: int) -> dict[str, Any]:
    """Hugging Face configuration of an MPT decoder: ALiBi, no biases, feed-forward 4 x hidden."""
    return {
        "architectures": ["MPTForCausalLM"],
        "n_layers": layers,
        "d_model": hidden,
        "n_heads": heads,
        "expansion_ratio": 4,
        "no_bias": True,
        "attn_config": {"alibi": True, "attn_type": "multihead_attention", "qk_ln": False},
        "vocab_size": 50432,
        "max_seq_len": context,
    }


def _falcon(layers: int, hidden: int, heads: int, kv_heads: int, *, modern: bool) -> dict[str, Any]:
    """Hugging Face configuration of a Falcon decoder; `modern`: the layout of 40B and 180B."""
    return {
        "architectures": ["FalconForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": modern,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
        "vocab_size": 65024,
        "max_position_embeddings": 2048,
    }


def _nemotron(layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    """Hugging Face configuration of a Nemotron-4 decoder: 8 KV heads, context of 4,096 tokens."""
    return decoder(
        "NemotronForCausalLM", layers, hidden, heads, 8, 256000, 4096, intermediate_size=ffn
    )


_MEGATRON: Final = (
    entry(
        "megatron-1.7b gpt-1.7b", _gpt2(24, 2304, 24), 1.652e9, f"{_SC21}; count by its equation 2"
    ),
    entry(
        "megatron-3.6b gpt-3.6b", _gpt2(30, 3072, 32), 3.562e9, f"{_SC21}; count by its equation 2"
    ),
    entry("megatron-7.5b gpt-7.5b", _gpt2(36, 4096, 32), 7.5e9, _SC21),
    entry("megatron-18b megatron-18.4b gpt-18b", _gpt2(40, 6144, 48), 18.4e9, _SC21),
    entry("megatron-22b gpt-22b", _gpt2(48, 6144, 64), 22e9, _KORTHIKANTI),
    entry("megatron-39b megatron-39.1b gpt-39b", _gpt2(48, 8192, 64), 39.1e9, _SC21),
    entry("megatron-76b megatron-76.1b gpt-76b", _gpt2(60, 10240, 80), 76.1e9, _SC21),
    entry("megatron-145b megatron-145.6b gpt-145b", _gpt2(80, 12288, 96), 145.6e9, _SC21),
    entry(
        "gpt3-175b gpt-3-175b gpt3 gpt-3 megatron-175b gpt-175b",
        _gpt2(96, 12288, 96),
        174.6e9,
        _SC21,
    ),
    entry("megatron-310b gpt-310b", _gpt2(96, 16384, 128), 310.1e9, _SC21),
    entry("megatron-530b gpt-530b mt-nlg-530b turing-530b", _gpt2(105, 20480, 128), 529.6e9, _SC21),
    entry("megatron-1t gpt-1t", _gpt2(128, 25600, 160), 1008e9, _SC21),
)

_GPT3: Final = (
    entry("gpt3-125m gpt-3-125m", _gpt2(12, 768, 12), 0.1259e9, _BROWN),
    entry("gpt3-350m gpt-3-350m gpt3-355m gpt-355m", _gpt2(24, 1024, 16), 0.3568e9, _BROWN),
    entry("gpt3-760m gpt-3-760m", _gpt2(24, 1536, 16), 0.7617e9, _BROWN),
    entry("gpt3-1.3b gpt-3-1.3b gpt-1.3b", _gpt2(24, 2048, 16), 1.3177e9, _BROWN),
    entry("gpt3-2.7b gpt-3-2.7b gpt-2.7b gpt-2.6b", _gpt2(32, 2560, 32), 2.6540e9, _BROWN),
    entry("gpt3-6.7b gpt-3-6.7b gpt-6.7b", _gpt2(32, 4096, 32), 6.6623e9, _BROWN),
    entry("gpt3-13b gpt-3-13b gpt-13b", _gpt2(40, 5120, 40), 12.8582e9, _BROWN),
)

_GPT: Final = (
    entry("gpt2 gpt2-124m gpt-2", _gpt2(12, 768, 12, 50257, 1024), 124_439_808, _CARD),
    entry("gpt2-medium", _gpt2(24, 1024, 16, 50257, 1024), 354_823_168, _CARD),
    entry("gpt2-large", _gpt2(36, 1280, 20, 50257, 1024), 774_030_080, _CARD),
    entry("gpt2-xl gpt2-1.5b", _gpt2(48, 1600, 25, 50257, 1024), 1_557_611_200, _CARD),
    entry("gpt-neox-20b", _neox(44, 6144, 64, 50432), 20_554_567_680, _CARD),
    entry("pythia-6.9b", _neox(32, 4096, 32, 50432), 6_857_302_016, _CARD),
    entry("pythia-12b", _neox(36, 5120, 40, 50688), 11_846_072_320, _CARD),
    entry("opt-1.3b", _opt(24, 2048, 32), 1_315_758_080, _CARD),
    entry("opt-2.7b", _opt(32, 2560, 32), 2_651_596_800, _CARD),
    entry("opt-6.7b", _opt(32, 4096, 32), 6_658_473_984, _CARD),
    entry("opt-13b", _opt(40, 5120, 40), 12_853_473_280, _CARD),
    entry("opt-30b", _opt(48, 7168, 56), 29_974_540_288, _CARD),
    entry("opt-66b", _opt(64, 9216, 72), 65.7e9, _CARD),
    entry("opt-175b", _opt(96, 12288, 96), 175e9, _CARD),
    entry("bloom-7b1 bloom-7b", _bloom(30, 4096, 32), 7_069_016_064, _CARD),
    entry("bloom-176b bloom", _bloom(70, 14336, 112), 176_247_271_424, _CARD),
    entry("mpt-7b", _mpt(32, 4096, 32, 2048), 6_649_286_656, _CARD),
    entry("mpt-30b", _mpt(48, 7168, 64, 8192), 29.96e9, _CARD),
    entry("falcon-7b", _falcon(32, 4544, 71, 71, modern=False), 6_921_720_704, _CARD),
    entry("falcon-40b", _falcon(60, 8192, 128, 8, modern=True), 41_303_293_952, _CARD),
    entry(
        "falcon-180b",
        _falcon(80, 14848, 232, 8, modern=True) | {"tie_word_embeddings": False},
        179_522_565_120,
        f"{_CARD}; the published count holds only with an untied head",
    ),
    entry(
        "nemotron-4-15b nemotron4-15b",
        _nemotron(32, 6144, 48, 24576),
        15.6e9,
        "Parmar et al. 2024 (arXiv:2402.16819), from memory",
    ),
    entry(
        "nemotron-4-340b nemotron4-340b",
        _nemotron(96, 18432, 96, 73728),
        341e9,
        "Nemotron-4 340B (arXiv:2406.11704), from memory",
    ),
)

GPT_ENTRIES: Final[tuple[CatalogEntry, ...]] = (*_MEGATRON, *_GPT3, *_GPT)
