"""Data of a notebook's card of a step's trace: seconds of each device by activity."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDeviceRow:
    """Seconds of one traced device by activity, and the most memory that it holds.

    Args:
        alike: devices that it stands for, itself included.
        runs: its layers.
        held_bytes: None where memory was not traced.
    """

    device: int
    alike: int
    runs: str
    compute_s: float
    communication_s: float
    waiting_s: float
    held_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraceCard:
    """A traced step: its seconds, and the devices with the least and the most waiting time.

    Args:
        plan: name of the plan.
        origin: simulated or measured.
        devices: devices that the traced ones stand for.
        traced: devices of the trace.
        spans: stretches of work of all traced devices.
        rows: the first traced devices.
        busiest: number in `rows` of the device that waits least.
        idlest: number in `rows` of the device that waits most.
        compute_share: fraction of the step in which the busiest device computes.
        waiting_share: fraction of the step in which the idlest device waits.
    """

    plan: str
    origin: str
    step_s: float
    devices: int
    traced: int
    spans: int
    rows: tuple[TracedDeviceRow, ...]
    busiest: int
    idlest: int
    compute_share: float
    waiting_share: float
