"""Kimi-K2.5's MoonViT image tower: settings of its computation, and the input of image tokens.

Fields are spelled as in the published configurations or as in those that Transformers writes.
"""

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
from shardwright.model.ir.numerical_constants import GridRotary, ImageInput, PositionGrid, Settings

EPS: Final = 1e-5
"""Epsilon of all norms; `PROJECTOR_EPS` may override that of the projector."""
TABLE: Final = (("init_pos_emb_height", "pos_emb_height"), ("init_pos_emb_width", "pos_emb_width"))
MERGED: Final = "merge_kernel_size"
PROJECTOR_EPS: Final = ("projector_ln_eps", "projection_layer_norm_eps")


def merged_patch_sides(vision: Fields) -> tuple[int, int]:
    """(rows, columns) of patches merged into an image token: ``merge_kernel_size``, else (2, 2).

    Raises:
        ModelError: the field does not list two numbers.
    """
    merged = vision.integers(MERGED, minimum=1, maximum=64) if vision.present(MERGED) else (2, 2)
    if len(merged) != 2:
        vision.fail(f"{vision.path}{MERGED} must list two sides", hint="for example [2, 2]")
    return merged[0], merged[1]


def position_table_shape(vision: Fields) -> tuple[int, int]:
    """(rows, columns) of the table of learned positions; ModelError if it is not square.

    Raises:
        ModelError: the table is not square.
    """
    rows, columns = (vision.integer(*names, maximum=MAX_PATCH) for names in TABLE)
    if rows != columns:
        vision.unsupported(
            f"a table of {rows} x {columns} positions, which the published class takes for a square"
        )
    return rows, columns


def _images(fields: Fields) -> ImageInput:
    """Kimi's image input (whole config): placeholder token, patch pixels, merged block."""
    vision = fields.section("vision_config")
    side = vision.integer("patch_size", maximum=MAX_PATCH)
    return ImageInput(
        token=fields.integer(
            "media_placeholder_token_id",
            "image_token_id",
            minimum=0,
            maximum=MAX_VOCAB,
            default=163605,
        ),
        patch=(3, side, side),
        block=merged_patch_sides(vision),
        in_blocks=False,
    )


def _settings(fields: Fields) -> dict[str, Settings]:
    """Settings of Kimi's blocks ``vision_embed``, ``vision``, ``projector`` (whole config)."""
    vision, image = fields.section("vision_config"), _images(fields)
    rows, columns = position_table_shape(vision)
    eps_fields = vision if vision.present(PROJECTOR_EPS[0]) else fields
    eps = eps_fields.number(*PROJECTOR_EPS, minimum=0.0, maximum=1.0, default=EPS)
    return {
        "vision_embed": Settings(
            eps=EPS, image=image, stretched=PositionGrid(rows=rows, columns=columns, cubic=True)
        ),
        "vision": Settings(
            eps=EPS,
            image=image,
            activation=activation_name(vision, "hidden_act", "gelu_pytorch_tanh"),
            rope_base=rotary_base(vision),
            turns=GridRotary(axes=(1, 0), in_turns=True),
        ),
        PROJECTOR: Settings(
            eps=EPS, activation="gelu", own=(("norm", Settings(eps=eps)),) if eps != EPS else ()
        ),
    }


def _differences(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Phrases on what our operators do not compute of Kimi's tower (whole config); or empty."""
    vision = config["vision_config"]
    act = vision.get("projector_hidden_act")
    return (
        *unknown_activations({"hidden_act of vision_config": vision.get("hidden_act")}),
        *(
            (f"projector_hidden_act {str(act)[:40]}, where the published class has gelu",)
            if act not in (None, "gelu")
            else ()
        ),
        *unknown_rotary_kinds(vision),
    )


TOWER: Final = Tower(images=_images, settings=_settings, differences=_differences)
