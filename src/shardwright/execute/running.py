"""A run on this process's devices, from a file of tokens to a report: what every rank does, and one process alone."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import torch
import torch.distributed as dist

from shardwright.errors import UsageError
from shardwright.execute.checkpoint import latest
from shardwright.execute.data import token_file
from shardwright.execute.optimizer import AdamW
from shardwright.execute.parameters import Source, seeded
from shardwright.execute.precision import precision_of
from shardwright.execute.run_rank import process_group, ranks_of, run_rank
from shardwright.execute.run_report import RunMemory, RunOptions, RunReport, RunStep
from shardwright.execute.train import StepReport, training
from shardwright.program.problem import Problem
from shardwright.strategy.plan import Plan

Watch = Callable[[RunStep], None]


@dataclass(slots=True)
class Stop:
    """Whether this rank was asked to stop; ranks tell each other in the sum of a step's losses, so that all stop after the same one."""

    asked: bool = False

    def __call__(self) -> bool:
        """Asked in every step."""
        return self.asked


def run_plan(
    problem: Problem,
    plan: Plan,
    options: RunOptions,
    *,
    predicted_s: float,
    memory: tuple[RunMemory, ...],
    watch: Watch | None = None,
) -> RunReport:
    """Train under `plan` as this rank (as torchrun's environment says), or alone where the plan has one device.

    Everything that can be checked is checked before the first step.

    Args:
        predicted_s, memory: what was predicted, by class of devices. watch: is told of every step; on rank 0 only.

    Raises:
        StrategyError: the plan breaks a rule or holds what is not executed; run.world, run.peer, run.timeout. DataError: tokens, weights or
            the newest checkpoint cannot be used. UsageError: there is no such device; nothing is left to do.
    """
    on = _device(options.on)
    rule = AdamW(rate=options.rate, decay=options.decay, clip=options.clip)
    precision = precision_of(problem.job, gradient=problem.runtime.gradient_dtype)
    known = training(problem.model, problem.job, plan, rule=rule, precision=precision, on=on, island=problem.cluster.tiers()[0].num_devices)
    tokens = token_file(options.data, model=problem.model, job=problem.job)
    source = first_values(problem, options)
    _check_left(options)
    ranks_of(known, ranks=int(os.environ.get("WORLD_SIZE", "1")))
    with process_group(timeout_s=options.timeout_s, alone=len(known.devices) == 1) as (rank, ranks):
        placed = ranks_of(known, ranks=ranks)
        before, clock = _held(on), time.monotonic()
        steps: list[RunStep] = []

        def done(one: StepReport) -> None:
            nonlocal clock
            now = time.monotonic()
            steps.append(RunStep(step=one.step, loss=one.loss, norm=one.norm, seconds=now - clock))
            clock = now
            if watch is not None and rank == 0:
                watch(steps[-1])

        with _interruptible() as stop:
            saved = run_rank(
                known,
                source=source,
                batches=tokens.batch,
                steps=options.steps,
                checkpoints=options.checkpoints,
                every=options.every,
                timeout_s=options.timeout_s,
                report=done,
                stop=stop,
            )
        held = _all_held(max(_held(on) - before, 0) if on.type == "cpu" else torch.cuda.max_memory_allocated(on), ranks=ranks)
    most = {device: held[rank] for device, rank in placed.items()}
    return RunReport(
        steps=tuple(steps),
        tokens=problem.job.tokens_per_step,
        predicted_s=predicted_s,
        memory=tuple(replace(m, measured=max((most[d] for d in m.devices if d in most), default=0)) for m in memory),
        on=on.type,
        first=steps[0].step - 1 if steps else options.steps,
        stopped=bool(saved) and saved[-1].stopped,
        checkpoint=latest(options.checkpoints) if options.checkpoints is not None else None,
    )


def first_values(problem: Problem, options: RunOptions) -> Source:
    """Parameters that a run begins with."""
    return seeded(problem.model, seed=options.seed)


def _device(text: str) -> torch.device:
    if text.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError("there is no CUDA device here", hint="--on cpu")
    if text not in ("", "cpu") and not text.startswith("cuda"):
        raise UsageError(f"--on {text[:40]!r} is no device that runs plans", hint="cpu or cuda")
    return torch.device(text or ("cuda" if torch.cuda.is_available() else "cpu"))


def _check_left(options: RunOptions) -> None:
    newest = latest(options.checkpoints) if options.checkpoints is not None else None
    if newest is not None and int(newest.name.rpartition("-")[2]) >= options.steps:
        raise UsageError(f"{newest} has all {options.steps} steps", hint="more --steps, or another --checkpoints folder")


def _held(on: torch.device) -> int:
    """Bytes: what this process has had at most."""
    if on.type != "cpu":
        return 0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _all_held(own: int, *, ranks: int) -> list[int]:
    if ranks == 1:
        return [own]
    found = [torch.zeros(1, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(found, torch.tensor([own]))
    return [int(one) for one in found]


@contextmanager
def _interruptible() -> Iterator[Stop]:
    """The first interrupt asks to stop after the step, the second stops at once."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
