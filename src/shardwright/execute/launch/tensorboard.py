"""Steps as scalars of TensorBoard, by PyTorch's own writer. TensorBoard is a package of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from shardwright.errors import UsageError

Write = Callable[[Mapping[str, float | int | None]], None]


def require_tensorboard() -> None:
    """Raise where the package is not installed.

    Raises:
        UsageError: it is not.
    """
    if find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs TensorBoard",
            hint="pip install tensorboard, or --metrics FILE for lines of JSON",
        )


def writer(folder: Path) -> Write:
    """Adds a line's numbers (`metrics.line_of`) under its step: ``train/loss``, ``eval/loss``."""
    from torch.utils.tensorboard import SummaryWriter

    events = SummaryWriter(str(folder))

    def write(line: Mapping[str, float | int | None]) -> None:
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
