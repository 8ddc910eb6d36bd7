"""Interface of an image tower's reader, and readers of fields that several towers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.families.fields.activation_names import SPELLED
from shardwright.model.families.fields.rotary_fields import number_or_none, rotary_kind
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.numerical_constants import ImageInput, Settings

PROJECTOR: Final = "projector"
MAX_PATCH: Final = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Reader of a family's image tower: its settings from a configuration.

    Args:
        images: placeholder token, patch and merged block.
        settings: block -> settings of the tower's blocks and the projector.
        differences: settings that our operators do not compute, one phrase each.
    """

    images: Callable[[Fields], ImageInput]
    settings: Callable[[Fields], Mapping[str, Settings]]
    differences: Callable[[Mapping[str, Any]], tuple[str, ...]]


def activation_name(fields: Fields, name: str, default: str) -> str:
    """Our name of the activation in field `name`; that of `default` if unknown or not written."""
    return SPELLED.get(fields.string(name, default=default), SPELLED[default])


def unknown_activations(activations: Mapping[str, object]) -> tuple[str, ...]:
    """``field value`` for each written activation that no operator computes."""
    return tuple(
        f"{name} {str(word)[:40]}"
        for name, word in activations.items()
        if word is not None and str(word) not in SPELLED
    )


def rotary_base(vision: Fields, *, default: float = 10000.0) -> float:
    """``rope_theta`` of a vision section's rotary positions; `default` if not written or 0."""
    return number_or_none(_rope(vision.mapping).get("rope_theta")) or default


def unknown_rotary_kinds(
    vision: Mapping[str, Any], *, known: tuple[str, ...] = ("axial",)
) -> tuple[str, ...]:
    """One phrase on a tower's written rotary kind that is not among `known`; else empty."""
    rope = _rope(vision)
    kind = rotary_kind(rope) if "rope_type" in rope or "type" in rope else "axial"
    return () if kind in known else (f"rotary positions of kind {str(kind)[:40]} in a tower",)


def _rope(vision: Mapping[str, Any]) -> Mapping[str, Any]:
    """``rope_parameters`` of an image tower's section; empty if not written."""
    found = vision.get("rope_parameters")
    return found if isinstance(found, Mapping) else {}
