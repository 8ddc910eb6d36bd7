"""Gemma 4's image tower: settings of its computation, and the input of image tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.images.tower_reader_interface_and_shared_fields import (
    MAX_PATCH,
    PROJECTOR,
    Tower,
    activation_name,
    rotary_base,
    unknown_activations,
    unknown_rotary_kinds,
)
from shardwright.model.ir.config_json_field_access import MAX_VOCAB, Fields
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, PositionAxes, Settings

AXIAL: Final = ("axial", "default")
"""Kinds of rotary positions; files older than the name ``axial`` have ``default``."""
BASE: Final = 100.0
MAX_SIDE: Final = 2**24


def _images(fields: Fields) -> ImageInput:
    """Gemma 4's image input (whole config): placeholder token, patch pixels, pooled block."""
    vision = fields.section("vision_config")
    side, pooled = (
        vision.integer("patch_size", maximum=MAX_PATCH),
        vision.integer("pooling_kernel_size", maximum=64, default=3),
    )
    return ImageInput(
        token=fields.integer("image_token_id", minimum=0, maximum=MAX_VOCAB, default=258880),
        patch=(3, side, side),
        block=(pooled, pooled),
        in_blocks=False,
        channels_last=True,
        spread=True,
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    """Settings of Gemma 4's blocks ``vision_embed``, ``vision``, ``projector`` (whole config)."""
    vision, image = fields.section("vision_config"), _images(fields)
    eps = vision.number("rms_norm_eps", minimum=0.0, maximum=1.0, default=1e-6)
    table = PositionAxes(rows=vision.integer("position_embedding_size", maximum=MAX_SIDE))
    return {
        "vision_embed": Settings(eps=eps, image=image, stretched=table),
        "vision": Settings(
            eps=eps,
            image=image,
            activation=activation_name(vision, "hidden_activation", "gelu_pytorch_tanh"),
            rope_base=rotary_base(vision, default=BASE),
            turns=GridRotary(axes=(1, 0), apart=True),
            plain_scores=True,
        ),
        PROJECTOR: Settings(eps=eps),
    }


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Phrases on what our operators do not compute of Gemma 4's tower (whole config); or empty."""
    vision = config["vision_config"]
    return (
        *unknown_activations(
            {"hidden_activation of vision_config": vision.get("hidden_activation")}
        ),
        *unknown_rotary_kinds(vision, known=AXIAL),
        *(
            ("products between bounds (use_clipped_linears)",)
            if vision.get("use_clipped_linears")
            else ()
        ),
    )


TOWER: Final = Tower(images=_images, settings=_settings, differences=_differences)
