"""What every family says of its image tower, and pieces that several say alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.model.families.spelled import SPELLED
from shardwright.model.ir.fields import Fields
from shardwright.model.ir.settings import ImageInput, Settings

PROJECTOR: Final = "projector"
MAX_PATCH: Final = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """How a family's configuration says what its tower computes.

    Args:
        images: where image tokens go, and what a patch is. settings: of its blocks and of the projector, by name of the block.
        differences: what is asked for that our operators do not compute, one phrase each.
    """

    images: Callable[[Fields], ImageInput]
    settings: Callable[[Fields], Mapping[str, Settings]]
    differences: Callable[[Mapping[str, Any]], tuple[str, ...]]


def activation(fields: Fields, name: str, usual: str) -> str:
    """Our name of an activation; of one that is not known, which `unknown_activations` says, the usual one."""
    return SPELLED.get(fields.string(name, default=usual), SPELLED[usual])


def unknown_activations(asked: Mapping[str, object]) -> tuple[str, ...]:
    """Activations that are not computed, behind the names of their fields."""
    return tuple(f"{name} {str(word)[:40]}" for name, word in asked.items() if word is not None and str(word) not in SPELLED)
