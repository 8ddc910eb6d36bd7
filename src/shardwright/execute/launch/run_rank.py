"""One rank of a run: what ``torchrun`` (or a spawned process) executes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path

from shardwright.errors import DataError, StrategyError
from shardwright.execute.checkpoints.kept_checkpoints import is_due, keep_last
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.interpreter.recorder import Recorder
from shardwright.execute.training.evaluation import evaluate_rank
from shardwright.execute.training.process_group import process_group
from shardwright.execute.training.training_loop import (
    Batches,
    StepReport,
    Training,
    device_state,
    train_rank,
)
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Data that are evaluated while a run trains.

    Args:
        batches: by number, the first `count` of which are taken each time.
        every: steps between; the last step is evaluated, too.
        report: is told the step and the mean loss behind its update.
    """

    batches: Batches
    count: int
    every: int
    report: Callable[[int, float], None]


def ranks_of(known: Training, *, ranks: int) -> Mapping[int, int]:
    """The rank of every device: one rank a device, in order.

    Raises:
        StrategyError: run.world if the numbers differ.
    """
    if ranks != len(known.devices):
        raise StrategyError(
            f"the plan has {len(known.devices)} devices, {ranks} ranks run",
            hint=f"start {len(known.devices)} ranks",
            rule="run.world",
        )
    return {device: rank for rank, device in enumerate(known.devices)}


def require_finite(one: StepReport) -> None:
    """Raise where a step's loss is no number, before anything of the step is saved.

    Raises:
        DataError: it is none.
    """
    if not isfinite(one.loss):
        raise DataError(
            f"the loss of step {one.step} is {one.loss}: nothing of it is saved",
            hint="a smaller --rate, a --clip, or other data; the checkpoint before is whole",
        )


def run_rank(
    known: Training,
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
    evaluation: Evaluation | None = None,
) -> list[StepReport]:
    """Train this rank's device until step `steps`, from the newest checkpoint if there is one. All
    ranks call it.

    Args:
        source: first values of parameters.
        checkpoints: folder of this run, seen by all ranks.
        every: steps between checkpoints; 0 = one at the end.
        keep: newest checkpoints that are kept; 0 = all.
        backend: see `DistributedTransport`.
        report: is told of every step.
        stop: asked in every step; once it is true on a rank, all stop after that step, and save.
        recorder: has the last step.
        evaluation: of batches that are not learnt.

    Raises:
        StrategyError: run.world; errors of `DistributedTransport`. DataError: the newest checkpoint
            is not usable; a loss is no number.
    """
    with process_group(timeout_s=timeout_s, alone=len(known.devices) == 1) as (rank, ranks):
        placed = ranks_of(known, ranks=ranks)
        own = tuple(d for d, r in placed.items() if r == rank)
        if checkpoints is None:
            members = {d: device_state(d, known, source=source) for d in own}
        else:
            # PyTorch's checkpoints take a second to load, on every rank.
            from shardwright.execute.checkpoints.checkpoint_ranks import resume_or_begin, save_rank

            members = resume_or_begin(
                own, known, checkpoints, source=source, rank=rank, ranks=ranks
            )
        done = next(iter(members.values())).steps
        reports = []
        with DistributedTransport(
            placed, timeout_s=timeout_s, on=known.on, backend=backend
        ) as network:
            for one in train_rank(
                network,
                members,
                known,
                (batches(step) for step in range(done, steps)),
                stop=stop,
                recorder=recorder,
            ):
                reports.append(one)
                if report is not None:
                    report(one)
                require_finite(one)
                if evaluation is not None and is_due(
                    one.step, steps=steps, every=evaluation.every, stopped=one.stopped
                ):
                    evaluation.report(
                        one.step,
                        evaluate_rank(
                            network,
                            members,
                            known,
                            map(evaluation.batches, range(evaluation.count)),
                        ),
                    )
                if checkpoints is not None and is_due(
                    one.step, steps=steps, every=every, stopped=one.stopped
                ):
                    save_rank(members, known, checkpoints, rank=rank)
                    if rank == 0:
                        keep_last(checkpoints, keep)
                if one.stopped:
                    break
    return reports
