"""Seconds of compute, communication and waiting of each device of a trace.

And two traces of one plan side by side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from shardwright.arrays import BoolArray, FloatArray
from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.step_trace import Span, StepTrace, TracedDevice, Track


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimes:
    """Seconds of a device by activity; the three add up to the trace's end.

    Args:
        compute_s: its compute stream runs kernels.
        communication_s: no kernel runs, and a collective, a gather or a sum of gradients does.
        waiting_s: the rest: bubbles, and messages of the pipeline that are not hidden.
        held: most bytes of its samples; 0 = none.
    """

    device: TracedDevice
    compute_s: float
    communication_s: float
    waiting_s: float
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTraces:
    """A prediction and a measurement of one plan, with the times of the same devices."""

    simulated: StepTrace
    measured: StepTrace
    rows: tuple[tuple[DeviceTimes, DeviceTimes], ...]

    @property
    def error(self) -> float:
        """Predicted over measured step time, minus one; 0 if the measured time is 0."""
        return self.simulated.step_s / self.measured.step_s - 1.0 if self.measured.step_s else 0.0


def device_times(trace: StepTrace) -> tuple[DeviceTimes, ...]:
    """Seconds of compute, communication and waiting, and peak bytes, of each traced device.

    An action that waits for a message does so inside its span where the trace was measured, and
    before it where it was simulated: both are waiting. Collectives that are spans inside an action
    count as communication, and so does `Span.exposed_s`.
    """
    spans: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        spans[span.device].append(span)
    peak_bytes: dict[int, int] = defaultdict(int)
    for sample in trace.memory:
        peak_bytes[sample.device] = max(peak_bytes[sample.device], sample.held)
    return tuple(
        _times_of_device(
            device, spans[device.device], end_s=trace.end_s, peak_bytes=peak_bytes[device.device]
        )
        for device in trace.devices
    )


def _times_of_device(
    device: TracedDevice, spans: Sequence[Span], *, end_s: float, peak_bytes: int
) -> DeviceTimes:
    """Seconds of compute, communication and waiting of one device, from its spans."""
    times = np.unique([0.0, end_s, *(t for span in spans for t in (span.start_s, span.end_s))])
    lengths = np.diff(times)
    acting, asking, moving, syncing = (
        _covered([s for s in spans if s.track is track], times)
        for track in (Track.COMPUTE, Track.MESSAGES, Track.COLLECTIVES, Track.SYNC)
    )
    running = acting & ~asking & ~moving
    exposed = sum(span.exposed_s for span in spans)
    compute = float(lengths[running].sum())
    communication = float(lengths[(moving | syncing) & ~running].sum())
    return DeviceTimes(
        device=device,
        compute_s=compute - exposed,
        communication_s=communication + exposed,
        waiting_s=float(lengths[~running & ~moving & ~syncing].sum()),
        held=peak_bytes,
    )


def _covered(spans: Sequence[Span], times: FloatArray) -> BoolArray:
    """(times - 1,) True where some span covers the interval from one of `times` to the next."""
    depth = np.zeros(len(times), dtype=np.int64)
    np.add.at(depth, np.searchsorted(times, [s.start_s for s in spans]), 1)
    np.add.at(depth, np.searchsorted(times, [s.end_s for s in spans]), -1)
    covered: BoolArray = np.cumsum(depth)[:-1] > 0
    return covered


def compared_traces(simulated: StepTrace, measured: StepTrace) -> ComparedTraces:
    """Pair a simulated and a measured trace of one plan by device; raise if their actions differ.

    Raises:
        DataError: their devices run other actions: they are not of one plan.
    """
    predicted = {row.device.device: row for row in device_times(simulated)}
    measured_times = device_times(measured)
    if (
        sorted(predicted) != [row.device.device for row in measured_times]
        or simulated.actions != measured.actions
    ):
        unmatched = sorted(measured.actions - simulated.actions) or sorted(
            simulated.actions - measured.actions
        )
        first_unmatched = (
            f"device {unmatched[0][0]}: {_action_words(unmatched[0])}" if unmatched else "devices"
        )
        raise DataError(
            f"the measured trace is not of this plan: {first_unmatched}"
            f" {'is' if unmatched else 'are'} in one trace and not in the other",
            hint="compare with the plan file that was run",
        )
    return ComparedTraces(
        simulated=simulated,
        measured=measured,
        rows=tuple((predicted[row.device.device], row) for row in measured_times),
    )


def _action_words(action: tuple[int, str, int, int, int, int]) -> str:
    """An action, without its device, as words for an error message."""
    _, kind, lane, chunk, microbatch, part = action
    return f"{kind} of lane {lane} chunk {chunk} microbatch {microbatch} slice {part}"
