"""Models that a target knows by a name of its own: recognised by equal blocks of our catalog, not
by names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TypeVar

from shardwright.frameworks.export.exporter import Shortfall
from shardwright.model.catalog.models_by_name import load_model
from shardwright.model.ir.model_graph import Model

Name = TypeVar("Name")


def published(model: Model, names: Mapping[str, Name]) -> Name | None:
    """The target's name of a model; None if it knows no model with the same blocks.

    Args:
        names: of our catalog -> the target's.
    """
    known = _known(model, names)
    return None if known is None else names[known]


def other_numbers(model: Model, names: Collection[str]) -> Iterator[Shortfall]:
    """A shortfall if a model of a published size computes with other numbers than the published
    one (rotary positions, score scaling, norms).
    """
    known = _known(model, names)
    if known is not None and _catalog(known).settings != model.settings:
        yield Shortfall(
            what=f"numbers of {model.name} that sizes do not tell", instead=f"those of {known}"
        )


def _known(model: Model, names: Collection[str]) -> str | None:
    """Our name of a model of the same blocks, the one that computes with the same numbers before
    others.
    """
    found = [name for name in names if _same(_catalog(name), model)]
    return next(
        (name for name in found if _catalog(name).settings == model.settings),
        found[0] if found else None,
    )


@cache
def _catalog(name: str) -> Model:
    """A model of our catalog, built once."""
    return load_model(name)


def _same(known: Model, model: Model) -> bool:
    return (known.blocks, known.runs) == (model.blocks, model.runs)
