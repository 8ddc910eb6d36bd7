"""A simulated strategy, and where its step goes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shardwright.cost.block_table import PARTS
from shardwright.cost.member import PART_NAMES, StepCosts
from shardwright.program.instances import TaskKind
from shardwright.program.program import Program
from shardwright.simulator.run import Timeline
from shardwright.strategy.grid import Grid
from shardwright.units import PICOSECONDS_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A simulated strategy: its costs, Program and timeline, and the step's seconds with jitter."""

    grid: Grid
    costs: StepCosts
    program: Program
    timeline: Timeline
    step_time_s: float


def breakdown(done: Simulated) -> tuple[tuple[str, float], ...]:
    """Where the step of the critical rank goes; the parts add up to the step.

    The critical rank is the one that computes longest. Parts: kernels by family, exposed communication by axis, recompute, slowdown by
    shared links and multiprocessors, waiting for the pipeline (bubble), gathers and reductions that nothing hides, the update, jitter.
    """
    program, timeline, costs = done.program, done.timeline, done.costs
    compute = program.instances.stream == 0
    kinds = program.columns.kind[program.instances.template]
    actions = compute & (kinds <= int(TaskKind.R))
    busy = np.zeros(len(program.classes), dtype=np.int64)
    np.add.at(busy, program.instances.klass[actions], (timeline.finish - timeline.start)[actions])
    klass = int(busy.argmax())
    mine = actions & (program.instances.klass == klass)
    parts = dict.fromkeys(PART_NAMES, 0.0)
    chunks = program.columns.chunk[program.instances.template]
    for kind, row in ((TaskKind.F, 0), (TaskKind.B, 1)):
        for c in np.unique(chunks[mine & (kinds == int(kind))]):
            runs = len(np.unique(program.instances.microbatch[mine & (kinds == int(kind)) & (chunks == c)]))
            for index, name in enumerate(PART_NAMES):
                parts[name] += runs * costs.parts[row, c, index]
    worked = float(timeline.work[mine].sum()) / PICOSECONDS_PER_SECOND
    spent = float((timeline.finish - timeline.start)[mine].sum()) / PICOSECONDS_PER_SECOND
    first = float(timeline.start[mine].min()) / PICOSECONDS_PER_SECOND
    last = float(timeline.finish[mine].max()) / PICOSECONDS_PER_SECOND
    step_task = compute & (kinds == int(TaskKind.STEP)) & (program.instances.klass == klass)
    begun = float(timeline.start[step_task].max()) / PICOSECONDS_PER_SECOND
    own_sync = (program.instances.stream == 3) & (program.instances.klass == klass)
    reduced = float(timeline.finish[own_sync].max()) / PICOSECONDS_PER_SECOND if own_sync.any() else last
    gathered = min(first, float(costs.gather_s[int(program.classes.stage[klass])]))
    exposed = max(reduced - last, 0.0) + gathered
    update = timeline.seconds - begun
    parts["slowdown"] = spent - worked
    parts["sharding"] += exposed
    parts["optimizer"] = update
    # Never negative but for rounding of the difference.
    parts["bubble"] = max((begun - spent) - exposed, 0.0)
    parts["jitter"] = done.step_time_s - timeline.seconds
    named = {**dict.fromkeys(PARTS, 0.0), **parts}
    # Rounding to picoseconds leaves a remainder below a nanosecond; it belongs to the largest part.
    largest = max(named, key=lambda n: named[n])
    named[largest] += done.step_time_s - sum(named.values())
    return tuple((name, float(value)) for name, value in named.items() if value > 1e-12 or name in ("gemm", "bubble", "optimizer"))
