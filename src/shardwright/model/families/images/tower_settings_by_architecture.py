"""Image towers by architecture: settings beyond sizes, and the input of image tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shardwright.model.families.images import gemma4_tower_settings as gemma_tower
from shardwright.model.families.images import kimi_tower_settings as kimi_tower
from shardwright.model.families.images import llava_tower_settings as llava_tower
from shardwright.model.families.images import minimax_tower_settings as minimax_tower
from shardwright.model.families.images import qwen_tower_settings as qwen_tower
from shardwright.model.families.images.tower_reader_interface_and_shared_fields import Tower
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import ImageInput, Settings

TOWERS: Final[Mapping[str, Tower]] = {
    "LlavaForConditionalGeneration": llava_tower.TOWER,
    "KimiK25ForConditionalGeneration": kimi_tower.TOWER,
    "MiniMaxM3SparseForConditionalGeneration": minimax_tower.TOWER,
    **dict.fromkeys(
        ("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"), qwen_tower.TOWER
    ),
    "Gemma4ForConditionalGeneration": gemma_tower.TOWER,
}
"""Architecture -> tower; only sizes are known of other towers."""


def image_input(config: Mapping[str, Any], *, model: Model, source: str) -> ImageInput | None:
    """Placeholder token and patches of a config's images; None without a tower, or if unknown.

    Raises:
        ModelError: a number is none that it can be.
    """
    tower = _tower(config, model)
    return None if tower is None else tower.images(Fields(config, source))


def tower_settings(
    config: Mapping[str, Any], *, model: Model, source: str
) -> tuple[tuple[str, Settings], ...]:
    """(block name, settings) of each block of the image tower and of the projector; or empty.

    Raises:
        ModelError: a number is none that it can be.
    """
    tower = _tower(config, model)
    return () if tower is None else tuple(tower.settings(Fields(config, source)).items())


def image_differences(config: Mapping[str, Any], *, model: Model) -> tuple[str, ...]:
    """Phrases on settings of an image tower that our operators do not compute; empty if none."""
    tower = _tower(config, model)
    return () if tower is None else tower.differences(config)


def _tower(config: Mapping[str, Any], model: Model) -> Tower | None:
    """Reader of the image tower by architecture; None without ``vision_config``, or if unknown."""
    return (
        TOWERS.get(model.architecture) if isinstance(config.get("vision_config"), Mapping) else None
    )
