"""The command `calibrate`: a profile of this machine, of imported measurements, or of both."""

from __future__ import annotations

from functools import reduce

from shardwright.calibrate.calibration_settings_and_check_rows import Calibration, CheckRow
from shardwright.calibrate.profiles_from_nccl_tests_and_kineto_traces import (
    merged_profiles,
    profile_of_nccl_tests,
    profile_of_trace,
)
from shardwright.errors import UsageError
from shardwright.hardware.profile.measured_rates import Profile
from shardwright.progress_callback import Progress

EXTRA_HINT = "pip install 'shardwright[run]'"


def calibrate(request: Calibration, *, progress: Progress | None = None) -> Profile:
    """Measure this machine, import measurements, or both, as one profile.

    Raises:
        UsageError: torch or the device is missing; an import without the name of its accelerator.
            DataError: a file is wrong, or a rank of a collective died.
    """
    profiles = []
    if request.measure:
        profiles.append(_measure_profile(request, progress))
    if request.nccl_tests or request.kineto:
        profiles += _import_profiles(
            request, name=profiles[0].accelerator if profiles else request.accelerator
        )
    if not profiles:
        raise UsageError(
            "nothing to measure and nothing to import",
            hint="--measure, --from-nccl-tests or --from-kineto",
        )
    return reduce(merged_profiles, profiles)


def _measure_profile(request: Calibration, progress: Progress | None) -> Profile:
    """Measure this machine; UsageError where torch is missing."""
    try:
        from shardwright.calibrate.measure_machine import measure_machine
    except ModuleNotFoundError as error:
        raise _missing_module_error(error) from error
    return measure_machine(request, progress=progress)


def _import_profiles(request: Calibration, *, name: str) -> list[Profile]:
    """Profiles fitted to the nccl-tests outputs and the Kineto trace that the request names."""
    if not name:
        raise UsageError("an import needs the name of its accelerator", hint="--name h100-sxm")
    profiles = []
    if request.nccl_tests:
        profiles.append(
            profile_of_nccl_tests(request.nccl_tests, accelerator=name, date=request.date)
        )
    if request.kineto is not None:
        profiles.append(profile_of_trace(request.kineto, accelerator=name, date=request.date))
    return profiles


def check_calibration(
    profile: Profile, request: Calibration, *, progress: Progress | None = None
) -> tuple[CheckRow, ...]:
    """Predict and measure training steps of two small decoders on one device of this machine.

    One is dense, one a mixture of experts; the predictions use `profile`.

    Raises:
        UsageError: torch is missing.
    """
    try:
        from shardwright.calibrate.predicted_against_measured_steps import check_machine
    except ModuleNotFoundError as error:
        raise _missing_module_error(error) from error
    return check_machine(
        profile,
        device=request.device,
        repetitions=request.repetitions,
        tiny=request.tiny,
        progress=progress,
    )


def _missing_module_error(error: ModuleNotFoundError) -> UsageError:
    """Make the error for a missing optional module, with the install command."""
    return UsageError(f"measuring needs {error.name}, which is not installed", hint=EXTRA_HINT)
