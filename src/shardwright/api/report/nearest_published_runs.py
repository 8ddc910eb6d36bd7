"""The published runs most like a given run, by model, device, framework and parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from typing import Final

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.validation.training.shipped_predictions_of_published_runs import PredictedRun

_OTHER_DEVICE: Final = 1.0
_OTHER_RELEASE: Final = 0.5
_OTHER_FRAMEWORK: Final = 2.0
_DEGREE: Final = 0.25
_DEVICES: Final = 0.25
_LENGTH: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTraits:
    """Model, devices, framework and degrees by which runs are compared.

    Args:
        accelerators: catalog names of all devices.
        runtime: framework and release, without options.
        degrees: tp, cp, pp and ep; empty where the strategy is no grid.
    """

    parameters: int
    accelerators: tuple[str, ...]
    devices: int
    runtime: str
    degrees: tuple[int, ...]
    sequence_tokens: int


def distance(run: PredictedRun, traits: RunTraits) -> float:
    """Sum of weighted |log2| ratios of size, devices, length, degrees; plus kind and framework.

        |log2 of parameters| + 1/4 (|log2 of devices| + |log2 of tokens a sequence|)
            + 1/4 sum over tp, cp, pp and ep of |log2 of degrees|
            + 1 on another accelerator + 1/2 with another release of the framework, 2 with another
            framework

    where log2 is of the ratio of both values.
    """
    degrees = zip((run.tp, run.cp, run.pp, run.ep), traits.degrees, strict=False)
    return (
        _doublings(run.parameters, traits.parameters)
        + _DEVICES * _doublings(run.devices, traits.devices)
        + _LENGTH * _doublings(run.sequence_tokens, traits.sequence_tokens)
        + _DEGREE * sum(_doublings(of_run, wanted) for of_run, wanted in degrees)
        + _OTHER_DEVICE * (run.accelerator not in traits.accelerators)
        + _framework_distance(run.runtime, traits.runtime)
    )


def _doublings(one: int, other: int) -> float:
    """|log2(one / other)|."""
    return abs(log2(one / other))


def _framework_distance(one: str, other: str) -> float:
    """0 for the same release, 1/2 for another release, 2 for another framework."""
    if one == other:
        return 0.0
    return _OTHER_RELEASE if framework_of(one) == framework_of(other) else _OTHER_FRAMEWORK


def framework_of(runtime: str) -> str:
    """Name of a framework without its release: ``nemo-24.07`` is ``nemo``."""
    name, _, release = runtime.rpartition("-")
    return name if name and release[:1].isdigit() else runtime


def nearest_runs(
    runs: Sequence[PredictedRun], traits: RunTraits, *, count: int
) -> tuple[PredictedRun, ...]:
    """The `count` runs with the least distance, the nearest first; equal ones in their order."""
    return tuple(sorted(runs, key=lambda run: distance(run, traits))[:count])
