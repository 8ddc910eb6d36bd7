"""Contents of the report's timeline: spans of one device of each class, and idle time by cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from shardwright.api.report.bubble_causes import IdleCause, IdlePieces
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.arrays import FloatArray, IntArray, distinct
from shardwright.program.device_classes_with_equal_actions import DeviceClass
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis, round_ticks
from shardwright.report.page.view_data_types.pipeline_timeline import (
    DeviceTimeline,
    IdleShare,
    PipelineTimeline,
    TimelineTrack,
    TimelineWork,
)
from shardwright.report.page.view_data_types.simulated_change import SimulatedChange
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.simulator.simulate_plan import Timeline
from shardwright.units import PICOSECONDS_PER_SECOND

MOST_ROWS: Final = 64
"""Most device classes that the timeline shows."""
MOST_SPANS: Final = 300_000
"""Most spans of the timeline."""
_MOST_STAGES: Final = 8
"""Most stages whose imbalance is listed on its own."""
_TICK_PS: Final = 1000
"""Picoseconds of a tick."""
_CAUSES: Final = {
    IdleCause.WARM_UP: "warm-up of the pipeline",
    IdleCause.COOL_DOWN: "cool-down of the pipeline",
    IdleCause.ORDER: "order of the actions",
    IdleCause.MESSAGE: "messages between stages",
    IdleCause.REDUCTION: "gradient reductions",
    IdleCause.GATHER_OR_UPDATE: "parameter gathers and updates",
    IdleCause.IMBALANCE: "imbalance between stages",
}
_KINDS: Final = {
    TaskKind.F: ("forward", "F"),
    TaskKind.I: ("input gradient", "I"),
    TaskKind.W: ("weight gradient", "W"),
    TaskKind.B: ("backward", "B"),
    TaskKind.R: ("recompute", "R"),
    TaskKind.SEND_F: ("message forward", ""),
    TaskKind.SEND_B: ("message backward", ""),
    TaskKind.GATHER: ("parameter gather", ""),
    TaskKind.REDUCE: ("gradient reduction", ""),
    TaskKind.STEP: ("update", "U"),
    TaskKind.REDUCE_TIED: ("gradient reduction of tied weights", ""),
}
_TRACKS: Final = {
    Stream.COMPUTE: "compute",
    Stream.SEND_F: "messages forward",
    Stream.SEND_B: "messages backward",
    Stream.SYNC: "gathers and reductions",
}


def pipeline_timeline(
    step: SimulatedStep, pieces: IdlePieces, *, change: SimulatedChange | None = None
) -> PipelineTimeline:
    """The timeline of a simulated step with the causes of its idle time.

    Args:
        pieces: idle stretches of the step.
    """
    program, timeline = step.simulated.program, step.simulated.timeline
    stages = _stage_names(program)
    idle = _seconds_by_class(program, pieces, stages=len(stages))
    counts = np.array([len(device_class.devices) for device_class in program.classes], dtype=float)
    mean = counts @ idle / counts.sum()
    end_s = timeline.seconds
    causes = _cause_shares(mean, end_s)
    imbalances, stage_code = _imbalances(mean, stages, end_s)
    largest = max(causes, key=lambda share: share.seconds)
    works, work_of_template = _works(program)
    shown = _shown_classes(program, idle)
    return PipelineTimeline(
        step_s=step.prediction.step_time_s,
        end_s=end_s,
        jitter_s=max(step.prediction.step_time_s - end_s, 0.0),
        tick_s=_TICK_PS / PICOSECONDS_PER_SECOND,
        axis=ChartAxis(
            name="time in the step",
            form="seconds",
            ticks=tuple(tick for tick in round_ticks([0.0, end_s]) if tick <= end_s),
        ),
        works=works,
        causes=causes,
        imbalances=imbalances,
        idle=_share("idle", float(mean.sum()), end_s),
        largest=largest if largest.seconds > 0.0 else None,
        largest_imbalance=(
            imbalances[0] if imbalances and largest.name == _CAUSES[IdleCause.IMBALANCE] else None
        ),
        rows=tuple(
            _row(
                step,
                number,
                idle[number],
                tracks=(
                    *_tracks(program, timeline, number, work_of_template),
                    _idle_track(pieces, number, stage_code),
                ),
            )
            for number in shown
        ),
        classes=len(program.classes),
        change=change,
    )


def _stage_names(program: Program) -> list[str]:
    """Name of each row of the pipeline order: ``stage 0``, ``stage 1`` and so on."""
    return [f"stage {row}" for row in range(1 + max(k.row for k in program.classes))]


def _seconds_by_class(program: Program, pieces: IdlePieces, *, stages: int) -> FloatArray:
    """(classes, causes) idle seconds; a column for each cause, and for each stage's imbalance."""
    found = np.zeros((len(program.classes), int(IdleCause.IMBALANCE) + stages), dtype=np.int64)
    np.add.at(found, (pieces.klass, pieces.cause), pieces.duration)
    return found / PICOSECONDS_PER_SECOND


def _share(name: str, seconds: float, end_s: float) -> IdleShare:
    """Idle seconds with their fraction of the step."""
    return IdleShare(name=name, seconds=seconds, share=seconds / end_s if end_s else 0.0)


def _cause_shares(mean: FloatArray, end_s: float) -> tuple[IdleShare, ...]:
    """Idle time of the mean device by cause, the imbalance of all stages as one."""
    return tuple(
        _share(name, float(mean[int(cause) :].sum()), end_s)
        if cause is IdleCause.IMBALANCE
        else _share(name, float(mean[int(cause)]), end_s)
        for cause, name in _CAUSES.items()
    )


