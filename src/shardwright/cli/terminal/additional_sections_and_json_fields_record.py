"""Additional sections of a screen, and fields of its JSON, that a verb prints with its answer."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from rich.console import RenderableType

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraAnswers:
    """Additional screen sections and ``--json`` fields that are not part of a plan file."""

    sections: tuple[RenderableType, ...] = ()
    document: dict[str, Any] = field(default_factory=dict)

    def __add__(self, other: ExtraAnswers) -> ExtraAnswers:
        """Concatenate the screen sections and merge the JSON fields of both."""
        return ExtraAnswers(
            sections=self.sections + other.sections, document=self.document | other.document
        )
