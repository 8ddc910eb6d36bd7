"""The form of a catalog entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A published model.

    Args:
        names: the usual short name, then other spellings (lower case, hyphens).
        config: its hyper-parameters in the form of a Hugging Face configuration.
        parameters: published number of parameters in elements.
        source: where the hyper-parameters and the count were published, and whether they were written from memory.
    """

    names: tuple[str, ...]
    config: Mapping[str, Any]
    parameters: int
    source: str
