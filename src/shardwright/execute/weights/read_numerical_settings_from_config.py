"""Computation settings of the model in a folder of weights.

Needs no PyTorch.
"""

from __future__ import annotations

from pathlib import Path

from shardwright.errors import DataError, ModelError
from shardwright.execute.weights.family_parameter_names import CONFIG, naming_rules_of
from shardwright.model.families.find_uncomputed_config_settings import differences
from shardwright.model.families.huggingface_config import language_config, parse_config
from shardwright.model.families.numerical_settings import settings_of_fields
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings


def stored_settings(folder: Path, *, model: Model, strict: bool = True) -> Settings:
    """Settings of the computation from ``config.json``; `strict`: raise if ours would differ.

    Args:
        strict: reject a configuration under which the published model computes differently from
            ours.

    Raises:
        DataError: no such file; an invalid number; a family whose weights are not read; with
        `strict`, a list of all differences.
    """
    path = folder / CONFIG
    naming_rules_of(model.architecture)
    try:
        config = language_config(parse_config(path.read_bytes(), source=str(path)))
        settings = settings_of_fields(config, model=model, source=str(path))
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}", hint="give a folder with a config.json"
        ) from None
    except ModelError as error:
        raise DataError(error.message, hint=error.hint) from None
    differing = differences(config, model=model)
    if strict and differing:
        raise DataError(
            f"{path}: with these weights the published model computes what ours does not:"
            f" {'; '.join(differing)}",
            hint="use a model without them; weights can be converted all the same",
        )
    return settings
