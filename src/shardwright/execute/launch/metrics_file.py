"""A file of what each step gave: a line of JSON a step, added to by a run that goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from shardwright.errors import OutputError
from shardwright.execute.launch.run_report import RunEvaluation, RunStep


def require_appendable(path: Path) -> None:
    """Raise where lines cannot be added to a file.

    Raises:
        OutputError: its folder is not there, or it cannot be written to.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise OutputError(
            f"{path}: {error.strerror}", hint="--metrics takes a file that can be written"
        ) from None


def metrics_line(
    one: RunStep | RunEvaluation, *, tokens: int, rate: float
) -> dict[str, float | int | None]:
    """The metrics line of a step: number, loss, norm, seconds, tokens a second, learning rate; or
    of an evaluation: step, loss, seconds.

    Args:
        tokens: of a step.
        rate: of learning.
    """
    if isinstance(one, RunEvaluation):
        return {"step": one.step, "eval_loss": one.loss, "eval_seconds": one.seconds}
    return {
        **asdict(one),
        "tokens_per_s": tokens / one.seconds if one.seconds else None,
        "rate": rate,
    }


def add_line(path: Path, line: Mapping[str, float | int | None]) -> None:
    """Add a line to a file.

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
