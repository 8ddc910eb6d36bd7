"""MiniMax-M3's image tower: settings of its computation, and the input of image tokens.

Fields are spelled as in the published configurations or as in those that Transformers writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.fields.rotary_fields import (
    number_or_none,
    rotary_kind,
    rotary_settings,
)
from shardwright.model.families.images.tower_reader_interface_and_shared_fields import (
    MAX_PATCH,
    PROJECTOR,
    Tower,
    activation_name,
    unknown_activations,
)
from shardwright.model.ir.config_json_field_access import MAX_VOCAB, Fields
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, Settings

EPS: Final = 1e-5
BASE: Final = 10000.0
SECTION: Final = "img_token_compression_config"
AXES: Final = (2, 0, 1)
"""Axes of the thirds of a head's rotary pairs: frames, rows, columns."""


def merge_sizes(vision: Fields) -> tuple[int, int]:
    """(patches a side of an image token, frames of a patch), default 2; ModelError on conflict.

    Raises:
        ModelError: the values differ, or patches are merged in another way.
    """
    section = vision.optional_section(SECTION)
    if section is not None:
        section.choice(
            "image_token_compression_method", allowed=("patch_merge",), default="patch_merge"
        )
    sizes = []
    for name in ("spatial_merge_size", "temporal_patch_size"):
        written = [
            fields.integer(name, maximum=64)
            for fields in (vision, section)
            if fields is not None and fields.present(name)
        ]
        if len(set(written)) > 1:
            vision.fail(f"{vision.path}{name} is not that of {SECTION}", hint="keep one of them")
        sizes.append(written[0] if written else 2)
    return sizes[0], sizes[1]


def _images(fields: Fields) -> ImageInput:
    """MiniMax-M3's image input (whole config): token, patch pixels, its frames, merged block."""
    vision = fields.section("vision_config")
    side, (merged, frames) = vision.integer("patch_size", maximum=MAX_PATCH), merge_sizes(vision)
    return ImageInput(
        token=fields.integer(
            "image_token_index", "image_token_id", minimum=0, maximum=MAX_VOCAB, default=200025
        ),
        patch=(vision.integer("num_channels", default=3, maximum=64), side, side),
        frames=frames,
        block=(merged, merged),
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    """Settings of MiniMax-M3's ``vision_embed``, ``vision``, ``projector`` (whole config)."""
    vision, image = fields.section("vision_config"), _images(fields)
    eps = vision.number("layer_norm_eps", minimum=0.0, maximum=1.0, default=EPS)
    written = (rotary_settings(vision.mapping).get("rope_theta"), vision.mapping.get("rope_theta"))
    return {
        "vision_embed": Settings(eps=eps, image=image),
        "vision": Settings(
            eps=eps,
            image=image,
            activation=activation_name(vision, "hidden_act", "gelu"),
            rope_base=next((base for one in written if (base := number_or_none(one))), BASE),
            turns=GridRotary(axes=AXES),
        ),
        PROJECTOR: Settings(eps=eps, activation="gelu"),
    }


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Phrases on what our operators do not compute of MiniMax-M3's tower; or empty."""
    vision = config["vision_config"]
    rope, act, mode = (
        rotary_settings(vision),
        config.get("projector_hidden_act"),
        vision.get("rope_mode"),
    )
    kind = rotary_kind(rope) if "rope_type" in rope or "type" in rope else "axial"
    return (
        *unknown_activations({"hidden_act of vision_config": vision.get("hidden_act")}),
        *(
            (f"projector_hidden_act {str(act)[:40]}, where the published class has gelu",)
            if act not in (None, "gelu")
            else ()
        ),
        *((f"rotary positions of kind {kind} in a tower",) if kind != "axial" else ()),
        *((f"rope_mode {str(mode)[:40]} of a tower",) if mode not in (None, "3d") else ()),
    )


TOWER: Final = Tower(images=_images, settings=_settings, differences=_differences)
