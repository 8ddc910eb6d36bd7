"""The time of a step, device by device, predicted and measured: as a screen, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.program.step_trace import StepTrace
from shardwright.program.trace_times import ComparedTraces, DeviceTimes, device_times
from shardwright.report.line_breaking import Words
from shardwright.report.table_style import plain_table
from shardwright.units import format_bytes, format_seconds

MOST_ROWS: Final = 24
"""Devices on the screen; all are in the JSON."""
_NOTE: Final = (
    "communication: time in which nothing else runs; waiting: pipeline bubbles and messages"
)


def trace_document(trace: StepTrace) -> dict[str, Any]:
    """``trace --json``."""
    return {
        "plan": trace.plan,
        "origin": trace.origin.value,
        "step_s": trace.step_s,
        "spans": len(trace.spans),
        "devices": [_device(times) | _seconds(times) for times in device_times(trace)],
    }


def comparison_document(found: ComparedTraces) -> dict[str, Any]:
    """``trace --compare --json``."""
    return {
        "plan": found.simulated.plan,
        "step_s": {"simulated": found.simulated.step_s, "measured": found.measured.step_s},
        "error": found.error,
        "devices": [
            _device(one) | {"simulated": _seconds(one), "measured": _seconds(other)}
            for one, other in found.rows
        ],
    }


def _device(times: DeviceTimes) -> dict[str, Any]:
    return {"device": times.device.device, "alike": times.device.alike, "runs": times.device.runs}


def _seconds(times: DeviceTimes) -> dict[str, Any]:
    return {
        "compute_s": times.compute_s,
        "communication_s": times.communication_s,
        "waiting_s": times.waiting_s,
        "held_bytes": times.held or None,
    }


def render_trace(trace: StepTrace) -> RenderableType:
    """The step, and a row a device."""
    rows = [(*_names(times), *_cells(times), _bytes(times)) for times in device_times(trace)]
    header = ("device", "runs", "compute", "communication", "waiting", "held")
    return Group(
        Words(
            Text(
                f"{trace.plan}: a step takes {format_seconds(trace.step_s)} ({trace.origin.value}),"
                f" {len(trace.spans):,} spans"
            )
        ),
        plain_table(
            header, _few(rows, columns=len(header)), right=(2, 3, 4, 5), whole=(0,), spare=(5,)
        ),
        Words(Text(_NOTE, style="dim")),
    )


def render_comparison(found: ComparedTraces) -> RenderableType:
    """Both steps, and a row a device with predicted and measured seconds."""
    rows = []
    for one, other in found.rows:
        pairs = [f"{a} | {b}" for a, b in zip(_cells(one), _cells(other), strict=True)]
        rows.append((*_names(one), *pairs, f"{_bytes(one)} | {_bytes(other)}"))
    header = ("device", "runs", "compute", "communication", "waiting", "held")
    simulated, measured = found.simulated.step_s, found.measured.step_s
    return Group(
        Words(
            Text(
                f"{found.simulated.plan}: a step is predicted to take {format_seconds(simulated)}"
                f" and took {format_seconds(measured)}: the prediction is off by"
                f" {100 * found.error:+.1f} %"
            )
        ),
        plain_table(
            header, _few(rows, columns=len(header)), right=(2, 3, 4, 5), whole=(0,), spare=(5,)
        ),
        Words(Text(f"predicted | measured; {_NOTE}", style="dim")),
    )


def _names(times: DeviceTimes) -> tuple[str, str]:
    device = times.device
    more = f" (+{device.alike - 1:,} alike)" if device.alike > 1 else ""
    return f"{device.device}{more}", device.runs


def _cells(times: DeviceTimes) -> tuple[str, str, str]:
    compute, communication, waiting = (
        format_seconds(s, digits=3)
        for s in (times.compute_s, times.communication_s, times.waiting_s)
    )
    return compute, communication, waiting


def _bytes(times: DeviceTimes) -> str:
    return format_bytes(times.held, digits=3) if times.held else "-"


def _few(rows: Sequence[tuple[str, ...]], *, columns: int) -> list[tuple[str, ...]]:
    if len(rows) <= MOST_ROWS:
        return list(rows)
    half = MOST_ROWS // 2
    between = (f"{len(rows) - 2 * half:,} more", *("" for _ in range(columns - 1)))
    return [*rows[:half], between, *rows[-half:]]
