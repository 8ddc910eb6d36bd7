"""Profiles from imported files: output of nccl-tests, and Kineto traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from shardwright.calibrate.fit_profile import fit_collective
from shardwright.calibrate.kineto_trace import read_kineto, shortest_calls
from shardwright.calibrate.parse_nccl_tests_output import points_by_group, read_nccl_tests
from shardwright.errors import DataError
from shardwright.hardware.profile.measured_rates import CollectiveFit, Method, Profile

Points = Mapping[tuple[str, int], tuple[tuple[int, float], ...]]


def profile_of_nccl_tests(paths: Iterable[Path], *, accelerator: str, date: str) -> Profile:
    """Profile with collectives fitted to outputs of nccl-tests.

    Files of one collective are joined.

    Raises:
        DataError: a file is no such output, or none has two sizes that fit a line.
    """
    files = tuple(paths)
    points = [point for path in files for point in read_nccl_tests(path)]
    names = ", ".join(path.name for path in files)
    fits, notes = fit_groups(
        points_by_group(points), reference=f"alpha-beta fit of nccl-tests output {names}"
    )
    if not fits:
        raise DataError(
            f"no collective of {names} could be fitted: {'; '.join(notes)}",
            hint="run nccl-tests with -b 8K -e 512M -f 2",
        )
    method = Method(
        device_name=accelerator, date=date, notes=(f"imported from nccl-tests: {names}", *notes)
    )
    return Profile(accelerator=accelerator, collectives=fits, method=method)


def profile_of_trace(path: Path, *, accelerator: str, date: str) -> Profile:
    """Profile with a Kineto trace's seconds and calls by kernel class, and its fitted collectives.

    Collectives need two sizes or more. Fits use the shortest call of each size, because the others
    also wait for late ranks.
    """
    trace = read_kineto(path)
    fits, notes = fit_groups(
        shortest_calls(trace.collectives),
        reference=f"alpha-beta fit of the shortest calls in Kineto trace {path.name}",
    )
    unsized = (
        (f"{trace.unsized} collective kernels without size or group",) if trace.unsized else ()
    )
    return Profile(
        accelerator=accelerator,
        memory_bytes=trace.memory_bytes,
        collectives=fits,
        kernels=trace.kernels,
        method=Method(
            device_name=trace.device_name or accelerator,
            date=date,
            notes=(f"imported from Kineto trace: {path.name}", *unsized, *notes),
        ),
    )


def fit_groups(
    groups: Points, *, reference: str
) -> tuple[tuple[CollectiveFit, ...], tuple[str, ...]]:
    """Fit each (collective, devices) group, citing `reference`: (fits, notes on failed groups)."""
    fits, notes = [], []
    for (kind, devices), points in groups.items():
        try:
            fits.append(fit_collective(kind, points, num_devices=devices, reference=reference))
        except DataError as error:
            notes.append(f"{kind} over {devices} not fitted: {error.message}")
    return tuple(fits), tuple(notes)


def merged_profiles(profile: Profile, imported: Profile) -> Profile:
    """Merge: `imported` wins per (collective, devices); its other values only fill what is unset.

    Notes are those of both.
    """
    replaced = {(c.collective, c.num_devices) for c in imported.collectives}
    kept = tuple(c for c in profile.collectives if (c.collective, c.num_devices) not in replaced)
    method = profile.method or imported.method
    if profile.method is not None and imported.method is not None:
        method = replace(profile.method, notes=(*profile.method.notes, *imported.method.notes))
    return replace(
        profile,
        memory_bytes=profile.memory_bytes or imported.memory_bytes,
        collectives=(*kept, *imported.collectives),
        kernels=profile.kernels or imported.kernels,
        method=method,
    )
