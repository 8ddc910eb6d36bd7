"""Predictions of many cases under many constants, on several processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from shardwright.errors import ShardwrightError
from shardwright.hardware.catalog.serving_constants import ServingConstants
from shardwright.validation.serving.measured_deployment import ServingCase
from shardwright.validation.serving.prediction_errors import Progress
from shardwright.validation.serving.predictor_protocol import ServingEvaluator, ServingPrediction

Outcome = ServingPrediction | ShardwrightError
MIN_TASKS = 16
"""Fewer predictions than this are not worth starting processes for."""


def predictions_of(
    tasks: Sequence[tuple[ServingCase, ServingConstants]],
    *,
    evaluate: ServingEvaluator,
    workers: int = 1,
    progress: Progress | None = None,
    label: str = "rows",
) -> list[Outcome]:
    """What is predicted of each task, or why it cannot be.

    Args:
        workers: processes; `evaluate` must then be a function of a module.
        label: of the progress.
    """
    found: list[Outcome] = []
    if workers <= 1 or len(tasks) < MIN_TASKS:
        for index, task in enumerate(tasks):
            if progress is not None:
                progress(label, index, len(tasks))
            found.append(_outcome(evaluate, task))
        return found
    with ProcessPoolExecutor(max_workers=workers) as pool:
        for index, outcome in enumerate(pool.map(partial(_outcome, evaluate), tasks, chunksize=4)):
            if progress is not None:
                progress(label, index, len(tasks))
            found.append(outcome)
    return found


def _outcome(evaluate: ServingEvaluator, task: tuple[ServingCase, ServingConstants]) -> Outcome:
    try:
        return evaluate(*task)
    except ShardwrightError as error:
        return error
