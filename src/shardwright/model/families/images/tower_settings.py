"""Settings of image towers beyond their sizes, and the places of image tokens, by family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.images import (
    gemma_tower,
    kimi_tower,
    llava_tower,
    minimax_tower,
    qwen_tower,
)
from shardwright.model.families.images.tower_fields import Tower
from shardwright.model.ir.config_fields import Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import ImageInput, Settings

TOWERS: Final[Mapping[str, Tower]] = {
    "LlavaForConditionalGeneration": llava_tower.TOWER,
    "KimiK25ForConditionalGeneration": kimi_tower.TOWER,
    "MiniMaxM3SparseForConditionalGeneration": minimax_tower.TOWER,
    **dict.fromkeys(
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"), qwen_tower.TOWER
    ),
    "Gemma4ForConditionalGeneration": gemma_tower.TOWER,
}
"""By architecture; of a tower of another one only the sizes are known."""


def image_input(config: Mapping[str, Any], *, model: Model, source: str) -> ImageInput | None:
    """The places of image tokens, and the contents of a patch; None for a model without images, or
    of which only sizes are known.

    Raises:
        ModelError: a number is none that it can be.
    """
    known = _tower(config, model)
    return None if known is None else known.images(Fields(config, source))


def tower_settings(
    config: Mapping[str, Any], *, model: Model, source: str
) -> tuple[tuple[str, Settings], ...]:
    """Settings of the tower's blocks and of the projector, by name of the block.

    Raises:
        ModelError: a number is none that it can be.
    """
    known = _tower(config, model)
    return () if known is None else tuple(known.settings(Fields(config, source)).items())


def image_differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """Settings of a tower that our operators do not compute."""
    known = _tower(config, model)
    return () if known is None else known.differences(config)


def _tower(config: Mapping[str, Any], model: Model) -> Tower | None:
    return (
        TOWERS.get(model.architecture) if isinstance(config.get("vision_config"), Mapping) else None
    )
