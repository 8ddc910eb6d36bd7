"""What a configuration says of how a tower computes beyond its sizes, and where image tokens go; of CLIP towers of LLaVA."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.spelled import SPELLED
from shardwright.model.ir.fields import MAX_VOCAB, Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.settings import ImageInput, Settings

KNOWN: Final = ("LlavaForConditionalGeneration",)
STRATEGIES: Final = ("default", "full")
"""Of ``vision_feature_select_strategy``: without the class token, or with it."""
PROJECTOR: Final = "projector"
MAX_PATCH: Final = 2**12


def image_input(config: Mapping[str, Any], *, model: Model, source: str) -> ImageInput | None:
    """Where image tokens go, and what a patch is; None of a model without images, or of which only sizes are known.

    Raises:
        ModelError: a number is none that it can be.
    """
    if model.architecture not in KNOWN:
        return None
    fields = Fields(config, source)
    vision = fields.section("vision_config")
    side = vision.integer("patch_size", maximum=MAX_PATCH)
    whole = fields.choice("vision_feature_select_strategy", allowed=STRATEGIES, default=STRATEGIES[0]) == "full"
    return ImageInput(
        token=fields.integer("image_token_index", "image_token_id", minimum=0, maximum=MAX_VOCAB, default=32000),
        patch=(vision.integer("num_channels", default=3, maximum=64), side, side),
        first=0 if whole else 1,
    )


def tower_settings(config: Mapping[str, Any], *, model: Model, source: str) -> tuple[tuple[str, Settings], ...]:
    """Settings of the tower's blocks and of the projector, by name of the block.

    Raises:
        ModelError: a number is none that it can be.
    """
    if model.architecture not in KNOWN:
        return ()
    fields = Fields(config, source)
    vision = fields.section("vision_config")
    eps = vision.number("layer_norm_eps", minimum=0.0, maximum=1.0, default=1e-5)
    tower = Settings(eps=eps, activation=_spelled(vision, "hidden_act", "quick_gelu"))
    return (
        ("vision_embed", tower),
        ("vision", tower),
        (PROJECTOR, Settings(activation=_spelled(fields, "projector_hidden_act", "gelu"))),
    )


def image_differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """What is asked of a tower that our operators do not compute."""
    if model.architecture not in KNOWN:
        return ()
    vision = config.get("vision_config")
    asked = {
        "hidden_act of vision_config": vision.get("hidden_act") if isinstance(vision, Mapping) else None,
        "projector_hidden_act": config.get("projector_hidden_act"),
    }
    return tuple(f"{name} {str(word)[:40]}" for name, word in asked.items() if word is not None and str(word) not in SPELLED)


def _spelled(fields: Fields, name: str, usual: str) -> str:
    """Our name of an activation; of one that is not known, which `image_differences` says, the usual one."""
    return SPELLED.get(fields.string(name, default=usual), SPELLED[usual])
