"""One rank of a run on PyTorch's own engine: what `run_rank` is for the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from shardwright.execute.checkpoints.kept_checkpoints import is_due
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.interpreter.recorder import Recorder
from shardwright.execute.launch.run_rank import Evaluation, require_finite
from shardwright.execute.native.checkpoint import newest_checkpoint_of
from shardwright.execute.native.engine import NativeEngine
from shardwright.execute.native.evaluation import evaluate
from shardwright.execute.native.train_grid import train_native
from shardwright.execute.training.training_loop import Batches, StepReport, Training
from shardwright.job.training_job import TrainingJob
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.order import Table


def run_native_rank(
    known: Training,
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
    evaluation: Evaluation | None = None,
) -> None:
    """Train this rank's part of a grid until step `steps`, from the newest checkpoint if there is
    one. All ranks call it.

    Args:
        known: of the grid's plan.
        form: the grid, and the table of its order, if it has no named one. The rest: see
            `run_rank`.

    Raises:
        StrategyError: run.world, native.*. DataError: the newest checkpoint is not usable; a loss
        is no number.
    """
    saving = (
        newest_checkpoint_of(known, checkpoints, steps=steps, every=every, keep=keep)
        if checkpoints is not None
        else None
    )
    grid, order = form

    def after(engine: NativeEngine, one: StepReport) -> None:
        if evaluation is not None and is_due(
            one.step, steps=steps, every=evaluation.every, stopped=one.stopped
        ):
            evaluation.report(
                one.step, evaluate(engine, map(evaluation.batches, range(evaluation.count)))
            )
        if saving is not None:
            saving.save_if_due(engine, one)

    for one in train_native(
        known.work.model,
        job,
        grid,
        source=source if saving is None else saving.source(source),
        batches=batches,
        steps=steps,
        rule=known.rule,
        settings=known.settings,
        dtype=known.precision.master or known.precision.parameter,
        compute=known.precision.compute,
        order=order,
        device=torch.device(known.on).type,
        timeout_s=timeout_s,
        stop=stop,
        begun=saving.restore_optimizer if saving is not None else None,
        after=after,
        recorder=recorder,
    ):
        report(one)
        require_finite(one)
