"""Measurement of this whole machine, kernels and collectives, and the fit of its profile."""

from __future__ import annotations

from functools import partial

import torch

from shardwright.calibrate.calibration_settings_and_check_rows import Calibration
from shardwright.calibrate.device_names_memory_and_library_versions import (
    accelerator_name,
    device_memory,
    device_name,
    host_memory,
    library_versions,
)
from shardwright.calibrate.fit_profile import fit_attention, fit_elements, fit_gemm
from shardwright.calibrate.kernel_timing import Timer
from shardwright.calibrate.measure_all_kernels_of_device import (
    KernelMeasurements,
    measure_kernels,
    progress_step,
    slowest_of_devices,
)
from shardwright.calibrate.measure_collectives import (
    KINDS,
    collective_sizes,
    group_sizes,
    measure_collectives,
)
from shardwright.calibrate.measure_kernels_on_all_parts_of_cpu import measure_simultaneously
from shardwright.calibrate.profiles_from_nccl_tests_and_kineto_traces import fit_groups
from shardwright.errors import UsageError
from shardwright.hardware.profile.measured_rates import (
    CollectiveFit,
    HostFacts,
    Method,
    Profile,
)
from shardwright.kernel_compilation import available_cores
from shardwright.progress_callback import Progress


def measure_machine(settings: Calibration, *, progress: Progress | None = None) -> Profile:
    """Measure this machine's kernels and collectives, and fit a profile of accelerator and links.

    A device of a processor is 1/ranks of its cores and memory: all measure the same kernels at the
    same time, with that many threads each, and the slowest counts, because a step waits for it.

    Raises:
        UsageError: no such device, too many ranks, or a dtype that cannot be measured.
        DataError: a rank of a collective died or hung.
    """
    device = _choose_device(settings.device)
    ranks = _choose_ranks(settings, device)
    threads = max(available_cores() // ranks, 1) if device == "cpu" else 0
    timer = Timer(device=device, repetitions=settings.repetitions, warm_up=settings.warm_up)
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        kernels = KernelMeasurements()
        if not settings.collectives_only:
            others = ranks - 1 if device == "cpu" else 0
            measure = partial(measure_kernels, timer, settings)
            kernels = slowest_of_devices(
                measure_simultaneously(
                    measure,
                    here=partial(measure, progress=progress),
                    others=others,
                    threads=threads,
                )
            )
    finally:
        torch.set_num_threads(before)
    notes = list(kernels.notes)
    return Profile(
        accelerator=settings.accelerator or accelerator_name(device),
        memory_bytes=device_memory(device, num_devices=ranks),
        gemm=tuple(
            fit_gemm(points, dtype=dtype, sustained=sustained)
            for dtype, points, sustained in kernels.gemm
        ),
        attention=tuple(
            fit_attention(kernel, points, dtype=dtype)
            for kernel, dtype, points in kernels.attention
        ),
        elements=None if settings.collectives_only else fit_elements(kernels.elements),
        collectives=_measure_collective_fits(settings, device, ranks, threads, notes, progress),
        host=HostFacts(
            num_devices=ranks,
            num_cores=available_cores(),
            memory_bytes=host_memory(),
            to_device=kernels.copies[0],
            from_device=kernels.copies[1],
        ),
        method=Method(
            device_name=device_name(device),
            date=settings.date,
            libraries=library_versions(device),
            repetitions=settings.repetitions,
            warm_up=settings.warm_up,
            threads=threads,
            sustained_s=0.0 if settings.collectives_only else settings.sustained_s,
            notes=tuple(notes),
        ),
    )


def _choose_device(wanted: str) -> str:
    """Device to measure: `wanted`, or if empty CUDA where present; UsageError if not available."""
    if wanted not in ("", "cpu", "cuda"):
        raise UsageError(f"--device {wanted[:40]!r} is not a device", hint="cpu or cuda")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UsageError(
            "torch finds no CUDA device", hint="--device cpu, or an installation of torch with CUDA"
        )
    return wanted or ("cuda" if available else "cpu")


def _choose_ranks(settings: Calibration, device: str) -> int:
    """Number of ranks to measure, by default all GPUs or 2 on a CPU; UsageError if out of range."""
    most = torch.cuda.device_count() if device == "cuda" else available_cores()
    ranks = settings.ranks or (most if device == "cuda" else min(2, most))
    if device == "cuda" and ranks > most:
        raise UsageError(f"{ranks} ranks on {most} GPUs", hint=f"--ranks {most} or fewer")
    if settings.collectives_only and ranks < 2:
        raise UsageError("collectives need two ranks or more", hint="--ranks 2")
    return ranks


def _measure_collective_fits(
    settings: Calibration,
    device: str,
    ranks: int,
    threads: int,
    notes: list[str],
    progress: Progress | None,
) -> tuple[CollectiveFit, ...]:
    """Measure and fit the collectives of every group size; notes get the failures."""
    sizes = collective_sizes(device, tiny=settings.tiny)
    library = "NCCL" if device == "cuda" else "gloo"
    fits: list[CollectiveFit] = []
    for members in group_sizes(ranks):
        measured = measure_collectives(
            members,
            device=device,
            sizes=sizes,
            repetitions=settings.repetitions,
            timeout_s=settings.timeout_s,
            threads=threads,
            step=progress_step(f"collectives over {members}", len(KINDS) * len(sizes), progress),
        )
        groups = {(kind, members): points for kind, points in measured.points}
        found, missed = fit_groups(
            groups,
            reference=(
                f"alpha-beta fit of {library} over {members} ranks of one node, {settings.date}"
            ),
        )
        fits += found
        notes += [
            *missed,
            *(f"{kind} over {members} not measured: {why}" for kind, why in measured.unsupported),
        ]
    return tuple(fits)
