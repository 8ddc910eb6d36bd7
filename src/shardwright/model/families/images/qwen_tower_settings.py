"""Qwen3-VL's image tower: settings of its computation, and the input of image tokens."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any, Final

from shardwright.model.blocks.deepstack import DEEP
from shardwright.model.families.images.tower_reader_interface_and_shared_fields import (
    MAX_PATCH,
    PROJECTOR,
    Tower,
    activation_name,
    rotary_base,
    unknown_activations,
    unknown_rotary_kinds,
)
from shardwright.model.ir.config_json_field_access import MAX_HIDDEN, MAX_VOCAB, Fields
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, PositionGrid, Settings

EPS: Final = 1e-6
"""Epsilon of all norms of the tower and its mergers."""
MAX_POSITIONS: Final = 2**24


def _images(fields: Fields) -> ImageInput:
    """Qwen3-VL's image input (whole config): token, patch pixels, its frames, merged block."""
    vision = fields.section("vision_config")
    side, merged = (
        vision.integer("patch_size", maximum=MAX_PATCH),
        vision.integer("spatial_merge_size", maximum=64),
    )
    return ImageInput(
        token=fields.integer("image_token_id", minimum=0, maximum=MAX_VOCAB, default=151655),
        patch=(vision.integer("in_channels", maximum=64), side, side),
        frames=vision.integer("temporal_patch_size", maximum=64),
        block=(merged, merged),
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    """Settings of Qwen3-VL's tower blocks, DeepStack mergers and projector (whole config)."""
    vision, image = fields.section("vision_config"), _images(fields)
    side = isqrt(vision.integer("num_position_embeddings", maximum=MAX_POSITIONS))
    merger = Settings(eps=EPS, activation="gelu")
    return {
        "vision_embed": Settings(
            eps=EPS, image=image, stretched=PositionGrid(rows=side, columns=side, corners=True)
        ),
        "vision": Settings(
            eps=EPS,
            image=image,
            activation=activation_name(vision, "hidden_act", "gelu_pytorch_tanh"),
            rope_base=rotary_base(vision),
            turns=GridRotary(),
        ),
        DEEP: merger,
        PROJECTOR: merger,
    }


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Phrases on what our operators do not compute of Qwen3-VL's tower (whole config); or empty."""
    vision = config["vision_config"]
    fields = Fields(dict(vision), "vision_config")
    width = fields.integer("hidden_size", maximum=MAX_HIDDEN) // fields.integer(
        "num_heads", maximum=MAX_HIDDEN
    )
    return (
        *unknown_activations({"hidden_act of vision_config": vision.get("hidden_act")}),
        *unknown_rotary_kinds(vision),
        *(
            (f"rotary positions of two axes in heads of {width} elements of a tower",)
            if width % 4
            else ()
        ),
    )


TOWER: Final = Tower(images=_images, settings=_settings, differences=_differences)
