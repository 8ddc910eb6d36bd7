"""Sections of the screen and fields of the JSON that a verb shows beside its answer."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from rich.console import RenderableType

from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Sections of the screen, and fields of ``--json`` that are no part of a plan file."""

    sections: tuple[RenderableType, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: Beside) -> Beside:
        """Both, one below the other."""
        return Beside(
            sections=self.sections + other.sections, document=self.document | other.document
        )
