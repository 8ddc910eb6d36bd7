"""A file of what each step gave: a line of JSON a step, added to by a run that goes on."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from shardwright.errors import OutputError
from shardwright.execute.launch.run_report import RunStep


def require_appendable(path: Path) -> None:
    """Raise where lines cannot be added to a file.

    Raises:
        OutputError: its folder is not there, or it cannot be written to.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}", hint="--metrics takes a file that can be written") from None


def add_line(path: Path, step: RunStep, *, tokens: int, rate: float) -> None:
    """Add a step's line: its number, loss, norm, seconds, tokens a second, learning rate.

    Raises:
        OutputError: it cannot be written to.
    """
    line = {**asdict(step), "tokens_per_s": tokens / step.seconds if step.seconds else None, "rate": rate}
    try:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror}", hint="--metrics takes a file that can be written") from None
