"""Computation of a checkpoint's model beyond its parameter shapes: heads, routing, scans, numbers.
Kept with the checkpoint, and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings

OF_TRAINING: Final = ("padding_row", "load_balancing", "router_noise", "dropout", "other_losses")
"""Settings that training alone computes with: a checkpoint may go on with others."""
FLAGS: Final = ("tempered", "weighed", "biased", "adds", "sees_images")
"""Of operators, kept where they are set."""


def model_computation(model: Model, settings: Settings) -> dict[str, Any]:
    """Names and values, ``layer.core.attention.heads`` = 6: of settings, and of the shapes of each
    block's operators.
    """
    found = dict(_leaves("settings", _forward(settings)))
    for block in model.blocks:
        for operator in block.operators:
            for name in ("attention", "experts", "scan"):
                found |= dict(
                    _leaves(f"{block.name}.{operator.name}.{name}", getattr(operator, name))
                )
            found[f"{block.name}.{operator.name}.groups"] = operator.groups
            found |= {
                f"{block.name}.{operator.name}.{name}": True
                for name in FLAGS
                if getattr(operator, name)
            }
            found |= (
                dict(_leaves(f"{block.name}.{operator.name}.choice", operator.choice))
                if operator.choice
                else {}
            )
            found |= (
                {f"{block.name}.{operator.name}.factors": repr(operator.factors)}
                if operator.factors
                else {}
            )
            merged = {"joins": operator.joins, "folds": operator.folds}
            found |= {
                f"{block.name}.{operator.name}.{name}": count
                for name, count in merged.items()
                if count > 1
            }
    return found


def require_same_computation(
    saved: Mapping[str, Any], model: Model, settings: Settings, *, folder: Path
) -> None:
    """Raise where a checkpoint was made by a model that computes something else.

    Raises:
        DataError: the first name whose value differs, with both.
    """
    own = model_computation(model, settings)
    # A checkpoint from before a setting was there computed with its first value.
    saved = {**dict(_leaves("settings", _forward(_first_values(settings)))), **saved}
    for name in sorted({*saved, *own}):
        if saved.get(name) != own.get(name):
            raise DataError(
                f"{folder}: its model computes with {name} = {_said(saved.get(name))}, this one"
                f" with {_said(own.get(name))}",
                hint="resume with the model, or the weights, that it was begun with",
            )


def _forward(settings: Settings) -> Settings:
    """Settings without those of training."""
    return replace(settings, **{name: getattr(Settings(), name) for name in OF_TRAINING})


def _first_values(settings: Settings) -> Settings:
    """Settings of the same blocks and operators, before anything is set."""
    return Settings(own=tuple((name, _first_values(one)) for name, one in settings.own))


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        return [
            leaf
            for one in fields(value)
            for leaf in _leaves(f"{path}.{one.name}", getattr(value, one.name))
        ]
    if (
        isinstance(value, tuple)
        and value
        and all(isinstance(one, tuple) and is_dataclass(one[-1]) for one in value)
    ):
        return [leaf for name, one in value for leaf in _leaves(f"{path}.{name}", one)]
    if isinstance(value, Enum):
        return [(path, value.value)]
    return [
        (
            path,
            value if value is None or isinstance(value, (bool, int, float, str)) else repr(value),
        )
    ]


def _said(value: object) -> str:
    return (
        "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:60]
    )
