"""The padding row of a token embedding, which no lookup trains (``padding_idx`` of PyTorch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.family_registry import ARCHITECTURES, REGISTRY, TEXT_CONFIGS
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model

FIELD: Final = "pad_token_id"
_WITHOUT_DEFAULT: Final = (
    *(
        "ArceeForCausalLM",
        "DeciLMForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV32ForCausalLM",
    ),
    *(
        "Exaone4ForCausalLM",
        "Glm4MoeForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GptOssForCausalLM",
        "GraniteForCausalLM",
    ),
    *(
        "GraniteMoeHybridForCausalLM",
        "KimiK25ForConditionalGeneration",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
    ),
    *(
        "LlamaForCausalLM",
        "LlavaForConditionalGeneration",
        "MiMoForCausalLM",
        "MiMoV2FlashForCausalLM",
        "MiniMaxM2ForCausalLM",
    ),
    *(
        "MiniMaxM3ForCausalLM",
        "MiniMaxM3SparseForConditionalGeneration",
        "MistralForCausalLM",
        "MixtralForCausalLM",
    ),
    *(
        "NemotronForCausalLM",
        "PhiForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
    ),
    *(
        "Qwen3NextForCausalLM",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForCausalLM",
    ),
    *(
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "StableLmForCausalLM",
    ),
    "Starcoder2ForCausalLM",
)
PADDED: Final[Mapping[str, int | None]] = {
    **dict.fromkeys(_WITHOUT_DEFAULT),
    **dict.fromkeys(
        (
            "BertForMaskedLM",
            "CohereForCausalLM",
            "Cohere2ForCausalLM",
            "Ernie4_5ForCausalLM",
            "FalconH1ForCausalLM",
        ),
        0,
    ),
    **dict.fromkeys(
        ("GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM"), 0
    ),
    **dict.fromkeys(("Gemma4ForConditionalGeneration", "JambaForCausalLM"), 0),
    **dict.fromkeys(
        (
            "OPTForCausalLM",
            "Olmo2ForCausalLM",
            "Olmo3ForCausalLM",
            "OlmoeForCausalLM",
            "SeedOssForCausalLM",
        ),
        1,
    ),
    "HeliumForCausalLM": 3,
    "Phi3ForCausalLM": 32000,
    "SmolLM3ForCausalLM": 128004,
    **dict.fromkeys(("GlmForCausalLM", "Glm4ForCausalLM"), 151329),
}
"""Architectures whose class builds its token embedding with ``padding_idx``, and their
``pad_token_id`` where it is not written (None: no row). Other classes (GPT-2, T5, Mamba ..) build
it without.

Source: the modelling and configuration classes of Transformers 5.24;
`tests.execute.test_padding_classes` compares each with its class.
"""


def padding_row(config: Mapping[str, Any], *, model: Model, source: str) -> int | None:
    """Index of the padding row of the token embedding, which no lookup trains; None without one.

    Args:
        config: configuration of the language model (`huggingface_config.language_config`).

    A negative number counts from the last row, as in `torch.nn.Embedding`.

    Raises:
        ModelError: the field is not a whole number.
    """
    architecture = _text_architecture(config, model)
    if architecture not in PADDED:
        return None
    written = Fields(config, source).optional_integer(FIELD, minimum=-(2**31), maximum=2**31)
    row = written if FIELD in config else PADDED[architecture]
    return None if row is None or _is_outside(row, model) else row % model.vocab


def padding_difference(config: Mapping[str, Any], *, model: Model) -> str:
    """Text on a written padding row outside the vocabulary, if the class takes one; else empty."""
    row = config.get(FIELD)
    if (
        not isinstance(row, int)
        or _text_architecture(config, model) not in PADDED
        or not _is_outside(row, model)
    ):
        return ""
    return (
        f"{FIELD} {row} outside the vocabulary of {model.vocab}, which the published class does not"
        " take"
    )


def _is_outside(row: int, model: Model) -> bool:
    """True if a row is outside the vocabulary, with negative rows counted from the end."""
    return not -model.vocab <= row < model.vocab


def _text_architecture(config: Mapping[str, Any], model: Model) -> str:
    """Architecture of the class that embeds text: a vision-language model's language model."""
    if not any(name in config for name in TEXT_CONFIGS):
        return model.architecture
    target = REGISTRY.get(str(config.get("model_type", "")))
    return model.architecture if target is None else ARCHITECTURES[target]
