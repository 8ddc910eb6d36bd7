"""Kinds of cross-validation folds of training runs: by model, source, framework and accelerator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.units import GIGA
from shardwright.validation.errors.measured_run_protocol_and_fold_kinds import (
    SHIPPED_FOLD,
    Fold,
    by_name,
)
from shardwright.validation.training.measured_training_run import TrainingRun
from shardwright.validation.training.runtime_of_most_similar_framework import with_nearest_runtime


def _model_of_source(run: TrainingRun) -> str:
    """Fold key of one source's models: source, billions of parameters and width."""
    model = run.model
    size = f"{model.num_parameters / GIGA:.1f}B of width {model.hidden}"
    return f"{run.measurement.source_id}: {size}"


def _laboratory(run: TrainingRun) -> str:
    """Fold key: laboratory of the run, a group of sources that may share configurations."""
    return run.laboratory


FOLDS: Final[Mapping[str, Fold[TrainingRun]]] = by_name(
    Fold(name=SHIPPED_FOLD, key=lambda _: ""),
    Fold(name="model", key=_model_of_source),
    # Rows of one laboratory or vendor share configurations, so they are held out together.
    Fold(name="source", key=_laboratory),
    # As predicted by someone whose framework nobody has described.
    Fold(
        name="other base",
        key=_laboratory,
        fitted_as="source",
        predicted_as=with_nearest_runtime,
    ),
    Fold(name="accelerator", key=lambda run: run.cluster.node.accelerator.name),
)
