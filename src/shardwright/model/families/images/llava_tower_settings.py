"""LLaVA's CLIP image tower: settings of its computation, and the input of image tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.images.tower_reader_interface_and_shared_fields import (
    MAX_PATCH,
    PROJECTOR,
    Tower,
    activation_name,
    unknown_activations,
)
from shardwright.model.ir.config_json_field_access import MAX_VOCAB, Fields
from shardwright.model.ir.numerical_constants import ImageInput, Settings

STRATEGIES: Final = ("default", "full")
"""Values of ``vision_feature_select_strategy``: without, or with the class token."""


def _images(fields: Fields) -> ImageInput:
    """LLaVA's image input (whole config): token, patch pixels, class tokens left out (0 or 1)."""
    vision = fields.section("vision_config")
    side = vision.integer("patch_size", maximum=MAX_PATCH)
    with_class_token = (
        fields.choice("vision_feature_select_strategy", allowed=STRATEGIES, default=STRATEGIES[0])
        == "full"
    )
    return ImageInput(
        token=fields.integer(
            "image_token_index", "image_token_id", minimum=0, maximum=MAX_VOCAB, default=32000
        ),
        patch=(vision.integer("num_channels", default=3, maximum=64), side, side),
        first=0 if with_class_token else 1,
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    """Settings of LLaVA's blocks ``vision_embed``, ``vision``, ``projector`` (whole config)."""
    vision = fields.section("vision_config")
    eps = vision.number("layer_norm_eps", minimum=0.0, maximum=1.0, default=1e-5)
    tower = Settings(eps=eps, activation=activation_name(vision, "hidden_act", "quick_gelu"))
    projector = Settings(activation=activation_name(fields, "projector_hidden_act", "gelu"))
    return {"vision_embed": tower, "vision": tower, PROJECTOR: projector}


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Phrases on LLaVA's activations (tower, projector) that are not computed; or empty."""
    activations = {
        "hidden_act of vision_config": config["vision_config"].get("hidden_act"),
        "projector_hidden_act": config.get("projector_hidden_act"),
    }
    return unknown_activations(activations)


TOWER: Final = Tower(images=_images, settings=_settings, differences=_differences)
