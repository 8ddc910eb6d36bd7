"""Catalog of dense decoders of Llama's form, from published configurations.

``source`` says where the hyper-parameters come from. Counts are those of the published weights;
"from memory" marks numbers that were written without the page at hand (every one was compared with
a count of the same configuration by transformers 5.23.0).
"""

from __future__ import annotations

from typing import Any, Final

from shardwright.model.catalog.published_model_record import CARD, CatalogEntry, decoder, entry

_SAME_FORM: Final = (
    f"{CARD}; modelling code of its own, of Llama's form (its fused projections are the same"
    " products)"
)
_AIC: Final = (
    "config.json of the model's repository, as carried by aiconfigurator-core 0.12.0; count of the"
    " weights index, from memory"
)


_FINE: Final = {"rms_norm_eps": 1e-5}
_LLAMA3: Final = {"rms_norm_eps": 1e-5, "rope_theta": 500000.0}


def _extended_rope(factor: float) -> dict[str, Any]:
    """Configuration fields of Llama 3.1's rotary positions, extended by `factor`."""
    scaling = {
        "rope_type": "llama3",
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    return {**_LLAMA3, "rope_scaling": {**scaling, "factor": factor}}


def _llama(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    """Hugging Face configuration of a Llama decoder; `more` are further fields."""
    return decoder(
        "LlamaForCausalLM",
        layers,
        hidden,
        heads,
        kv_heads,
        vocab,
        context,
        intermediate_size=ffn,
        **more,
    )


def _mistral(
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    vocab: int,
    context: int,
    window: int | None = None,
    base: float = 1e6,
) -> dict[str, Any]:
    """Hugging Face configuration of a Mistral decoder with 8 KV heads of 128 elements."""
    config = _llama(
        layers,
        hidden,
        heads,
        8,
        ffn,
        vocab,
        context,
        head_dim=128,
        sliding_window=window,
        rope_theta=base,
        **_FINE,
    )
    return config | {"architectures": ["MistralForCausalLM"]}


def _qwen2(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, *, tied: bool = False
) -> dict[str, Any]:
    """Hugging Face configuration of a Qwen2 decoder with a context of 32,768 tokens."""
    config = _llama(
        layers,
        hidden,
        heads,
        kv_heads,
        ffn,
        vocab,
        32768,
        tie_word_embeddings=tied,
        use_sliding_window=False,
        rope_theta=1e6,
    )
    return config | {"architectures": ["Qwen2ForCausalLM"]}


def _qwen3(layers: int, hidden: int, heads: int, ffn: int, *, tied: bool = False) -> dict[str, Any]:
    """Hugging Face configuration of a Qwen3 decoder: 8 KV heads of 128, 40,960-token context."""
    config = _llama(
        layers,
        hidden,
        heads,
        8,
        ffn,
        151936,
        40960,
        head_dim=128,
        tie_word_embeddings=tied,
        attention_bias=False,
        rope_theta=1e6,
    )
    return config | {"architectures": ["Qwen3ForCausalLM"]}


def _gemma(
    architecture: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    """Hugging Face configuration of a Gemma decoder; `more` are further fields."""
    config = _llama(layers, hidden, heads, kv_heads, ffn, vocab, context, head_dim=head_dim, **more)
    return config | {"architectures": [architecture]}


def _gemma2(
    layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int
) -> dict[str, Any]:
    """Hugging Face configuration of a Gemma 2 decoder: context 8,192, windows of 4,096 tokens."""
    caps = {"sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    return _gemma(
        "Gemma2ForCausalLM", layers, hidden, heads, kv_heads, head_dim, ffn, 256000, 8192, **caps
    )


def _gemma3(
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    window: int,
) -> dict[str, Any]:
    """Hugging Face configuration of a Gemma 3 decoder: `window` on 5 of 6 layers."""
    pattern = {"sliding_window": window, "sliding_window_pattern": 6}
    return _gemma(
        "Gemma3ForCausalLM",
        layers,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocab,
        131072,
        **pattern,
    )


_LLAMA: Final = (
    entry("llama-7b llama-1-7b", _llama(32, 4096, 32, 32, 11008, 32000, 2048), 6_738_415_616),
    entry("llama-13b llama-1-13b", _llama(40, 5120, 40, 40, 13824, 32000, 2048), 13_015_864_320),
    entry(
        "llama-30b llama-33b llama-1-33b",
        _llama(60, 6656, 52, 52, 17920, 32000, 2048),
        32_528_943_616,
    ),
    entry("llama-65b llama-1-65b", _llama(80, 8192, 64, 64, 22016, 32000, 2048), 65_285_660_672),
    entry(
        "llama-2-7b llama2-7b llama-2-7b-hf",
        _llama(32, 4096, 32, 32, 11008, 32000, 4096, **_FINE),
        6_738_415_616,
    ),
    entry(
        "llama-2-13b llama2-13b llama-2-13b-hf",
        _llama(40, 5120, 40, 40, 13824, 32000, 4096, **_FINE),
        13_015_864_320,
    ),
    entry(
        "llama-2-70b llama2-70b llama-2-70b-hf",
        _llama(80, 8192, 64, 8, 28672, 32000, 4096, **_FINE),
        68_976_648_192,
    ),
    entry(
        "llama-3-8b llama3-8b meta-llama-3-8b",
        _llama(32, 4096, 32, 8, 14336, 128256, 8192, **_LLAMA3),
        8_030_261_248,
    ),
    entry(
        "llama-3-70b llama3-70b meta-llama-3-70b",
        _llama(80, 8192, 64, 8, 28672, 128256, 8192, **_LLAMA3),
        70_553_706_496,
    ),
    entry(
        "llama-3.1-8b llama3.1-8b meta-llama-3.1-8b",
        _llama(32, 4096, 32, 8, 14336, 128256, 131072, **_extended_rope(8.0)),
        8_030_261_248,
        _AIC,
    ),
    entry(
        "llama-3.1-70b llama3.1-70b meta-llama-3.1-70b",
        _llama(80, 8192, 64, 8, 28672, 128256, 131072, **_extended_rope(8.0)),
        70_553_706_496,
        _AIC,
    ),
    entry(
        "llama-3.1-405b llama3.1-405b meta-llama-3.1-405b llama3-405b llama-3-405b",
        _llama(126, 16384, 128, 8, 53248, 128256, 131072, **_extended_rope(8.0)),
        405_853_388_800,
        _AIC,
    ),
    entry(
        "llama-3.2-1b llama3.2-1b",
        _llama(
            16,
            2048,
            32,
            8,
            8192,
            128256,
            131072,
            head_dim=64,
            tie_word_embeddings=True,
            **_extended_rope(32.0),
        ),
        1_235_814_400,
    ),
    entry(
        "llama-3.2-3b llama3.2-3b",
        _llama(
            28,
            3072,
            24,
            8,
            8192,
            128256,
            131072,
            head_dim=128,
            tie_word_embeddings=True,
            **_extended_rope(32.0),
        ),
        3_212_749_824,
    ),
    entry(
        "llama-3.3-70b llama3.3-70b",
        _llama(80, 8192, 64, 8, 28672, 128256, 131072, **_extended_rope(8.0)),
        70_553_706_496,
    ),
)

_MISTRAL: Final = (
    entry(
        "mistral-7b mistral-7b-v0.1",
        _mistral(32, 4096, 32, 14336, 32000, 32768, 4096, 10000.0),
        7_241_732_096,
    ),
    entry("mistral-7b-v0.3", _mistral(32, 4096, 32, 14336, 32768, 32768), 7_248_023_552),
    entry(
        "mistral-nemo-12b mistral-nemo mistral-nemo-base-2407",
        _mistral(40, 5120, 32, 14336, 131072, 131072),
        12_247_782_400,
    ),
    entry(
        "mistral-small-24b mistral-small-24b-base-2501",
        _mistral(40, 5120, 32, 32768, 131072, 32768, base=1e8),
        23_572_403_200,
    ),
    entry(
        "mistral-large-123b mistral-large-instruct-2407",
        _mistral(88, 12288, 96, 28672, 32768, 131072),
        122_610_069_504,
    ),
)

_PHI: Final = tuple(
    entry(names, config | {"architectures": ["Phi3ForCausalLM"]}, parameters)
    for names, config, parameters in (
        (
            "phi-3-mini phi-3-mini-4k-instruct",
            _llama(32, 3072, 32, 32, 8192, 32064, 4096, sliding_window=2047),
            3_821_079_552,
        ),
        (
            "phi-3-medium phi-3-medium-4k-instruct",
            _llama(40, 5120, 40, 10, 17920, 32064, 4096, sliding_window=2047),
            13_960_238_080,
        ),
        ("phi-4 phi-4-14b", _llama(40, 5120, 40, 10, 17920, 100352, 16384), 14_659_507_200),
    )
)

_QWEN: Final = (
    entry("qwen2-7b", _qwen2(28, 3584, 28, 4, 18944, 152064), 7_615_616_512),
    entry("qwen2-72b", _qwen2(80, 8192, 64, 8, 29568, 152064), 72_706_203_648),
    entry("qwen2.5-0.5b", _qwen2(24, 896, 14, 2, 4864, 151936, tied=True), 494_032_768),
    entry("qwen2.5-1.5b", _qwen2(28, 1536, 12, 2, 8960, 151936, tied=True), 1_543_714_304),
    entry("qwen2.5-3b", _qwen2(36, 2048, 16, 2, 11008, 151936, tied=True), 3_085_938_688),
    entry("qwen2.5-7b", _qwen2(28, 3584, 28, 4, 18944, 152064), 7_615_616_512),
    entry("qwen2.5-14b", _qwen2(48, 5120, 40, 8, 13824, 152064), 14_770_033_664),
    entry("qwen2.5-32b", _qwen2(64, 5120, 40, 8, 27648, 152064), 32_763_876_352),
    entry("qwen2.5-72b", _qwen2(80, 8192, 64, 8, 29568, 152064), 72_706_203_648),
    entry("qwen3-0.6b", _qwen3(28, 1024, 16, 3072, tied=True), 596_049_920, _AIC),
    entry("qwen3-1.7b", _qwen3(28, 2048, 16, 6144, tied=True), 1_720_574_976, _AIC),
    entry("qwen3-4b", _qwen3(36, 2560, 32, 9728, tied=True), 4_022_468_096),
    entry("qwen3-8b", _qwen3(36, 4096, 32, 12288), 8_190_735_360, _AIC),
    entry("qwen3-14b", _qwen3(40, 5120, 40, 17408), 14_768_307_200),
    entry("qwen3-32b", _qwen3(64, 5120, 64, 25600), 32_762_123_264, _AIC),
)

_GEMMA: Final = (
    entry(
        "gemma-2b",
        _gemma("GemmaForCausalLM", 18, 2048, 8, 1, 256, 16384, 256000, 8192),
        2_506_172_416,
    ),
    entry(
        "gemma-7b",
        _gemma("GemmaForCausalLM", 28, 3072, 16, 16, 256, 24576, 256000, 8192),
        8_537_680_896,
    ),
    entry("gemma-2-2b gemma2-2b", _gemma2(26, 2304, 8, 4, 256, 9216), 2_614_341_888),
    entry("gemma-2-9b gemma2-9b", _gemma2(42, 3584, 16, 8, 256, 14336), 9_241_705_984),
    entry("gemma-2-27b gemma2-27b", _gemma2(46, 4608, 32, 16, 128, 36864), 27_227_128_320),
    entry("gemma-3-1b gemma3-1b", _gemma3(26, 1152, 4, 1, 256, 6912, 262144, 512), 999_885_952),
    entry(
        "gemma-3-12b-text gemma3-12b-text",
        _gemma3(48, 3840, 16, 8, 256, 15360, 262208, 1024),
        11_766_034_176,
    ),
    entry(
        "gemma-3-27b-text gemma3-27b-text",
        _gemma3(62, 5376, 32, 16, 128, 21504, 262208, 1024),
        27_009_346_304,
    ),
)

_GLM: Final = (
    entry(
        "glm-4-9b glm-4-9b-hf",
        _llama(40, 4096, 32, 2, 13696, 151552, 131072, head_dim=128, attention_bias=True)
        | {"architectures": ["GlmForCausalLM"]},
        9_399_951_360,
    ),
    entry(
        "glm-4-32b glm-4-32b-0414",
        _llama(61, 6144, 48, 2, 23040, 151552, 32768, head_dim=128, attention_bias=False)
        | {"architectures": ["Glm4ForCausalLM"]},
        32_566_000_000,
    ),
)

_LIKE_LLAMA: Final = (
    entry("yi-6b", _llama(32, 4096, 32, 4, 11008, 64000, 4096), 6_061_035_520),
    entry("yi-34b", _llama(60, 7168, 56, 8, 20480, 64000, 4096), 34_388_917_248),
    entry(
        "codellama-34b codellama-34b-hf",
        _llama(48, 8192, 64, 8, 22016, 32000, 16384),
        33_743_970_304,
    ),
    entry("tinyllama-1.1b tinyllama", _llama(22, 2048, 32, 4, 5632, 32000, 2048), 1_100_048_384),
    entry(
        "smollm-135m",
        _llama(30, 576, 9, 3, 1536, 49152, 2048, tie_word_embeddings=True),
        134_515_008,
    ),
    entry(
        "smollm-360m",
        _llama(32, 960, 15, 5, 2560, 49152, 2048, tie_word_embeddings=True),
        361_821_120,
    ),
    entry(
        "smollm-1.7b",
        _llama(24, 2048, 32, 32, 8192, 49152, 2048, tie_word_embeddings=True),
        1_711_376_384,
    ),
    entry("internlm2-7b", _llama(32, 4096, 32, 8, 14336, 92544, 32768), 7_737_708_544, _SAME_FORM),
    entry(
        "internlm2-20b", _llama(48, 6144, 48, 8, 16384, 92544, 32768), 19_861_149_696, _SAME_FORM
    ),
    entry("baichuan2-7b", _llama(32, 4096, 32, 32, 11008, 125696, 4096), 7_505_973_248, _SAME_FORM),
    entry("qwen1.5-7b", _qwen2(32, 4096, 32, 32, 11008, 151936), 7_721_324_544),
    entry("qwen1.5-14b", _qwen2(40, 5120, 40, 40, 13696, 152064), 14_167_290_880),
    entry("qwen1.5-32b", _qwen2(64, 5120, 40, 8, 27392, 152064), 32_512_218_112),
    entry("qwen1.5-72b qwen-72b", _qwen2(80, 8192, 64, 64, 24576, 152064), 72_287_920_128),
    entry("qwen1.5-110b", _qwen2(80, 8192, 64, 8, 49152, 152064), 111_209_914_368),
)

DENSE_ENTRIES: Final[tuple[CatalogEntry, ...]] = (
    *_LLAMA,
    *_LIKE_LLAMA,
    *_MISTRAL,
    *_PHI,
    *_QWEN,
    *_GEMMA,
    *_GLM,
)
