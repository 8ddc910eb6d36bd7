"""The most similar runtime of another framework, to predict an undescribed framework."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from functools import cache
from typing import Final

from shardwright.errors import RuntimeModelError
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.list_and_set_runtime_options import runtime_with_options
from shardwright.runtime.releases.shardwright_interpreter import RUNTIME as OWN_ENGINE
from shardwright.runtime.runtime_from_sourced_statements import IDENTITY
from shardwright.runtime.runtime_registry import load_runtime, runtime_names
from shardwright.validation.training.measured_training_run import TrainingRun

_CAPABILITIES: Final = frozenset(
    re.findall(
        r"\w+",
        "vendors zero_stages zero_with_pipeline hybrid_sharding optimizer_offload schedules"
        " default_recompute sequence_parallel context_ring context_gather context_ulysses"
        " expert_parallel",
    )
)
"""Fields of a runtime about the plans it can run, which do not change its speed."""
_BEHAVIOUR: Final = tuple(
    f.name for f in fields(Runtime) if f.name not in IDENTITY and f.name not in _CAPABILITIES
)


def with_nearest_runtime(run: TrainingRun) -> TrainingRun:
    """Copy of the run under the runtime of another framework that differs in fewest settings."""
    return replace(run, runtime=nearest_runtime(run.runtime))


@cache
def nearest_runtime(text: str) -> str:
    """Name of another framework's runtime with fewest settings that differ, options of `text` set.

    It gets the options of `text` that it has.

    A framework of the same family, such as NeMo on Megatron-Core, is another framework; another
    version is not. The package's own engine is never the nearest: where it has no facts it has
    torchtitan's, so it would give torchtitan its own facts back.
    """
    runtime = load_runtime(text)
    options = (*runtime.own, *runtime.options)
    candidates = (_with_options(load_runtime(name), options) for name in runtime_names())
    return min(
        (
            candidate
            for candidate in candidates
            if candidate.framework not in (runtime.framework, OWN_ENGINE.framework)
        ),
        key=lambda candidate: (_differences(runtime, candidate), candidate.name),
    ).name


def _differences(runtime: Runtime, candidate: Runtime) -> int:
    """Number of behaviour fields in which two runtimes differ."""
    return sum(getattr(runtime, name) != getattr(candidate, name) for name in _BEHAVIOUR)


def _with_options(base: Runtime, options: Options) -> Runtime:
    """Set the runtime's options; skip unknown ones and those that contradict earlier ones."""
    for name, value in dict(options).items():
        try:
            base = runtime_with_options(base, [(name, value)])
        except RuntimeModelError:
            continue
    return base
