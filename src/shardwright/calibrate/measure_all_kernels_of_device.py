"""Measurement of all kernels of one device: GEMMs, attention, element-wise kernels and copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardwright.calibrate.calibration_settings_and_check_rows import Calibration
from shardwright.calibrate.kernel_timing import TORCH_DTYPES, Timer, native_dtypes
from shardwright.calibrate.measure_attention import (
    attention_generations,
    attention_shapes,
    measure_attention,
)
from shardwright.calibrate.measure_element_wise_kernels_and_copies import (
    element_sizes,
    measure_copies,
    measure_elements,
)
from shardwright.calibrate.measure_gemm_seconds import gemm_shapes, measure_gemm, measure_sustained
from shardwright.dtype import Dtype
from shardwright.errors import UsageError
from shardwright.hardware.profile.measured_rates import AttentionPoint, GemmPoint
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMeasurements:
    """Measured kernels of one device.

    Args:
        gemm: (dtype, points, factor of a long run).
        attention: (kernel, dtype, points).
        elements: (bytes, seconds).
        copies: bytes/s to the device, and from it.
        notes: kernels that were not measured, with the reason.
    """

    gemm: tuple[tuple[Dtype, tuple[GemmPoint, ...], float], ...] = ()
    attention: tuple[tuple[str, Dtype, tuple[AttentionPoint, ...]], ...] = ()
    elements: tuple[tuple[int, float], ...] = ()
    copies: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()


def measure_kernels(
    timer: Timer, settings: Calibration, progress: Progress | None = None
) -> KernelMeasurements:
    """Measure GEMMs, attention, element-wise kernels and copies on this device.

    Raises:
        UsageError: a dtype that cannot be measured.
    """
    dtypes = settings.dtypes or native_dtypes(timer.device)
    unknown = next((d for d in dtypes if d not in TORCH_DTYPES), None)
    if unknown is not None:
        raise UsageError(
            f"GEMMs in {unknown.value} are not measured",
            hint="one of " + ", ".join(d.value for d in TORCH_DTYPES),
        )
    shapes = gemm_shapes(timer.device, tiny=settings.tiny)
    gemm = []
    for dtype in dtypes:
        points = measure_gemm(
            timer,
            dtype,
            shapes=shapes,
            step=progress_step(f"GEMM {dtype.value}", len(shapes), progress),
        )
        sustained = 1.0
        if settings.sustained_s > 0:
            progress_step(f"GEMM {dtype.value}, long run", 0, progress)()
            sustained = measure_sustained(
                timer,
                dtype,
                seconds=settings.sustained_s,
                shape=shapes[-1] if settings.tiny else None,
            )
        gemm.append((dtype, tuple(points), sustained))
    sizes = element_sizes(timer.device, tiny=settings.tiny)
    attention, notes = _measure_attention_kernels(timer, dtypes, settings, progress)
    return KernelMeasurements(
        gemm=tuple(gemm),
        attention=attention,
        elements=measure_elements(
            timer, sizes=sizes, step=progress_step("element-wise kernels", len(sizes), progress)
        ),
        copies=measure_copies(timer),
        notes=notes,
    )


def slowest_of_devices(devices: Sequence[KernelMeasurements]) -> KernelMeasurements:
    """Merge measurements of several devices: the slowest device at each point.

    A training step waits for the slowest device.

    Args:
        devices: measurements of the measured_points points at the measured_points time.
    """
    one_device = devices[0]
    return KernelMeasurements(
        gemm=tuple(
            (
                dtype,
                tuple(
                    max(measured_points, key=lambda p: p.seconds)
                    for measured_points in zip(
                        *(device.gemm[i][1] for device in devices), strict=True
                    )
                ),
                max(device.gemm[i][2] for device in devices),  # ratio of long to short runs
            )
            for i, (dtype, _, _) in enumerate(one_device.gemm)
        ),
        attention=tuple(
            (
                kernel,
                dtype,
                tuple(
                    _slowest_attention(measured_points)
                    for measured_points in zip(
                        *(device.attention[i][2] for device in devices), strict=True
                    )
                ),
            )
            for i, (kernel, dtype, _) in enumerate(one_device.attention)
        ),
        elements=tuple(
            max(measured_points, key=lambda p: p[1])
            for measured_points in zip(*(device.elements for device in devices), strict=True)
        ),
        copies=(
            min(device.copies[0] for device in devices),
            min(device.copies[1] for device in devices),
        ),
        notes=one_device.notes,
    )


def progress_step(phase: str, total: int, progress: Progress | None) -> Callable[[], None]:
    """Make a function that counts a phase's measured points and reports each to `progress`."""
    done = 0

    def step() -> None:
        """Count one more point as measured, and report the phase, count and total."""
        nonlocal done
        done += 1
        if progress is not None:
            progress(phase, done if total else 0, total)

    return step


def _slowest_attention(measured_points: Sequence[AttentionPoint]) -> AttentionPoint:
    """One attention point measured on several devices: the most forward, and backward, seconds."""
    return measured_points[0]._replace(
        forward_s=max(p.forward_s for p in measured_points),
        backward_s=max(p.backward_s for p in measured_points),
    )


def _measure_attention_kernels(
    timer: Timer, dtypes: tuple[Dtype, ...], settings: Calibration, progress: Progress | None
) -> tuple[tuple[tuple[str, Dtype, tuple[AttentionPoint, ...]], ...], tuple[str, ...]]:
    """Measure all attention kernels in BF16, else FP16, else the first dtype: (points, notes).

    In the first dtype where none has 16 bits.
    """
    dtype = next((d for d in (Dtype.BF16, Dtype.FP16) if d in dtypes), dtypes[0])
    shapes = attention_shapes(timer.device, tiny=settings.tiny)
    found, notes = [], []
    for kernel in attention_generations(timer.device):
        try:
            step = progress_step(f"attention {kernel}", len(shapes), progress)
            points = measure_attention(timer, kernel, dtype=dtype, shapes=shapes, step=step)
        except RuntimeError as error:
            notes.append(
                f"attention {kernel} not measured: {(str(error).splitlines() or [''])[0][:200]}"
            )
            continue
        found.append((kernel, dtype, tuple(points)))
    return tuple(found), tuple(notes)
