"""One rank of a run on PyTorch's own engine; `run_rank` is for the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from shardwright.execute.checkpoints.steps_to_checkpoint_and_checkpoints_to_remove import is_due
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.interpreter.step_recorder import Recorder
from shardwright.execute.launch.train_rank_by_interpreter import PeriodicEvaluation, require_finite
from shardwright.execute.native.checkpoints_in_interpreter_format import newest_checkpoint_of
from shardwright.execute.native.evaluation import evaluate
from shardwright.execute.native.rank_stages_optimizer_and_pipeline import NativeEngine
from shardwright.execute.native.train_grid import train_native
from shardwright.execute.training.device_training_state import PreparedTraining
from shardwright.execute.training.training_loop import Batches, StepReport
from shardwright.job.training_job import TrainingJob
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import Table


def run_native_rank(
    training: PreparedTraining,
    job: TrainingJob,
    form: tuple[Grid, Table | None],
    *,
    source: Source,
    batches: Batches,
    steps: int,
    checkpoints: Path | None = None,
    every: int = 0,
    keep: int = 0,
    timeout_s: float = 300.0,
    report: Callable[[StepReport], None],
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
    evaluation: PeriodicEvaluation | None = None,
) -> None:
    """Train this rank's part of a grid up to step `steps`, resuming from the newest checkpoint.

    All ranks call it.

    Args:
        training: the prepared training of the grid's plan.
        form: the grid, and the table of its order, if it has no named one. The rest: see
            `run_rank`.

    Raises:
        StrategyError: run.world, native.*. DataError: the newest checkpoint is not usable; a loss
        is no number.
    """
    saving = (
        newest_checkpoint_of(training, checkpoints, steps=steps, every=every, keep=keep)
        if checkpoints is not None
        else None
    )
    grid, order = form

    def after(engine: NativeEngine, step_report: StepReport) -> None:
        """After a step: evaluate if due, then save a checkpoint if due."""
        if evaluation is not None and is_due(
            step_report.step, steps=steps, every=evaluation.every, stopped=step_report.stopped
        ):
            evaluation.report(
                step_report.step, evaluate(engine, map(evaluation.batches, range(evaluation.count)))
            )
        if saving is not None:
            saving.save_if_due(engine, step_report)

    for step_report in train_native(
        training.work.model,
        job,
        grid,
        source=source if saving is None else saving.source(source),
        batches=batches,
        steps=steps,
        rule=training.rule,
        settings=training.settings,
        dtype=training.precision.master or training.precision.parameter,
        compute=training.precision.compute,
        order=order,
        device=torch.device(training.on).type,
        timeout_s=timeout_s,
        stop=stop,
        begun=saving.restore_optimizer if saving is not None else None,
        after=after,
        recorder=recorder,
    ):
        report(step_report)
        require_finite(step_report)
