"""The `calibrate` screen: a hardware profile and its check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.calibrate.calibration_settings_and_check_rows import CheckRow
from shardwright.hardware.profile.measured_rates import FitError, Profile
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.units import GIGA, TERA, format_bytes, format_percent, format_seconds


def render_profile(profile: Profile) -> RenderableType:
    """The screen of `calibrate`: measurements, fitted numbers, and errors of the fit."""
    parts: list[RenderableType] = [WrappedText(Text(profile.reference))]
    fits = _fit_rows(profile)
    if fits:
        parts.append(
            plain_table(
                ("measured", "fit", "points", "mean error", "p90"),
                fits,
                right=(2, 3, 4),
                spare=(4, 2),
            )
        )
    if profile.kernels:
        total = sum(k.seconds for k in profile.kernels)
        rows = [
            (k.kind, format_seconds(k.seconds), format_percent(k.seconds / total), f"{k.calls:,}")
            for k in profile.kernels
        ]
        parts.append(
            plain_table(("kernels of the trace", "time", "share", "calls"), rows, right=(1, 2, 3))
        )
    notes = profile.method.notes if profile.method else ()
    parts += [WrappedText(Text(f"note: {note}")) for note in notes]
    return Group(*parts)


def render_check(rows: Iterable[CheckRow]) -> RenderableType:
    """Table of training steps on one device: predicted against measured seconds and bytes."""
    cells = [
        (
            row.name,
            format_seconds(row.predicted_s),
            f"{format_seconds(row.low_s)} to {format_seconds(row.high_s)}",
            format_seconds(row.measured_s),
            f"{100 * (row.predicted_s / row.measured_s - 1):+.1f} %",
            format_bytes(row.predicted_bytes) if row.measured_bytes else "-",
            format_bytes(row.measured_bytes) if row.measured_bytes else "-",
        )
        for row in rows
    ]
    header = (
        "step on one device",
        "predicted",
        "80 % interval",
        "measured",
        "error",
        "memory predicted",
        "measured",
    )
    return plain_table(header, cells, right=(1, 3, 4, 5, 6), spare=(6, 5, 2))


def check_document(rows: Iterable[CheckRow]) -> list[dict[str, object]]:
    """JSON list of ``calibrate --check``: predicted and measured seconds and bytes of each step."""
    return [row._asdict() for row in rows]


def _fit_rows(profile: Profile) -> Sequence[tuple[str, ...]]:
    """Rows of fitted kernel and collective models with their errors."""
    rows: list[tuple[str, ...]] = []
    for g in profile.gemm:
        rates = f"{g.flops_per_second / TERA:.4g} TFLOP/s, {g.bytes_per_second / GIGA:.4g} GB/s"
        form = (
            f"{rates}, t0 {format_seconds(g.overhead_s)}, q {g.exponent:.2f}, sustained x"
            f" {g.sustained:.3f}"
        )
        rows.append((f"GEMM {g.dtype.value}", form, *_fit_error_cells(g.error)))
    for a in profile.attention:
        curve = ", ".join(f"{length}: {rate / TERA:.3g}" for length, rate in a.curve)
        rows.append(
            (
                f"attention {a.generation} {a.dtype.value}",
                f"{curve} TFLOP/s, backward x {a.backward_ratio:.2f}",
                *_fit_error_cells(a.error),
            )
        )
    if profile.elements is not None:
        e = profile.elements
        form = f"{e.bytes_per_second / GIGA:.4g} GB/s, launch {format_seconds(e.launch_s)}"
        rows.append(("element-wise", form, *_fit_error_cells(e.error)))
    for c in profile.collectives:
        form = (
            f"{format_seconds(c.latency_s)}, bus {c.bus_bandwidth / GIGA:.4g} GB/s,"
            f" {c.large_bandwidth / GIGA:.4g} at the largest"
        )
        rows.append((f"{c.collective} over {c.num_devices}", form, *_fit_error_cells(c.error)))
    return rows


def _fit_error_cells(error: FitError) -> tuple[str, str, str]:
    """Cells of a fit's number of points, mean error and 90th percentile error."""
    return str(error.num_points), format_percent(error.mean), format_percent(error.p90)
