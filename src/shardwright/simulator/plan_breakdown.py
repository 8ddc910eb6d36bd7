"""Where the step of a general plan goes: the parts that `simulator.breakdown` names for grids, of the critical class of devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.cost.block_table import PARTS
from shardwright.cost.member import PART_NAMES
from shardwright.program.instances import Stream, TaskKind
from shardwright.program.plan_program import PlanProgram
from shardwright.simulator.plan_tasks import action_seconds
from shardwright.simulator.plans import PlanResult
from shardwright.units import PICOSECONDS_PER_SECOND

UNEVEN = "uneven"
"""Waiting, inside blocking collectives, for devices of the same stage that have more to do."""

_ROWS = {TaskKind.F: 0, TaskKind.B: 1, TaskKind.I: 1}
"""Which row of `StepCosts.parts` an action counts for: I stands for the whole backward, whose rest is W."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What each task is: its kind, class, lane, chunk, slice; whether it is an action on the compute stream."""

    kind: npt.NDArray[np.int64]
    klass: npt.NDArray[np.int64]
    lane: npt.NDArray[np.int64]
    chunk: npt.NDArray[np.int64]
    slice: npt.NDArray[np.int64]
    action: npt.NDArray[np.bool_]


def _columns(program: PlanProgram) -> _Columns:
    fields = [(int(t.kind), t.klass, t.lane, t.chunk, t.slice) for t in program.templates]
    kind, klass, lane, chunk, part = np.array(fields, dtype=np.int64).reshape(-1, 5)[program.instances.template].T
    action = (program.instances.stream == int(Stream.COMPUTE)) & (kind <= int(TaskKind.R))
    return _Columns(kind, klass, lane, chunk, part, action)


def critical_class(result: PlanResult) -> int:
    """The class of devices whose actions take longest in all; the first of equal ones."""
    return _critical(result, _columns(result.program))


def _critical(result: PlanResult, tasks: _Columns) -> int:
    busy = np.zeros(len(result.program.classes), dtype=np.int64)
    np.add.at(busy, tasks.klass[tasks.action], (result.timeline.finish - result.timeline.start)[tasks.action])
    return int(busy.argmax())


def plan_breakdown(result: PlanResult) -> tuple[tuple[str, float], ...]:
    """Where the step of the critical class goes, (name, seconds); the parts add up to the step.

    Names are those of `simulator.breakdown.breakdown`, in its order, and `UNEVEN` where a stage's devices have unequal work. For a plan
    that equals a grid the parts are the grid's, but for tied tables: a grid sums their gradients in its optimizer step, a plan among its
    reductions.
    """
    program, timeline, costs = result.program, result.timeline, result.costs
    tasks = _columns(program)
    klass = _critical(result, tasks)
    of_class = tasks.klass == klass
    mine = tasks.action & of_class
    parts = dict.fromkeys((*PARTS, *PART_NAMES), 0.0)
    uneven = _priced(result, tasks, mine, klass, parts)
    seconds = int(timeline.finish.max()) / PICOSECONDS_PER_SECOND
    worked = float(timeline.work[mine].sum()) / PICOSECONDS_PER_SECOND
    spent = float((timeline.finish - timeline.start)[mine].sum()) / PICOSECONDS_PER_SECOND
    first = float(timeline.start[mine].min()) / PICOSECONDS_PER_SECOND
    update = of_class & (tasks.kind == int(TaskKind.STEP))
    begun = float(timeline.start[update].max()) / PICOSECONDS_PER_SECOND if update.any() else seconds
    sync = (program.instances.stream == int(Stream.SYNC)) & of_class
    behind = np.maximum(timeline.finish[sync] - np.maximum(timeline.start[sync], timeline.finish[mine].max()), 0)
    gathered = min(first, float(costs.step(*program.classes[klass].families[0]).gather_s[0]))
    exposed = float(behind.sum()) / PICOSECONDS_PER_SECOND + gathered
    parts["slowdown"] = spent - worked
    parts["sharding"] += exposed
    parts["optimizer"] = seconds - begun
    # Never negative but for rounding of the difference.
    parts["bubble"] = max((begun - spent) - exposed, 0.0)
    parts["jitter"] = result.step_time_s - seconds
    parts[UNEVEN] = uneven
    # Rounding to picoseconds leaves a remainder below a nanosecond; it belongs to the largest part.
    largest = max(parts, key=lambda n: parts[n])
    parts[largest] += result.step_time_s - sum(parts.values())
    return tuple((name, float(value)) for name, value in parts.items() if value > 1e-12 or name in ("gemm", "bubble", "optimizer"))


def _priced(result: PlanResult, tasks: _Columns, mine: npt.NDArray[np.bool_], klass: int, parts: dict[str, float]) -> float:
    """Add the priced parts of the class's actions to `parts`; seconds that those actions wait for slower devices of their stage."""
    costs = result.costs
    uneven = 0.0
    for lane, chunk, family in result.program.classes[klass].families:
        here = mine & (tasks.lane == lane) & (tasks.chunk == chunk)
        for kind in (TaskKind.F, TaskKind.B, TaskKind.I, TaskKind.W):
            for part in np.unique(tasks.slice[here & (tasks.kind == int(kind))]):
                chosen = here & (tasks.kind == int(kind)) & (tasks.slice == part)
                runs = len(np.unique(result.program.instances.microbatch[chosen]))
                step = costs.step(lane, chunk, family, int(part))
                uneven += runs * (costs.seconds(lane, chunk, family, int(part), kind) - action_seconds(step, kind))
                if kind in _ROWS:
                    for index, name in enumerate(PART_NAMES):
                        parts[name] += runs * float(step.parts[_ROWS[kind], 0, index])
    return uneven
