"""`calibrate`: what to measure and import, and the profile that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from shardwright.dtype import Dtype
from shardwright.errors import UsageError
from shardwright.hardware.profile import Profile

Progress = Callable[[str, int, int], None]


class CheckRow(NamedTuple):
    """A training step predicted (with its interval) and measured, in seconds; peak bytes, 0 = not measured."""

    name: str
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    predicted_bytes: int
    measured_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What to measure on this machine, and what to import.

    Args:
        date: ISO day for the profile. device: ``cpu``, ``cuda``, or empty: CUDA where there is one.
        accelerator: name of the profile's accelerator; empty = the catalog's name of the device at hand.
        ranks, dtypes, collectives_only, repetitions, sustained_s, timeout_s, tiny: see `calibrate.measure.Settings`.
        nccl_tests, kineto: files to import; their collectives win over measured ones. measure: measure this machine too.
    """

    date: str
    device: str = ""
    accelerator: str = ""
    ranks: int = 0
    dtypes: tuple[Dtype, ...] = ()
    collectives_only: bool = False
    nccl_tests: tuple[Path, ...] = ()
    kineto: Path | None = None
    measure: bool = True
    repetitions: int = 5
    sustained_s: float = 5.0
    timeout_s: float = 60.0
    tiny: bool = False


EXTRA_HINT = "pip install 'shardwright[run]'"


def calibrate(request: Calibration, *, progress: Progress | None = None) -> Profile:
    """A profile of this machine, of imported measurements, or of both.

    Raises:
        UsageError: torch or scipy is missing, or the device is; an import without the name of its accelerator.
        DataError: a file is not what it should be, or a rank of a collective died.
    """
    profiles = []
    if request.measure:
        profiles.append(_measured(request, progress))
    if request.nccl_tests or request.kineto:
        profiles += _imported(request, name=profiles[0].accelerator if profiles else request.accelerator)
    if not profiles:
        raise UsageError("nothing to measure and nothing to import", hint="--measure, --from-nccl-tests or --from-kineto")
    if len(profiles) == 1:
        return profiles[0]
    from shardwright.calibrate.imported import joined

    profile = profiles[0]
    for other in profiles[1:]:
        profile = joined(profile, other)
    return profile


def _measured(request: Calibration, progress: Progress | None) -> Profile:
    try:
        from shardwright.calibrate.measure import Settings, measure_machine
    except ModuleNotFoundError as error:
        raise UsageError(f"measuring needs {error.name}, which is not installed", hint=EXTRA_HINT) from error
    settings = Settings(
        date=request.date,
        device=request.device,
        accelerator=request.accelerator,
        ranks=request.ranks,
        dtypes=request.dtypes,
        collectives_only=request.collectives_only,
        repetitions=request.repetitions,
        sustained_s=request.sustained_s,
        timeout_s=request.timeout_s,
        tiny=request.tiny,
    )
    return measure_machine(settings, progress=progress)


def _imported(request: Calibration, *, name: str) -> list[Profile]:
    if not name:
        raise UsageError("an import needs the name of its accelerator", hint="--name h100-sxm")
    try:
        from shardwright.calibrate.imported import profile_of_nccl_tests, profile_of_trace
    except ModuleNotFoundError as error:
        raise UsageError(f"fitting needs {error.name}, which is not installed", hint=EXTRA_HINT) from error
    found = []
    if request.nccl_tests:
        found.append(profile_of_nccl_tests(request.nccl_tests, accelerator=name, date=request.date))
    if request.kineto is not None:
        found.append(profile_of_trace(request.kineto, accelerator=name, date=request.date))
    return found


def check_calibration(profile: Profile, request: Calibration, *, progress: Progress | None = None) -> tuple[CheckRow, ...]:
    """Training steps of a dense and a mixture-of-experts decoder on one device of this machine, predicted with `profile` and measured.

    Raises:
        UsageError: torch is missing.
    """
    try:
        from shardwright.calibrate.check import check_machine
    except ModuleNotFoundError as error:
        raise UsageError(f"measuring needs {error.name}, which is not installed", hint=EXTRA_HINT) from error
    checks = check_machine(profile, device=request.device, repetitions=request.repetitions, tiny=request.tiny, progress=progress)
    return tuple(
        CheckRow(
            name=c.case.name,
            predicted_s=c.prediction.step_time_s,
            low_s=c.prediction.interval_s[0],
            high_s=c.prediction.interval_s[1],
            measured_s=c.measured.seconds,
            predicted_bytes=c.prediction.allocated_bytes,
            measured_bytes=c.measured.peak_bytes,
        )
        for c in checks
    )
