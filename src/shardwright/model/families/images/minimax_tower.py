"""MiniMax-M3's image tower: its computation, and the places of its image tokens.

Fields are spelled as in the published configurations or as in those that Transformers writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.fields.rotary_fields import kind_of, number_of, rope_of
from shardwright.model.families.images.tower_fields import (
    MAX_PATCH,
    PROJECTOR,
    Tower,
    activation,
    unknown_activations,
)
from shardwright.model.ir.config_fields import MAX_VOCAB, Fields
from shardwright.model.ir.operator_constants import GridRotary, ImageInput, Settings

EPS: Final = 1e-5
BASE: Final = 10000.0
SECTION: Final = "img_token_compression_config"
AXES: Final = (2, 0, 1)
"""What the thirds of a head's pairs turn by: frames, rows, columns."""


def compressed(vision: Fields) -> tuple[int, int]:
    """(patches a side that become one image token, frames of a patch): of the tower, or of a
    section of it; both the same.

    Raises:
        ModelError: they differ, or patches become tokens in another way.
    """
    section = vision.optional_section(SECTION)
    if section is not None:
        section.choice(
            "image_token_compression_method", allowed=("patch_merge",), default="patch_merge"
        )
    found = []
    for name in ("spatial_merge_size", "temporal_patch_size"):
        written = [
            one.integer(name, maximum=64)
            for one in (vision, section)
            if one is not None and one.present(name)
        ]
        if len(set(written)) > 1:
            vision.fail(f"{vision.path}{name} is not that of {SECTION}", hint="keep one of them")
        found.append(written[0] if written else 2)
    return found[0], found[1]


def _images(fields: Fields) -> ImageInput:
    vision = fields.section("vision_config")
    side, (merged, frames) = vision.integer("patch_size", maximum=MAX_PATCH), compressed(vision)
    return ImageInput(
        token=fields.integer(
            "image_token_index", "image_token_id", minimum=0, maximum=MAX_VOCAB, default=200025
        ),
        patch=(vision.integer("num_channels", default=3, maximum=64), side, side),
        frames=frames,
        block=(merged, merged),
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    vision, image = fields.section("vision_config"), _images(fields)
    eps = vision.number("layer_norm_eps", minimum=0.0, maximum=1.0, default=EPS)
    written = (rope_of(vision.mapping).get("rope_theta"), vision.mapping.get("rope_theta"))
    return {
        "vision_embed": Settings(eps=eps, image=image),
        "vision": Settings(
            eps=eps,
            image=image,
            activation=activation(vision, "hidden_act", "gelu"),
            rope_base=next((base for one in written if (base := number_of(one))), BASE),
            turns=GridRotary(axes=AXES),
        ),
        PROJECTOR: Settings(eps=eps, activation="gelu"),
    }


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    vision = config["vision_config"]
    rope, act, mode = rope_of(vision), config.get("projector_hidden_act"), vision.get("rope_mode")
    kind = kind_of(rope) if "rope_type" in rope or "type" in rope else "axial"
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
