"""Models that a target has under a name of its own, recognised by equal blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import TypeVar

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Shortfall
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.model_graph import Model

Name = TypeVar("Name")


def published_name(model: Model, names: Mapping[str, Name]) -> Name | None:
    """Value in `names` (by catalog name) of the model with the same blocks; None if there is none.

    Args:
        names: catalog name -> the target's name.
    """
    name = _catalog_name(model, names)
    return None if name is None else names[name]


def hyperparameter_shortfalls(model: Model, names: Collection[str]) -> Iterator[Shortfall]:
    """Yield a shortfall if the known model with these blocks has other hyperparameters.

    They are rotary positions, score scaling and norms.
    """
    name = _catalog_name(model, names)
    if name is not None and _catalog_model(name).settings != model.settings:
        yield Shortfall(
            what=f"numbers of {model.name} that sizes do not tell", instead=f"those of {name}"
        )


def _catalog_name(model: Model, names: Collection[str]) -> str | None:
    """Name in `names` of a model with the same blocks, best with equal settings; None if none."""
    matching = [name for name in names if _has_same_blocks(_catalog_model(name), model)]
    return next(
        (name for name in matching if _catalog_model(name).settings == model.settings),
        matching[0] if matching else None,
    )


@cache
def _catalog_model(name: str) -> Model:
    """Catalog model of a name, built once."""
    return load_model(name)


def _has_same_blocks(published_model: Model, model: Model) -> bool:
    """True if two models have equal blocks in the same order."""
    return (published_model.blocks, published_model.runs) == (model.blocks, model.runs)
