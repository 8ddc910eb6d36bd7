"""Exporter of Megatron-LM's command-line arguments in a start script."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    Exporter,
    ExportFile,
    PlanToExport,
    Shortfall,
)
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.export.unsupported_plan_features import other_framework_shortfalls
from shardwright.frameworks.megatron.plan_arguments import (
    SHARDED,
    WITHOUT_ARGUMENT,
    arguments,
    is_environment_variable,
    megatron_shortfalls,
    option_shortfalls,
)
from shardwright.frameworks.megatron.settings import SETTINGS

SCRIPT: Final = "pretrain.sh"
FRAMEWORK: Final = "Megatron-Core"
OFF: Final = ("false", "none")


def _shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Parts of a plan that Megatron-LM cannot express, each with a substitute or a hint."""
    yield from megatron_shortfalls(export)
    yield from option_shortfalls(export, FRAMEWORK)
    yield from other_framework_shortfalls(export, FRAMEWORK)


def _files(export: PlanToExport) -> tuple[ExportFile, ...]:
    """Start script of a plan, with Megatron-LM's arguments."""
    return (_script(export),)


MEGATRON: Final = Exporter(
    name="megatron",
    version=SETTINGS.version,
    summary="arguments of pretrain_gpt.py, in a script that starts it",
    shortfalls=_shortfalls,
    files=_files,
)


def _script(export: PlanToExport) -> ExportFile:
    """Start script of one node: environment, arguments and torchrun."""
    written = [
        (name, value)
        for name, value in arguments(export, FRAMEWORK)
        if value not in OFF and name not in WITHOUT_ARGUMENT
    ]
    lines = [
        f"    --{name} {' '.join(map(shlex.quote, value.split()))}".rstrip()
        for name, value in written
        if not is_environment_variable(name)
    ]
    exported = [
        f"export {name.replace('-', '_')}={shlex.quote(value)}"
        for name, value in written
        if is_environment_variable(name)
    ]
    # Before Blackwell its overlaps need one hardware queue; Megatron-FSDP's need several.
    queues = (
        []
        if export.grid.zero in SHARDED
        else ["export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}"]
    )
    return start_script(
        export,
        name=SCRIPT,
        made_for=f"Megatron-LM ({SETTINGS.version})",
        before=[*queues, *exported, "ARGUMENTS=(", *lines, ")"],
        runs=torchrun("pretrain_gpt.py", '"${ARGUMENTS[@]}"'),
    )
