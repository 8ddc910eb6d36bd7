"""What a configuration says of how a tower computes beyond its sizes, and where image tokens go; by
family.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.images import gemma_tower as images_gemma
from shardwright.model.families.images import kimi_tower as images_kimi
from shardwright.model.families.images import llava_tower as images_llava
from shardwright.model.families.images import minimax_tower as images_minimax
from shardwright.model.families.images import qwen_tower as images_qwen
from shardwright.model.families.images.tower_fields import Tower
from shardwright.model.ir.fields import Fields
from shardwright.model.ir.graph import Model
from shardwright.model.ir.settings import ImageInput, Settings

TOWERS: Final[Mapping[str, Tower]] = {
    "LlavaForConditionalGeneration": images_llava.TOWER,
    "KimiK25ForConditionalGeneration": images_kimi.TOWER,
    "MiniMaxM3SparseForConditionalGeneration": images_minimax.TOWER,
    **dict.fromkeys(
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"), images_qwen.TOWER
    ),
    "Gemma4ForConditionalGeneration": images_gemma.TOWER,
}
"""By architecture; of a tower of another one only the sizes are known."""


def image_input(config: Mapping[str, Any], *, model: Model, source: str) -> ImageInput | None:
    """Where image tokens go, and what a patch is; None of a model without images, or of which only
    sizes are known.

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
    """What is asked of a tower that our operators do not compute."""
    known = _tower(config, model)
    return () if known is None else known.differences(config)


def _tower(config: Mapping[str, Any], model: Model) -> Tower | None:
    return (
        TOWERS.get(model.architecture) if isinstance(config.get("vision_config"), Mapping) else None
    )
