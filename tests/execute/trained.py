"""Training of all devices in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.execute.interpreter.device_walk import Batch
from shardwright.execute.interpreter.recorder import Recorder
from shardwright.execute.training.training_loop import Member, StepReport, Training, step_task
from shardwright.execute.transport.communication_record import Trace
from shardwright.execute.transport.in_process import run


def train(
    members: Mapping[int, Member],
    known: Training,
    batches: Iterable[Batch],
    *,
    trace: Trace | None = None,
    recorder: Recorder | None = None,
) -> list[StepReport]:
    """One step for every batch, all devices in this process; `recorder` has the last one then."""
    reports = []
    for batch in batches:
        tasks = {
            d: step_task(own, known, batch=batch, stop=None, recorder=recorder)
            for d, own in members.items()
        }
        found = run(tasks if recorder is None else recorder.watched(tasks), trace=trace)
        reports.append(next(iter(found.values())))
    return reports
