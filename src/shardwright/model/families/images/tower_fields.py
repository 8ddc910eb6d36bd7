"""Fields of image towers: the reader protocol of a family's tower, and pieces that several families
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from shardwright.lazy_dataclass import dataclass
from shardwright.model.families.fields.activation_names import SPELLED
from shardwright.model.families.fields.rotary_fields import kind_of, number_of
from shardwright.model.ir.config_fields import Fields
from shardwright.model.ir.operator_constants import ImageInput, Settings

PROJECTOR: Final = "projector"
MAX_PATCH: Final = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """Reader of a family's image tower: its settings from a configuration.

    Args:
        images: where image tokens go, and what a patch is.
        settings: of its blocks and of the projector, by name of the block.
        differences: what is asked for that our operators do not compute, one phrase each.
    """

    images: Callable[[Fields], ImageInput]
    settings: Callable[[Fields], Mapping[str, Settings]]
    differences: Callable[[Mapping[str, Any]], tuple[str, ...]]


def activation(fields: Fields, name: str, usual: str) -> str:
    """Our name of an activation; of one that is not known, which `unknown_activations` says, the
    usual one.
    """
    return SPELLED.get(fields.string(name, default=usual), SPELLED[usual])


def unknown_activations(asked: Mapping[str, object]) -> tuple[str, ...]:
    """Activations that are not computed, behind the names of their fields."""
    return tuple(
        f"{name} {str(word)[:40]}"
        for name, word in asked.items()
        if word is not None and str(word) not in SPELLED
    )


def turning_base(vision: Fields, *, usual: float = 10000.0) -> float:
    """Of the tower's rotary positions; where it is not written, the usual one."""
    return number_of(_rope(vision.mapping).get("rope_theta")) or usual


def unknown_turns(
    vision: Mapping[str, Any], *, known: tuple[str, ...] = ("axial",)
) -> tuple[str, ...]:
    """A kind of rotary positions that is written and that no tower of the family has."""
    rope = _rope(vision)
    kind = kind_of(rope) if "rope_type" in rope or "type" in rope else "axial"
    return () if kind in known else (f"rotary positions of kind {str(kind)[:40]} in a tower",)


def _rope(vision: Mapping[str, Any]) -> Mapping[str, Any]:
    found = vision.get("rope_parameters")
    return found if isinstance(found, Mapping) else {}
