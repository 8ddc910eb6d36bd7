"""Models that a target knows by a name of its own: recognised by equal blocks of our catalog, not by names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from shardwright.model.catalog.catalog import load_model
from shardwright.model.ir.graph import Model

Name = TypeVar("Name")


def published(model: Model, names: Mapping[str, Name]) -> Name | None:
    """What a target calls a model; None if it knows none of the same blocks.

    Args:
        names: of our catalog -> the target's.
    """
    for ours, theirs in names.items():
        known = load_model(ours)
        if (known.blocks, known.runs) == (model.blocks, model.runs):
            return theirs
    return None
