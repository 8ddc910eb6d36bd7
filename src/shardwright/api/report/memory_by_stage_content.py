"""Contents of the report's view of memory: items by stage, and the fullest stage over time."""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.api.report.changes.changes_that_free_memory import changes_that_free_memory
from shardwright.api.report.simulate_stored_plan import SimulatedStep
from shardwright.arrays import distinct
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data_types.line_chart_data import (
    ChartAxis,
    ChartSeries,
    LineChart,
    round_ticks,
)
from shardwright.report.page.view_data_types.memory_by_stage import (
    HostMemoryUse,
    MemoryByStage,
    NamedBytes,
    StageMemoryUse,
)
from shardwright.simulator.prediction import HostMemory, Prediction
from shardwright.simulator.simulated_trace import simulated_trace
from shardwright.units import PICOSECONDS_PER_SECOND

MOST_STAGES: Final = 32
"""Most stages of the chart; of more the fullest are shown."""
MOST_POSITIONS: Final = 120
"""Most positions of the curve of memory over time; each has the largest value until the next."""
_ITEMS: Final = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations",
    "logits": "logits",
    "temporary": "temporary tensors",
    "communication": "communication buffers",
    "fragmentation": "allocator fragmentation",
    "workspace": "workspace",
    "context": "driver context",
}
"""Names in words of the items of `StageMemory`, in the order of the bars from below."""
_HOST_ITEMS: Final = {"optimizer": "optimizer states", "buffers": "transfer buffers"}


def memory_by_stage(
    saved: StoredSimulation,
    step: SimulatedStep,
    *,
    file_name: str,
    progress: Progress | None = None,
) -> MemoryByStage:
    """Memory of each stage of a stored plan, of the fullest over time, and what would free some.

    Args:
        step: the stored plan, simulated.
        file_name: name of its file, for commands.
    """
    prediction = step.prediction
    found = {name for stage in prediction.stages for name, size in stage.items if size}
    names = [name for name in _ITEMS if name in found]
    names += sorted(found - set(names))
    uses = [_stage_use(prediction, names, number) for number in range(len(prediction.stages))]
    shown = sorted(sorted(range(len(uses)), key=lambda k: -uses[k].share)[:MOST_STAGES])
    stages = tuple(uses[number] for number in shown)
    fullest = max(range(len(stages)), key=lambda k: stages[k].share)
    sizes = stages[fullest].bytes_by_item
    levels = [0, *(size for s in stages for size in (s.reserved_bytes, s.capacity_bytes))]
    return MemoryByStage(
        items=tuple(_ITEMS.get(name, name) for name in names),
        stages=stages,
        stages_left_out=len(uses) - len(stages),
        fullest=fullest,
        largest=max(range(len(sizes)), key=sizes.__getitem__),
        axis=ChartAxis(name="memory", form="bytes", ticks=round_ticks(levels, form="bytes")),
        curve=_curve(step, shown[fullest], stages[fullest].capacity_bytes),
        fits=prediction.fits,
        changes=changes_that_free_memory(saved, step, file_name=file_name, progress=progress),
        host=tuple(map(_host_use, prediction.host_memory)),
    )


def _stage_use(prediction: Prediction, names: list[str], number: int) -> StageMemoryUse:
    """Memory of one device of a stage: bytes by item, reserved bytes, capacity and share."""
    stage = prediction.stages[number]
    sizes = dict(stage.items)
    capacity = stage.capacity_or(prediction.capacity_bytes)
    return StageMemoryUse(
        name=f"stage {stage.rank}",
        devices=stage.devices,
        layers=stage.layers,
        kind=stage.kind,
        bytes_by_item=tuple(sizes.get(name, 0) for name in names),
        reserved_bytes=stage.reserved,
        capacity_bytes=capacity,
        share=stage.reserved / capacity,
    )


def _host_use(host: HostMemory) -> HostMemoryUse:
    """Host memory in bytes that each of several equal nodes needs, by item, and its capacity."""
    items = [NamedBytes(name=_HOST_ITEMS.get(n, n), size_bytes=size) for n, size in host.items]
    return HostMemoryUse(
        node=host.node,
        nodes=host.nodes,
        kind=host.kind,
        items=tuple(item for item in items if item.size_bytes),
        needed_bytes=host.need,
        capacity_bytes=host.capacity or None,
    )


def _curve(step: SimulatedStep, number: int, capacity: int) -> LineChart:
    """Curve of bytes over a step's seconds, of the first device of a class, with its capacity.

    The first series is what the device keeps: states and activations. The second adds the logits
    and the largest temporary tensors, which any layer may need for a short time; its largest value
    is the reserved memory.
    """
    simulated = step.simulated
    device = simulated.program.classes[number].devices.first
    samples = simulated_trace(simulated, plan="", devices=(device,)).memory
    end_s = float(simulated.timeline.finish.max()) / PICOSECONDS_PER_SECOND
    positions, held = _largest_by_interval(
        np.array([sample.time_s for sample in samples]),
        np.array([sample.held for sample in samples], dtype=np.int64),
        end_s,
    )
    brief = simulated.memory[number].reserved - max(held)
    series = [ChartSeries(name="kept: states and activations", values=tuple(held))]
    if brief:
        series.append(
            ChartSeries(
                name="with logits and temporary tensors", values=tuple(h + brief for h in held)
            )
        )
    levels = [0, max(held) + brief, capacity]
    return LineChart(
        x=ChartAxis(
            name="time in the step",
            form="seconds",
            ticks=round_ticks(positions, form="seconds"),
            values=tuple(positions),
        ),
        y=ChartAxis(name="memory", form="bytes", ticks=round_ticks(levels, form="bytes")),
        series=tuple(series),
        steps=True,
        capacity=capacity,
    )


def _largest_by_interval(
    times_s: np.ndarray, held: np.ndarray, end_s: float
) -> tuple[list[float], list[int]]:
    """Positions from 0 to the end; largest bytes held from each to the next, last the final bytes.

    Equal intervals where there are more samples than positions.
    """
    starts = (
        distinct(times_s)
        if len(times_s) < MOST_POSITIONS
        else np.arange(MOST_POSITIONS - 1) * (end_s / (MOST_POSITIONS - 1))
    )
    interval = np.searchsorted(starts, times_s, side="right") - 1
    largest = np.zeros(len(starts), dtype=np.int64)
    np.maximum.at(largest, interval, held)
    # What was held before an interval is held at its start too, unless it changes just there.
    last = np.searchsorted(times_s, starts, side="right") - 1
    largest = np.maximum(largest, held[last])
    return [*starts.tolist(), end_s], [*largest.tolist(), int(held[-1])]
