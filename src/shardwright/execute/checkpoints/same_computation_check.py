"""Record of a model's computation beyond parameter shapes: heads, routing, scans and settings.

A checkpoint keeps the record, and a resumed run compares it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

from shardwright.errors import DataError
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings

TRAINING_SETTINGS: Final = (
    "padding_row",
    "load_balancing",
    "router_noise",
    "dropout",
    "other_losses",
)
"""Settings that only training uses; a resumed run may change them."""
FLAGS: Final = ("tempered", "weighed", "biased", "adds", "sees_images")
"""Flags of operators, recorded where they are set."""


def model_computation(model: Model, settings: Settings) -> dict[str, Any]:
    """Settings and operator options on which a model's outputs depend, as dotted name -> value.

    Example: ``layer.core.attention.heads`` = 6.
    """
    values = dict(_leaves("settings", _without_training_settings(settings)))
    for block in model.blocks:
        for operator in block.operators:
            for name in ("attention", "experts", "scan"):
                values |= dict(
                    _leaves(f"{block.name}.{operator.name}.{name}", getattr(operator, name))
                )
            values[f"{block.name}.{operator.name}.groups"] = operator.groups
            values |= {
                f"{block.name}.{operator.name}.{name}": True
                for name in FLAGS
                if getattr(operator, name)
            }
            values |= (
                dict(_leaves(f"{block.name}.{operator.name}.choice", operator.choice))
                if operator.choice
                else {}
            )
            values |= (
                {f"{block.name}.{operator.name}.factors": repr(operator.factors)}
                if operator.factors
                else {}
            )
            merged = {"joins": operator.joins, "folds": operator.folds}
            values |= {
                f"{block.name}.{operator.name}.{name}": count
                for name, count in merged.items()
                if count > 1
            }
    return values


def require_same_computation(
    saved: Mapping[str, Any], model: Model, settings: Settings, *, folder: Path
) -> None:
    """Raise DataError if the saved settings or operator options differ from this model's.

    Raises:
        DataError: the first name whose value differs, with both.
    """
    computation = model_computation(model, settings)
    # A checkpoint without a setting is older than the setting, and computed with its default.
    saved = {
        **dict(_leaves("settings", _without_training_settings(_default_settings(settings)))),
        **saved,
    }
    for name in sorted({*saved, *computation}):
        if saved.get(name) != computation.get(name):
            raise DataError(
                f"{folder}: its model computes with {name} ="
                f" {_value_text(saved.get(name))}, this one with"
                f" {_value_text(computation.get(name))}",
                hint="resume with the model, or the weights, that it was begun with",
            )


def _without_training_settings(settings: Settings) -> Settings:
    """The settings with those that only training reads set to their defaults."""
    return replace(settings, **{name: getattr(Settings(), name) for name in TRAINING_SETTINGS})


def _default_settings(settings: Settings) -> Settings:
    """Default settings with an entry, default too, for each block that `settings` names."""
    return Settings(
        own=tuple(
            (name, _default_settings(block_settings)) for name, block_settings in settings.own
        )
    )


def _leaves(path: str, value: Any) -> list[tuple[str, Any]]:
    """(dotted path, plain value) of every leaf of nested dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        return [
            leaf
            for item in fields(value)
            for leaf in _leaves(f"{path}.{item.name}", getattr(value, item.name))
        ]
    if (
        isinstance(value, tuple)
        and value
        and all(isinstance(item, tuple) and is_dataclass(item[-1]) for item in value)
    ):
        return [leaf for name, item in value for leaf in _leaves(f"{path}.{name}", item)]
    if isinstance(value, Enum):
        return [(path, value.value)]
    return [
        (
            path,
            value if value is None or isinstance(value, (bool, int, float, str)) else repr(value),
        )
    ]


def _value_text(value: object) -> str:
    """A setting's value as short text for error messages."""
    return (
        "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)[:60]
    )
