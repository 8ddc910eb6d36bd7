"""Data of the pipeline's timeline: tasks and idle stretches of each device, and their causes."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineTrack:
    """Spans of one activity of a device, in order; they do not overlap.

    The four texts are whole numbers with commas between, one for each span: short JSON that
    compresses well.

    Args:
        name: activity.
        gaps: ticks between the end of the span before it (or the step's start) and its start.
        lengths: ticks from its start to its end.
        works: its place in the timeline's `works`; of an idle span in `causes`, and from the number
            of causes on in `imbalances`.
        microbatches: -1 = it is of no microbatch; empty for idle spans.
    """

    name: str
    gaps: str
    lengths: str
    works: str
    microbatches: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTimeline:
    """The simulated step of one device, which stands for `devices` equal devices.

    All seconds are of this device and add up to the step without jitter.

    Args:
        device: number of the device.
        stage: name of its pipeline stage.
        layers: its layers in words.
        chunks: its pipeline chunks in words.
        busy_s: its actions and updates.
        idle_s: sum of the seconds below.
        warm_up_s, cool_down_s: the pipeline fills or drains.
        order_s: waits that the order of actions requires in between.
        message_s: messages between stages.
        reduction_s: gradient reductions.
        gather_s: parameter gathers, and updates of slower devices.
        imbalance_s: other stages have more work, or its own stage has less.
        tracks: compute, idle, messages, gathers and reductions.
    """

    device: int
    devices: int
    stage: str
    layers: str
    chunks: str
    busy_s: float
    idle_s: float
    warm_up_s: float
    cool_down_s: float
    order_s: float
    message_s: float
    reduction_s: float
    gather_s: float
    imbalance_s: float
    tracks: tuple[TimelineTrack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineWork:
    """A kind of task of one pipeline chunk.

    Args:
        kind: in words.
        letter: short name of an action, such as F; empty for other tasks.
        chunk: -1 = it is of no chunk.
    """

    kind: str
    letter: str
    chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleShare:
    """Idle time by cause: seconds of the mean device, and their fraction of the step."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimeline:
    """Timeline of a simulated step.

    Args:
        step_s: predicted step, with jitter.
        end_s: end of the simulated step, without jitter.
        jitter_s: seconds by which random delays of devices lengthen the step.
        tick_s: seconds of a tick of the spans.
        axis: seconds of the step that the chart labels.
        works: kinds of task.
        causes: idle time of the mean device by cause, in a fixed order; each has a colour.
        imbalances: idle time of the mean device by the stage whose work differs, the largest first.
        idle: idle time of the mean device.
        largest: cause with the most idle time; None if no device is idle.
        largest_imbalance: first of `imbalances` where `largest` is the imbalance; else None.
        rows: one device of each class, in the order of the stages.
        classes: number of device classes; those with the least idle time have no row if they are
            many.
        change: simulated change that shortens the step most; None if none was simulated.
    """

    step_s: float
    end_s: float
    jitter_s: float
    tick_s: float
    axis: ChartAxis
    works: tuple[TimelineWork, ...]
    causes: tuple[IdleShare, ...]
    imbalances: tuple[IdleShare, ...]
    idle: IdleShare
    largest: IdleShare | None
    largest_imbalance: IdleShare | None
    rows: tuple[DeviceTimeline, ...]
    classes: int
    change: SimulatedChange | None = None
