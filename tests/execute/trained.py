"""Training of all devices in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.interpreter.step_recorder import Recorder
from shardwright.execute.training.device_training_state import DeviceState, PreparedTraining
from shardwright.execute.training.training_loop import StepReport, step_task
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process_transport import run_in_process


def train(
    members: Mapping[int, DeviceState],
    known: PreparedTraining,
    batches: Iterable[Batch],
    *,
    trace: CommunicationRecord | None = None,
    recorder: Recorder | None = None,
) -> list[StepReport]:
    """One step for every batch, all devices in this process; `recorder` has the last one then."""
    reports = []
    for batch in batches:
        tasks = {
            d: step_task(own, known, batch=batch, stop=None, recorder=recorder)
            for d, own in members.items()
        }
        found = run_in_process(
            tasks if recorder is None else recorder.record_tasks(tasks), trace=trace
        )
        reports.append(next(iter(found.values())))
    return reports