def _imbalances(
    mean: FloatArray, stages: Sequence[str], end_s: float
) -> tuple[tuple[IdleShare, ...], IntArray]:
    """(imbalances of the worst stages, then of all others; each stage's index in that list)."""
    seconds = mean[int(IdleCause.IMBALANCE) :]
    order = [stage for stage in np.argsort(-seconds, kind="stable").tolist() if seconds[stage] > 0]
    listed, others = order[:_MOST_STAGES], order[_MOST_STAGES:]
    shares = [_share(stages[stage], float(seconds[stage]), end_s) for stage in listed]
    if others:
        shares.append(_share("other stages", float(seconds[others].sum()), end_s))
    code = np.full(len(stages), len(listed), dtype=np.int64)
    code[listed] = np.arange(len(listed))
    return tuple(shares), code


def _works(program: Program) -> tuple[tuple[TimelineWork, ...], IntArray]:
    """(distinct kinds of task by chunk, place of each template in that list)."""
    templates = program.templates
    pairs, place = np.unique(
        np.stack([templates.kind, templates.chunk], axis=1), axis=0, return_inverse=True
    )
    works = []
    for kind, chunk in pairs.tolist():
        name, letter = _KINDS[TaskKind(kind)]
        works.append(TimelineWork(kind=name, letter=letter, chunk=chunk))
    return tuple(works), place.reshape(-1)


def _shown_classes(program: Program, idle: FloatArray) -> list[int]:
    """Indices of the most idle classes within limits of rows and spans, ordered by stage."""
    tasks = np.bincount(program.instances.klass, minlength=len(program.classes))
    shown, spans = list[int](), 0
    for number in np.argsort(-idle.sum(axis=1), kind="stable").tolist()[:MOST_ROWS]:
        spans += int(tasks[number])
        if shown and spans > MOST_SPANS:
            break
        shown.append(number)
    return sorted(shown, key=lambda number: (program.classes[number].row, number))


def _row(
    step: SimulatedStep,
    number: int,
    idle: FloatArray,
    *,
    tracks: tuple[TimelineTrack, ...],
) -> DeviceTimeline:
    """Row of a device class from its idle seconds by cause and its tracks."""
    device_class = step.simulated.program.classes[number]
    seconds = idle[: int(IdleCause.IMBALANCE)].tolist()
    idle_s = float(idle.sum())
    return DeviceTimeline(
        device=device_class.devices.first,
        devices=len(device_class.devices),
        stage=f"stage {device_class.row}",
        layers=step.simulated.memory[number].layers,
        chunks=_chunk_text(step.simulated.program, device_class),
        busy_s=step.simulated.timeline.seconds - idle_s,
        idle_s=idle_s,
        warm_up_s=seconds[IdleCause.WARM_UP],
        cool_down_s=seconds[IdleCause.COOL_DOWN],
        order_s=seconds[IdleCause.ORDER],
        message_s=seconds[IdleCause.MESSAGE],
        reduction_s=seconds[IdleCause.REDUCTION],
        gather_s=seconds[IdleCause.GATHER_OR_UPDATE],
        imbalance_s=float(idle[int(IdleCause.IMBALANCE) :].sum()),
        tracks=tracks,
    )


def _chunk_text(program: Program, device_class: DeviceClass) -> str:
    """Pipeline chunks of a class as text, such as ``0 x16 @8``, for each lane where there are many.

    ``0 x16 @8`` are 16 chunks, every eighth from chunk 0 on.
    """
    chunks: dict[int, list[int]] = {}
    for lane, chunk, _ in device_class.families:
        chunks.setdefault(lane, []).append(chunk)
    lanes = program.plan.lanes
    texts = (
        f"{lanes[lane].name}: " * (len(lanes) > 1)
        + device_text(distinct(np.array(numbers, dtype=np.int64)))
        for lane, numbers in sorted(chunks.items())
    )
    return "; ".join(texts)


def _tracks(
    program: Program, timeline: Timeline, number: int, work_of_template: IntArray
) -> list[TimelineTrack]:
    """Tracks of the tasks of a class; streams without tasks have none."""
    instances = program.instances
    own = np.flatnonzero(instances.klass == number)
    tracks = []
    for stream, name in _TRACKS.items():
        tasks = own[instances.stream[own] == int(stream)]
        tasks = tasks[np.lexsort((timeline.finish[tasks], timeline.start[tasks]))]
        if len(tasks):
            tracks.append(
                TimelineTrack(
                    name=name,
                    **_spans(timeline.start[tasks], timeline.finish[tasks]),
                    works=_numbers(work_of_template[instances.template[tasks]]),
                    microbatches=_numbers(instances.microbatch[tasks]),
                )
            )
    return tracks


def _idle_track(pieces: IdlePieces, number: int, stage_code: IntArray) -> TimelineTrack:
    """Track of a class's idle spans; its works are codes of the causes."""
    own = np.flatnonzero(pieces.klass == number)
    start, cause = pieces.start[own], pieces.cause[own]
    stage = np.maximum(cause - int(IdleCause.IMBALANCE), 0)
    code = np.where(cause < int(IdleCause.IMBALANCE), cause, len(_CAUSES) + stage_code[stage])
    return TimelineTrack(
        name="idle",
        **_spans(start, start + pieces.duration[own]),
        works=_numbers(code),
        microbatches="",
    )


def _spans(start: IntArray, finish: IntArray) -> dict[str, str]:
    """Gaps before spans and their lengths in ticks, as comma-separated text, from picoseconds."""
    half = _TICK_PS // 2
    begin, end = (start + half) // _TICK_PS, (finish + half) // _TICK_PS
    return {
        "gaps": _numbers(begin - np.append(0, end[:-1])),
        "lengths": _numbers(end - begin),
    }


def _numbers(values: IntArray) -> str:
    """Whole numbers as text with commas between."""
    return ",".join(map(str, values.tolist()))
