"""Read the router settings that act in training only: load-balancing loss and input noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.fields.rotary_fields import number_or_none
from shardwright.model.find_routers_with_balancing_loss_or_biases import router_shapes
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model

SWITCH: Final = "output_router_logits"
COEFFICIENT: Final = "router_aux_loss_coef"
NOISE: Final = "router_jitter_noise"
BALANCED: Final[Mapping[str, float]] = {
    "GptOssForCausalLM": 0.001,
    "GraniteMoeHybridForCausalLM": 0.001,
    "JambaForCausalLM": 0.001,
    "MiniMaxM2ForCausalLM": 0.001,
    "MiniMaxM3ForCausalLM": 0.001,
    "MiniMaxM3SparseForConditionalGeneration": 0.001,
    "MixtralForCausalLM": 0.001,
    "OlmoeForCausalLM": 0.01,
    "Qwen2MoeForCausalLM": 0.001,
    "Qwen3MoeForCausalLM": 0.001,
    "Qwen3NextForCausalLM": 0.001,
    "Qwen3VLMoeForConditionalGeneration": 0.001,
    "Qwen3_5MoeForCausalLM": 0.001,
    "Qwen3_5MoeForConditionalGeneration": 0.001,
}
"""Architectures whose class adds the load-balancing loss where ``output_router_logits`` is true,
and their ``router_aux_loss_coef`` where it is not written. The classes of DeepSeek, GLM-4.5, Llama
4, Nemotron-H and Gemma 4 add none.

Source: the modelling and configuration classes of Transformers 5.24;
`tests.execute.test_load_balancing` compares each with its class.
"""
NOISY: Final = ("MixtralForCausalLM", "MiniMaxM2ForCausalLM")
"""Architectures whose class multiplies what a router and its experts read by random numbers from 1
- noise to 1 + noise in training."""
OTHER_LOSSES: Final = ("aux_loss_alpha", COEFFICIENT, "router_z_loss_coef")
"""Coefficients of losses of routers that configuration files name. ``aux_loss_alpha`` is of
DeepSeek's own code (its balance loss, of each sequence where ``seq_aux`` is true); no class of
Transformers 5.24 reads it.
"""


def load_balancing(config: Mapping[str, Any], *, model: Model, source: str) -> float:
    """Coefficient of the class's load-balancing loss if ``output_router_logits``; else 0.

    Args:
        config: configuration of the language model (`huggingface_config.language_config`).

    Raises:
        ModelError: a field has an invalid value.
    """
    usual = BALANCED.get(model.architecture)
    if usual is None:
        return 0.0
    fields = Fields(config, source)
    if not fields.flag(SWITCH, default=False):
        return 0.0
    return fields.number(COEFFICIENT, minimum=0.0, maximum=1e6, default=usual)


def router_noise(config: Mapping[str, Any], *, model: Model, source: str) -> float:
    """Jitter e of the router's input in training (factors from 1 - e to 1 + e); 0 if none.

    Raises:
        ModelError: the field is not a number in its range.
    """
    if model.architecture not in NOISY:
        return 0.0
    # The class makes no noise of a number below 0.
    return max(Fields(config, source).number(NOISE, minimum=-1e6, maximum=1e6, default=0.0), 0.0)


def other_losses(config: Mapping[str, Any], *, model: Model) -> tuple[tuple[str, float], ...]:
    """(field, coefficient) of positive router losses that the published class does not add."""
    if not router_shapes(model):
        return ()
    names = (
        name for name in OTHER_LOSSES if name != COEFFICIENT or model.architecture not in BALANCED
    )
    values = ((name, number_or_none(config.get(name))) for name in names)
    return tuple((name, value) for name, value in values if value is not None and value > 0)
