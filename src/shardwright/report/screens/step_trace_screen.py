"""The `trace` screen: seconds of a step by device, predicted and measured; and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.program.step_trace import StepTrace
from shardwright.program.traced_device_seconds_by_activity import (
    ComparedTraces,
    DeviceTimes,
    device_times,
)
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.units import format_bytes, format_seconds

MOST_ROWS: Final = 24
"""Most devices on the screen; the JSON has all of them."""
_NOTE: Final = (
    "communication: time in which nothing else runs; waiting: pipeline bubbles and messages"
)


def trace_document(trace: StepTrace) -> dict[str, Any]:
    """JSON document of ``trace --json``: step, and seconds by activity of each device."""
    return {
        "plan": trace.plan,
        "origin": trace.origin.value,
        "step_s": trace.step_s,
        "spans": len(trace.spans),
        "devices": [
            _device_fields(times) | _seconds_fields(times) for times in device_times(trace)
        ],
    }


def comparison_document(found: ComparedTraces) -> dict[str, Any]:
    """JSON document of ``trace --compare --json``: simulated and measured seconds by device."""
    return {
        "plan": found.simulated.plan,
        "step_s": {"simulated": found.simulated.step_s, "measured": found.measured.step_s},
        "error": found.error,
        "devices": [
            _device_fields(simulated)
            | {"simulated": _seconds_fields(simulated), "measured": _seconds_fields(measured)}
            for simulated, measured in found.rows
        ],
    }


def _device_fields(times: DeviceTimes) -> dict[str, Any]:
    """JSON fields of a row's device: its number, number of equal devices, and its layers."""
    return {"device": times.device.device, "alike": times.device.alike, "runs": times.device.runs}


def _seconds_fields(times: DeviceTimes) -> dict[str, Any]:
    """JSON fields of compute, communication and waiting seconds, and of bytes held."""
    return {
        "compute_s": times.compute_s,
        "communication_s": times.communication_s,
        "waiting_s": times.waiting_s,
        "held_bytes": times.held or None,
    }


def render_trace(trace: StepTrace) -> RenderableType:
    """Screen of a traced step: its seconds, and a row of compute and waits for each device."""
    rows = [
        (*_device_and_layers_cells(times), *_seconds_cells(times), _held_bytes_text(times))
        for times in device_times(trace)
    ]
    header = ("device", "runs", "compute", "communication", "waiting", "held")
    return Group(
        WrappedText(
            Text(
                f"{trace.plan}: a step takes {format_seconds(trace.step_s)} ({trace.origin.value}),"
                f" {len(trace.spans):,} spans"
            )
        ),
        plain_table(
            header,
            _first_and_last_rows(rows, columns=len(header)),
            right=(2, 3, 4, 5),
            whole=(0,),
            spare=(5,),
        ),
        WrappedText(Text(_NOTE, style="dim")),
    )


def render_comparison(found: ComparedTraces) -> RenderableType:
    """Screen of a simulated and a measured step, with a row a device of both."""
    rows = []
    for predicted_times, measured_times in found.rows:
        pairs = [
            f"{a} | {b}"
            for a, b in zip(
                _seconds_cells(predicted_times), _seconds_cells(measured_times), strict=True
            )
        ]
        rows.append(
            (
                *_device_and_layers_cells(predicted_times),
                *pairs,
                f"{_held_bytes_text(predicted_times)} | {_held_bytes_text(measured_times)}",
            )
        )
    header = ("device", "runs", "compute", "communication", "waiting", "held")
    simulated, measured = found.simulated.step_s, found.measured.step_s
    return Group(
        WrappedText(
            Text(
                f"{found.simulated.plan}: a step is predicted to take {format_seconds(simulated)}"
                f" and took {format_seconds(measured)}: the prediction is off by"
                f" {100 * found.error:+.1f} %"
            )
        ),
        plain_table(
            header,
            _first_and_last_rows(rows, columns=len(header)),
            right=(2, 3, 4, 5),
            whole=(0,),
            spare=(5,),
        ),
        WrappedText(Text(f"predicted | measured; {_NOTE}", style="dim")),
    )


def _device_and_layers_cells(times: DeviceTimes) -> tuple[str, str]:
    """Two cells: the device's number, with the number of further equal devices; and its layers."""
    device = times.device
    more = f" (+{device.alike - 1:,} alike)" if device.alike > 1 else ""
    return f"{device.device}{more}", device.runs


def _seconds_cells(times: DeviceTimes) -> tuple[str, str, str]:
    """Three cells: seconds of compute, of communication and of waiting."""
    compute, communication, waiting = (
        format_seconds(s, digits=3)
        for s in (times.compute_s, times.communication_s, times.waiting_s)
    )
    return compute, communication, waiting


def _held_bytes_text(times: DeviceTimes) -> str:
    """Bytes of memory that a device holds as text, or a dash for none."""
    return format_bytes(times.held, digits=3) if times.held else "-"


def _first_and_last_rows(rows: Sequence[tuple[str, ...]], *, columns: int) -> list[tuple[str, ...]]:
    """The first and last rows, with a row for the number left out, if there are too many."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    half = MOST_ROWS // 2
    between = (f"{len(rows) - 2 * half:,} more", *("" for _ in range(columns - 1)))
    return [*rows[:half], between, *rows[-half:]]
