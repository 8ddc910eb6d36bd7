"""Metrics of steps and evaluations as TensorBoard scalars.

TensorBoard is a separate package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from shardwright.errors import UsageError

Write = Callable[[Mapping[str, float | int | None]], None]


def require_tensorboard() -> None:
    """Raise if TensorBoard is not installed.

    Raises:
        UsageError: it is not installed.
    """
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs TensorBoard",
            hint="pip install tensorboard, or --metrics FILE for lines of JSON",
        )


def tensorboard_writer(folder: Path) -> Write:
    """Function that adds a metrics line to a TensorBoard folder: ``train/loss``, ``eval/loss``.

    Lines are those of `metrics_file.metrics_line`.
    """
    from torch.utils.tensorboard import SummaryWriter

    events = SummaryWriter(str(folder))

    def write(line: Mapping[str, float | int | None]) -> None:
        """Add a metrics line's numbers to TensorBoard, at the line's step."""
        for name, value in line.items():
            if name != "step" and value is not None:
                tag = (
                    f"eval/{name.removeprefix('eval_')}"
                    if name.startswith("eval_")
                    else f"train/{name}"
                )
                events.add_scalar(tag, value, line["step"])
        events.flush()

    return write
