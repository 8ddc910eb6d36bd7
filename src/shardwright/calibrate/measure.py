"""Measures the machine at hand: GEMM, attention, memory-bound kernels, copies and collectives, and fits a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from shardwright.calibrate.fit_profile import fit_attention, fit_elements, fit_gemm
from shardwright.calibrate.imported import fit_groups
from shardwright.calibrate.machine import accelerator_name, device_memory, device_name, host_memory, libraries
from shardwright.calibrate.measure_attention import attention_shapes, generations, measure_attention
from shardwright.calibrate.measure_collectives import KINDS, collective_sizes, group_sizes, measure_collectives
from shardwright.calibrate.measure_elements import element_sizes, measure_copies, measure_elements
from shardwright.calibrate.measure_gemm import gemm_shapes, measure_gemm, measure_sustained
from shardwright.calibrate.settings import Calibration, Progress
from shardwright.calibrate.timing import TORCH_DTYPES, Timer, native_dtypes
from shardwright.compiled import cores
from shardwright.dtype import Dtype
from shardwright.errors import UsageError
from shardwright.hardware.profile.profile import AttentionProfile, CollectiveFit, GemmProfile, HostFacts, Method, Profile


def measure_machine(settings: Calibration, *, progress: Progress | None = None) -> Profile:
    """A profile of the machine at hand.

    A device of a processor is 1/ranks of its cores and memory: kernels are timed with that many threads, alone. Left out: what ranks that
    compute at the same time take from each other.

    Raises:
        UsageError: no such device, too many ranks, or a dtype that cannot be measured.
        DataError: a rank of a collective died or hung.
    """
    device = _device(settings.device)
    ranks = _ranks(settings, device)
    threads = max(cores() // ranks, 1) if device == "cpu" else 0
    timer = Timer(device=device, repetitions=settings.repetitions, warm_up=settings.warm_up)
    notes: list[str] = []
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        kernels = _Kernels() if settings.collectives_only else _kernels(timer, settings, notes, progress)
    finally:
        torch.set_num_threads(before)
    return Profile(
        accelerator=settings.accelerator or accelerator_name(device),
        memory_bytes=device_memory(device, num_devices=ranks),
        gemm=kernels.gemm,
        attention=kernels.attention,
        elements=None if settings.collectives_only else fit_elements(kernels.elements),
        collectives=_collectives(settings, device, ranks, threads, notes, progress),
        host=HostFacts(
            num_devices=ranks,
            num_cores=cores(),
            memory_bytes=host_memory(),
            to_device=kernels.copies[0],
            from_device=kernels.copies[1],
        ),
        method=Method(
            device_name=device_name(device),
            date=settings.date,
            libraries=libraries(device),
            repetitions=settings.repetitions,
            warm_up=settings.warm_up,
            threads=threads,
            sustained_s=0.0 if settings.collectives_only else settings.sustained_s,
            notes=tuple(notes),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernels:
    gemm: tuple[GemmProfile, ...] = ()
    attention: tuple[AttentionProfile, ...] = ()
    elements: tuple[tuple[int, float], ...] = ()
    copies: tuple[float, float] = (0.0, 0.0)


def _device(wanted: str) -> str:
    if wanted not in ("", "cpu", "cuda"):
        raise UsageError(f"--device {wanted[:40]!r} is not a device", hint="cpu or cuda")
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UsageError("torch finds no CUDA device", hint="--device cpu, or an installation of torch with CUDA")
    return wanted or ("cuda" if available else "cpu")


def _ranks(settings: Calibration, device: str) -> int:
    most = torch.cuda.device_count() if device == "cuda" else cores()
    ranks = settings.ranks or (most if device == "cuda" else min(2, most))
    if device == "cuda" and ranks > most:
        raise UsageError(f"{ranks} ranks on {most} GPUs", hint=f"--ranks {most} or fewer")
    if settings.collectives_only and ranks < 2:
        raise UsageError("collectives need two ranks or more", hint="--ranks 2")
    return ranks


def _kernels(timer: Timer, settings: Calibration, notes: list[str], progress: Progress | None) -> _Kernels:
    dtypes = settings.dtypes or native_dtypes(timer.device)
    unknown = next((d for d in dtypes if d not in TORCH_DTYPES), None)
    if unknown is not None:
        raise UsageError(f"GEMMs in {unknown.value} are not measured", hint="one of " + ", ".join(d.value for d in TORCH_DTYPES))
    shapes = gemm_shapes(timer.device, tiny=settings.tiny)
    gemm = []
    for dtype in dtypes:
        points = measure_gemm(timer, dtype, shapes=shapes, step=_steps(f"GEMM {dtype.value}", len(shapes), progress))
        sustained = 1.0
        if settings.sustained_s > 0:
            _steps(f"GEMM {dtype.value}, long run", 0, progress)()
            sustained = measure_sustained(timer, dtype, seconds=settings.sustained_s, shape=shapes[-1] if settings.tiny else None)
        gemm.append(fit_gemm(points, dtype=dtype, sustained=sustained))
    sizes = element_sizes(timer.device, tiny=settings.tiny)
    return _Kernels(
        gemm=tuple(gemm),
        attention=_attention(timer, dtypes, settings, notes, progress),
        elements=measure_elements(timer, sizes=sizes, step=_steps("element-wise kernels", len(sizes), progress)),
        copies=measure_copies(timer),
    )


def _attention(
    timer: Timer, dtypes: tuple[Dtype, ...], settings: Calibration, notes: list[str], progress: Progress | None
) -> tuple[AttentionProfile, ...]:
    """In the 16-bit dtype that was asked for first, else in the first: what the planner runs attention in."""
    dtype = next((d for d in (Dtype.BF16, Dtype.FP16) if d in dtypes), dtypes[0])
    shapes = attention_shapes(timer.device, tiny=settings.tiny)
    found = []
    for generation in generations(timer.device):
        try:
            step = _steps(f"attention {generation}", len(shapes), progress)
            points = measure_attention(timer, generation, dtype=dtype, shapes=shapes, step=step)
        except RuntimeError as error:
            notes.append(f"attention {generation} not measured: {(str(error).splitlines() or [''])[0][:200]}")
            continue
        found.append(fit_attention(generation, points, dtype=dtype))
    return tuple(found)


def _collectives(
    settings: Calibration, device: str, ranks: int, threads: int, notes: list[str], progress: Progress | None
) -> tuple[CollectiveFit, ...]:
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
            step=_steps(f"collectives over {members}", len(KINDS) * len(sizes), progress),
        )
        groups = {(kind, members): points for kind, points in measured.points}
        found, missed = fit_groups(groups, reference=f"alpha-beta fit of {library} over {members} ranks of one node, {settings.date}")
        fits += found
        notes += [*missed, *(f"{kind} over {members} not measured: {why}" for kind, why in measured.unsupported)]
    return tuple(fits)


def _steps(phase: str, total: int, progress: Progress | None) -> Callable[[], None]:
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(phase, done if total else 0, total)

    return step
