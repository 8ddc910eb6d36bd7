"""Megatron-LM: its command-line arguments, with a script that starts them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from shardwright.frameworks.export.common_shortfalls import another_framework
from shardwright.frameworks.export.exporter import Exporter, ExportFile, Given, Shortfall
from shardwright.frameworks.export.start_script import start_script, torchrun
from shardwright.frameworks.megatron.plan_arguments import (
    SHARDED,
    UNSAID,
    arguments,
    megatron_shortfalls,
    of_environment,
    unsaid_options,
)
from shardwright.frameworks.megatron.settings import SETTINGS

SCRIPT: Final = "pretrain.sh"
FRAMEWORK: Final = "Megatron-Core"
OFF: Final = ("false", "none")


def _shortfalls(given: Given) -> Iterator[Shortfall]:
    """The parts of a plan that Megatron-LM cannot express, each with the reason."""
    yield from megatron_shortfalls(given)
    yield from unsaid_options(given, FRAMEWORK)
    yield from another_framework(given, FRAMEWORK)


def _files(given: Given) -> tuple[ExportFile, ...]:
    """The files of a plan of which nothing, or only what may be lost, is lacking."""
    return (_script(given),)


MEGATRON: Final = Exporter(
    name="megatron",
    version=SETTINGS.version,
    summary="arguments of pretrain_gpt.py, in a script that starts it",
    shortfalls=_shortfalls,
    files=_files,
)


def _script(given: Given) -> ExportFile:
    said = [
        (name, value)
        for name, value in arguments(given, FRAMEWORK)
        if value not in OFF and name not in UNSAID
    ]
    lines = [
        f"    --{name} {' '.join(map(shlex.quote, value.split()))}".rstrip()
        for name, value in said
        if not of_environment(name)
    ]
    exported = [
        f"export {name.replace('-', '_')}={shlex.quote(value)}"
        for name, value in said
        if of_environment(name)
    ]
    # Before Blackwell its overlaps need one hardware queue; Megatron-FSDP's need several.
    queues = (
        []
        if given.grid.zero in SHARDED
        else ["export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}"]
    )
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"Megatron-LM ({SETTINGS.version})",
        before=[*queues, *exported, "ARGUMENTS=(", *lines, ")"],
        runs=torchrun("pretrain_gpt.py", '"${ARGUMENTS[@]}"'),
    )
