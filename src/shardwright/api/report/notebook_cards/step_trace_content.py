"""Contents of a notebook's card of a step's trace."""

from __future__ import annotations

from typing import Final

from shardwright.program.step_trace import StepTrace
from shardwright.program.traced_device_seconds_by_activity import DeviceTimes, device_times
from shardwright.report.page.view_data_types.notebook_card_of_step_trace import (
    StepTraceCard,
    TracedDeviceRow,
)

MOST_DEVICES: Final = 32
"""Devices of the card's table."""


def step_trace_card(trace: StepTrace) -> StepTraceCard:
    """The notebook card of a trace with at least one device: step, shares, and device rows."""
    times = device_times(trace)[:MOST_DEVICES]
    waiting = [device.waiting_s for device in times]
    busiest, idlest = waiting.index(min(waiting)), waiting.index(max(waiting))
    end_s = trace.end_s
    return StepTraceCard(
        plan=trace.plan,
        origin=trace.origin.value,
        step_s=trace.step_s,
        devices=sum(device.alike for device in trace.devices),
        traced=len(trace.devices),
        spans=len(trace.spans),
        rows=tuple(_row(device) for device in times),
        busiest=busiest,
        idlest=idlest,
        compute_share=times[busiest].compute_s / end_s if end_s else 0.0,
        waiting_share=waiting[idlest] / end_s if end_s else 0.0,
    )


def _row(times: DeviceTimes) -> TracedDeviceRow:
    """Row of one traced device: seconds of compute, communication, waiting; most bytes held."""
    return TracedDeviceRow(
        device=times.device.device,
        alike=times.device.alike,
        runs=times.device.runs,
        compute_s=times.compute_s,
        communication_s=times.communication_s,
        waiting_s=times.waiting_s,
        held_bytes=times.held or None,
    )
