"""One rank of a run: the work of a ``torchrun`` or spawned process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path

from shardwright.errors import DataError, StrategyError
from shardwright.execute.checkpoints.steps_to_checkpoint_and_checkpoints_to_remove import (
    is_due,
    keep_last,
)
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.interpreter.step_recorder import Recorder
from shardwright.execute.training.device_training_state import PreparedTraining, create_device_state
from shardwright.execute.training.evaluation import evaluate_rank
from shardwright.execute.training.training_loop import Batches, StepReport, train_rank
from shardwright.execute.training.world_process_group import process_group
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicEvaluation:
    """Evaluation of a run during training: its batches, interval and report.

    Args:
        batches: evaluation batches by number, of which the first `count` are used each time.
        every: steps between evaluations; there is one after the last step, too.
        report: called with the step and the mean loss after its update.
    """

    batches: Batches
    count: int
    every: int
    report: Callable[[int, float], None]


def rank_by_device(training: PreparedTraining, *, ranks: int) -> Mapping[int, int]:
    """The rank of every device: one device on each rank, in order; raise if the numbers differ.

    Raises:
        StrategyError: run.world if the numbers differ.
    """
    if ranks != len(training.devices):
        raise StrategyError(
            f"the plan has {len(training.devices)} devices, {ranks} ranks run",
            hint=f"start {len(training.devices)} ranks",
            rule="run.world",
        )
    return {device: rank for rank, device in enumerate(training.devices)}


def require_finite(report: StepReport) -> None:
    """Raise if a step's loss is not finite, before the step is saved.

    Raises:
        DataError: the loss is infinite or not a number.
    """
    if not isfinite(report.loss):
        raise DataError(
            f"the loss of step {report.step} is {report.loss}: nothing of it is saved",
            hint="a smaller --rate, a --clip, or other data; the checkpoint before is whole",
        )


def run_rank(
    training: PreparedTraining,
    *,
    source: Source,
    batches: Batches,
    steps: int,
    checkpoints: Path | None = None,
    every: int = 0,
    keep: int = 0,
    timeout_s: float = 300.0,
    backend: str = "",
    report: Callable[[StepReport], None] | None = None,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
    evaluation: PeriodicEvaluation | None = None,
) -> list[StepReport]:
    """Train this rank's device up to step `steps`, resuming from the newest checkpoint.

    All ranks call it.

    Args:
        source: initial values of parameters.
        checkpoints: folder of this run's checkpoints, visible to all ranks.
        every: steps between checkpoints; 0 = one at the end.
        keep: number of newest checkpoints that are kept; 0 = all.
        backend: see `DistributedTransport`.
        report: called with the report of every step.
        stop: called in every step; once true on a rank, all ranks stop after that step and save.
        recorder: records every step, and keeps the last one.
        evaluation: evaluation on batches that are not trained on.

    Raises:
        StrategyError: run.world; errors of `DistributedTransport`. DataError: the newest checkpoint
            is not usable; a loss is no number.
    """
    with process_group(timeout_s=timeout_s, alone=len(training.devices) == 1) as (rank, ranks):
        ranks_by_device = rank_by_device(training, ranks=ranks)
        local_devices = tuple(d for d, r in ranks_by_device.items() if r == rank)
        if checkpoints is None:
            states = {d: create_device_state(d, training, source=source) for d in local_devices}
        else:
            # PyTorch's checkpoints take a second to load, on every rank.
            from shardwright.execute.checkpoints.save_and_resume_across_ranks import (
                resume_or_begin,
                save_rank,
            )

            states = resume_or_begin(
                local_devices, training, checkpoints, source=source, rank=rank, ranks=ranks
            )
        done = next(iter(states.values())).steps
        reports = []
        with DistributedTransport(
            ranks_by_device, timeout_s=timeout_s, on=training.on, backend=backend
        ) as transport:
            for step_report in train_rank(
                transport,
                states,
                training,
                (batches(step) for step in range(done, steps)),
                stop=stop,
                recorder=recorder,
            ):
                reports.append(step_report)
                if report is not None:
                    report(step_report)
                require_finite(step_report)
                if evaluation is not None and is_due(
                    step_report.step,
                    steps=steps,
                    every=evaluation.every,
                    stopped=step_report.stopped,
                ):
                    evaluation.report(
                        step_report.step,
                        evaluate_rank(
                            transport,
                            states,
                            training,
                            map(evaluation.batches, range(evaluation.count)),
                        ),
                    )
                if checkpoints is not None and is_due(
                    step_report.step, steps=steps, every=every, stopped=step_report.stopped
                ):
                    save_rank(states, training, checkpoints, rank=rank)
                    if rank == 0:
                        keep_last(checkpoints, keep)
                if step_report.stopped:
                    break
    return reports
