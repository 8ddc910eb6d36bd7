"""Metrics file of a run: one line of JSON for each step, appended by resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from shardwright.errors import OutputError
from shardwright.execute.launch.run_options_and_report import RunEvaluation, RunStep


def require_appendable(path: Path) -> None:
    """Create a file if it is missing, and raise `OutputError` if lines cannot be appended.

    Raises:
        OutputError: its folder does not exist, or it cannot be written to.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise OutputError(
            f"{path}: {error.strerror}", hint="--metrics takes a file that can be written"
        ) from None


def metrics_line(
    report: RunStep | RunEvaluation, *, tokens: int, rate: float
) -> dict[str, float | int | None]:
    """Fields of a metrics line of a step (tokens a second, learning rate ..) or an evaluation.

    Step: number, loss, norm, seconds, tokens a second, learning rate. Evaluation: step, loss,
    seconds.

    Args:
        tokens: number of tokens of a step.
        rate: learning rate.
    """
    if isinstance(report, RunEvaluation):
        return {"step": report.step, "eval_loss": report.loss, "eval_seconds": report.seconds}
    return {
        **asdict(report),
        "tokens_per_s": tokens / report.seconds if report.seconds else None,
        "rate": rate,
    }


def add_line(path: Path, line: Mapping[str, float | int | None]) -> None:
    """Append `line` to a metrics file, as one line of JSON.

    Raises:
        OutputError: it cannot be written to.
    """
    try:
        with path.open("a") as file:
            file.write(json.dumps(dict(line)) + "\n")
    except OSError as error:
        raise OutputError(
            f"{path}: {error.strerror}", hint="--metrics takes a file that can be written"
        ) from None
