"""Launchers of exports, by name: Slurm, TrainJob, JobSet, SkyPilot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shardwright.frameworks.export.launchers.jobset import JOBSET
from shardwright.frameworks.export.launchers.launcher_type_and_shared_helpers import Launcher
from shardwright.frameworks.export.launchers.skypilot import SKYPILOT
from shardwright.frameworks.export.launchers.slurm import SLURM
from shardwright.frameworks.export.launchers.trainjob import TRAINJOB

LAUNCHERS: Final[Mapping[str, Launcher]] = {
    launcher.name: launcher for launcher in (SLURM, TRAINJOB, JOBSET, SKYPILOT)
}
