"""GLM-4 (dense): Llama's form with biases on q, k and v; GLM-4-0414 also norms the outputs of the sub-blocks."""

from __future__ import annotations

from shardwright.model.blocks.decoder import configured_model
from shardwright.model.families.llama import gated_layers
from shardwright.model.ir.fields import Fields
from shardwright.model.ir.graph import Model


def build_glm(fields: Fields) -> Model:
    """GLM-4 of 2024 (`GlmConfig`: attention_bias true, head_dim 128, untied)."""
    layers = gated_layers(fields, windows=(0,) * fields.layers(), head_dim=128, attention_bias=fields.flag("attention_bias", default=True))
    return configured_model(fields, layers=layers)


def build_glm4(fields: Fields) -> Model:
    """GLM-4-0414 (`Glm4Config`: attention_bias true, head_dim 128, untied): norms before and after each sub-block."""
    bias = fields.flag("attention_bias", default=True)
    layers = gated_layers(fields, windows=(0,) * fields.layers(), head_dim=128, attention_bias=bias, post_norms=True)
    return configured_model(fields, layers=layers)
