"""Seconds of each part of a plan's step, on the critical class of devices."""

from __future__ import annotations

from functools import cache

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.cost.bounds.seconds_to_event_simulation_picoseconds import picoseconds
from shardwright.cost.part_phase_recompute_keys import EP, PARTS
from shardwright.cost.step.overlapped_action_pair_seconds import pair_seconds
from shardwright.cost.step.stage_action_seconds import (
    action_seconds,
    product_seconds,
    routed_seconds,
)
from shardwright.cost.step.strategy_task_seconds import PART_NAMES
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.lowered_program import Program
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.units import PICOSECONDS_PER_SECOND

UNEVEN = "uneven"
"""Waiting, inside blocking collectives, for devices of the same stage with more work."""

_ROWS = {int(TaskKind.F): 0, int(TaskKind.B): 1, int(TaskKind.I): 1}
"""Row of `StepCosts.parts` for each kind of action: I stands for the whole backward, whose rest is
W."""

_ROUTED = PARTS[EP]
"""Parts that another action's kernels may hide."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Kind and class of each task, and True for actions on the compute stream."""

    kind: IntArray
    klass: IntArray
    action: BoolArray


def _columns(program: Program) -> _Columns:
    """Kind, class and action flag of each task of a program."""
    kind, klass = (
        column[program.instances.template]
        for column in (program.templates.kind, program.templates.klass)
    )
    return _Columns(kind, klass, kind <= int(TaskKind.R))


def critical_class(simulated: SimulatedPlan) -> int:
    """Number of the device class whose actions take longest in total; the first if equal."""
    return _critical_of(simulated, _columns(simulated.program))


def _critical_of(simulated: SimulatedPlan, tasks: _Columns) -> int:
    """Number of the device class whose actions take the most picoseconds in total."""
    busy_time = np.zeros(len(simulated.program.classes), dtype=np.int64)
    np.add.at(
        busy_time,
        tasks.klass[tasks.action],
        (simulated.timeline.finish - simulated.timeline.start)[tasks.action],
    )
    return int(busy_time.argmax())


def breakdown(simulated: SimulatedPlan) -> tuple[tuple[str, float], ...]:
    """(name, seconds) of each part of the step on the critical class; the parts add up to the step.

    The critical class is the device class whose actions take longest. Parts: kernels by family,
    exposed communication by axis, recompute, slowdown by shared links and multiprocessors, waiting
    for the pipeline (bubble), gathers and reductions that nothing hides, the update, jitter, and
    `UNEVEN` if a stage's devices have unequal work.
    """
    program, timeline, costs = simulated.program, simulated.timeline, simulated.costs
    tasks = _columns(program)
    klass = _critical_of(simulated, tasks)
    of_class = tasks.klass == klass
    own_actions = tasks.action & of_class
    parts = dict.fromkeys((*PARTS, *PART_NAMES), 0.0)
    uneven = _add_priced_parts(simulated, klass, parts)
    # In picoseconds, whose differences are exact.
    ends = int(timeline.finish.max())
    spent_in_actions = int((timeline.finish - timeline.start)[own_actions].sum())
    first_action = int(timeline.start[own_actions].min())
    update = of_class & (tasks.kind == int(TaskKind.STEP))
    update_start = int(timeline.start[update].max()) if update.any() else ends
    sync = (program.instances.stream == int(Stream.SYNC)) & of_class
    sync_behind_actions = np.maximum(
        timeline.finish[sync]
        - np.maximum(timeline.start[sync], timeline.finish[own_actions].max()),
        0,
    )
    gather_first = min(
        first_action, int(picoseconds(costs.step(*program.classes[klass].families[0]).gather_s)[0])
    )
    exposed = int(sync_behind_actions.sum()) + gather_first
    parts["slowdown"] = (
        spent_in_actions - int(timeline.work[own_actions].sum())
    ) / PICOSECONDS_PER_SECOND
    parts["sharding"] += exposed / PICOSECONDS_PER_SECOND
    parts["optimizer"] = (ends - update_start) / PICOSECONDS_PER_SECOND
    parts["bubble"] = max(update_start - spent_in_actions - exposed, 0) / PICOSECONDS_PER_SECOND
    parts["jitter"] = simulated.step_time_s - ends / PICOSECONDS_PER_SECOND
    parts[UNEVEN] = uneven
    # Rounding to picoseconds leaves less than a nanosecond; the largest part absorbs it.
    largest = max(parts, key=lambda n: parts[n])
    parts[largest] += simulated.step_time_s - sum(parts.values())
    return tuple(
        (name, float(value))
        for name, value in parts.items()
        if value > 1e-12 or name in ("gemm", "bubble", "optimizer")
    )


def _add_priced_parts(simulated: SimulatedPlan, klass: int, parts: dict[str, float]) -> float:
    """Add seconds of a class's actions by part to `parts`; return seconds waiting in stages.

    Stage waits are the seconds that the actions wait for slower devices of their stage. Of an
    overlapped pair the kernels count in full, and expert all-to-all only as far as it outlasts
    them.
    """
    costs, templates = simulated.costs, simulated.program.templates
    family_of = {
        (lane, chunk): family for lane, chunk, family in simulated.program.classes[klass].families
    }
    runs = np.bincount(simulated.program.instances.template, minlength=len(templates))
    uneven = 0.0

    @cache
    def action(
        lane: int, chunk: int, kind: int, part: int, early: bool
    ) -> tuple[float, float, float, float]:
        """(total, expert all-to-all, GEMM and attention, stage wait) seconds of an action."""
        place = lane, chunk, family_of[lane, chunk]
        seconds = costs.seconds(*place, part, TaskKind(kind), early=early)
        step = costs.step(*place, part)
        waiting = seconds - action_seconds(step, TaskKind(kind), early=early)
        routed, products = (
            min(spent(step, TaskKind(kind)), seconds) for spent in (routed_seconds, product_seconds)
        )
        return seconds, routed, products, waiting

    @cache
    def priced(lane: int, chunk: int, part: int) -> list[list[float]]:
        """Seconds by part name of a chunk's passes: [forward, backward], slice `part`."""
        rows: list[list[float]] = (
            costs.step(lane, chunk, family_of[lane, chunk], part).parts[:, 0].tolist()
        )
        return rows

    actions = np.flatnonzero(
        (templates.klass == klass) & (templates.kind <= int(TaskKind.R)) & (templates.piece == 0)
    )
    own_columns = (
        templates.lane,
        templates.chunk,
        templates.kind,
        templates.slice,
        templates.early,
    )
    other_columns = (
        templates.partner_lane,
        templates.partner_chunk,
        templates.partner_kind,
        templates.partner_slice,
    )
    columns = [column[actions].tolist() for column in (runs, *own_columns, *other_columns)]
    for count, lane, chunk, kind, part, early, *partner in zip(*columns, strict=True):
        own_action = action(lane, chunk, kind, part, bool(early))
        exposed_share = 1.0
        if partner[2] >= 0:
            partner_action = action(*partner, bool(early))
            tokens_moving = own_action[1] + partner_action[1]
            kernels = own_action[0] + partner_action[0] - tokens_moving
            exposed_share = (
                (float(pair_seconds(own_action[:3], partner_action[:3], costs.taken)) - kernels)
                / tokens_moving
                if tokens_moving > 0.0
                else 1.0
            )
        uneven += count * own_action[3]
        if kind in _ROWS:
            for name, seconds in zip(
                PART_NAMES, priced(lane, chunk, part)[_ROWS[kind]], strict=True
            ):
                parts[name] += count * (exposed_share if name == _ROUTED else 1.0) * seconds
    return uneven
