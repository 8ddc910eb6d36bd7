"""Checkpoints of all devices, saved in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from shardwright.execute.checkpoints.write_checkpoint import (
    begin_checkpoint,
    finish_checkpoint,
    write_device,
)
from shardwright.execute.training.device_training_state import DeviceState, PreparedTraining


def save(members: Mapping[int, DeviceState], known: PreparedTraining, root: Path) -> Path:
    """Save all devices of this process; the new checkpoint's folder."""
    step = next(iter(members.values())).steps
    folder = begin_checkpoint(root, step)
    return finish_checkpoint(
        folder, [write_device(own, known, folder) for own in members.values()], known, step=step
    )
