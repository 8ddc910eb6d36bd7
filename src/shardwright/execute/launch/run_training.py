"""A run on this process's devices, from a file of tokens to a report: what every rank does, and one
process alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError, UsageError
from shardwright.execute.checkpoints.checkpoint_folders import newest_checkpoint
from shardwright.execute.checkpoints.folder_lock import locked_folder
from shardwright.execute.checkpoints.initial_values import InitialValues
from shardwright.execute.device_state.device_parameters import Source
from shardwright.execute.interpreter.recorder import Recorder, gather_trace
from shardwright.execute.launch.accelerator import backend_of, own_device
from shardwright.execute.launch.end_with_launcher import end_signals
from shardwright.execute.launch.peak_memory import watch_memory
from shardwright.execute.launch.run_checks import run_settings
from shardwright.execute.launch.run_rank import Evaluation, ranks_of, run_rank
from shardwright.execute.launch.run_report import (
    NATIVE,
    OWN,
    RunEvaluation,
    RunMemory,
    RunOptions,
    RunReport,
    RunStep,
)
from shardwright.execute.launch.start_ranks import FOLDER
from shardwright.execute.native.supported_grids import (
    differences_from_plan,
    require_expressible_grid,
)
from shardwright.execute.numerics.base.run_precision import (
    Precision,
    precision_of,
    uniform_precision,
)
from shardwright.execute.training.optimizer import AdamW
from shardwright.execute.training.process_group import process_group
from shardwright.execute.training.token_batches import open_tokens
from shardwright.execute.training.training_loop import StepReport, training_of_run
from shardwright.execute.weights.read_weights import HuggingFaceWeights, open_weights
from shardwright.hardware.device_topology import units_of
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.orders.action_rows import action_rows
from shardwright.program.problem import Problem
from shardwright.schedules.action_table import KINDS
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.pytorch_form import grid_form
from shardwright.strategy.plan.order import Table
from shardwright.strategy.plan.plan import Plan

Watch = Callable[[RunStep | RunEvaluation], None]


@dataclass(slots=True)
class Stop:
    """A rank's request to stop, which ranks share in the sum of a step's losses, so that all stop
    after the same step.
    """

    asked: bool = False

    def __call__(self) -> bool:
        """Asked in every step."""
        return self.asked


@dataclass(slots=True)
class _Log:
    """Steps as they end, with their seconds."""

    watch: Watch | None
    steps: list[RunStep] = field(default_factory=list)
    evaluations: list[RunEvaluation] = field(default_factory=list)
    stopped: bool = False
    clock: float = field(default_factory=time.monotonic)

    def add(self, one: StepReport) -> None:
        """A step has ended."""
        now = time.monotonic()
        self.steps.append(
            RunStep(step=one.step, loss=one.loss, norm=one.norm, seconds=now - self.clock)
        )
        self.clock, self.stopped = now, one.stopped
        if self.watch is not None:
            self.watch(self.steps[-1])

    def evaluated(self, step: int, loss: float) -> None:
        """Data that are not learnt were evaluated, which is no part of a step's time."""
        now = time.monotonic()
        self.evaluations.append(RunEvaluation(step=step, loss=loss, seconds=now - self.clock))
        self.clock = now
        if self.watch is not None:
            self.watch(self.evaluations[-1])


def run_plan(
    problem: Problem,
    plan: Plan,
    options: RunOptions,
    *,
    name: str,
    predicted_s: float,
    memory: tuple[RunMemory, ...],
    watch: Watch | None = None,
    begun: Callable[[], None] | None = None,
) -> RunReport:
    """Train under `plan` as this rank (as torchrun's environment says), or alone where the plan has
    one device.

    Everything that can be checked is checked before the first step.

    Args:
        name: of the plan.
        predicted_s, memory: what was predicted, by class of devices.
        watch: is told of every step and evaluation; on rank 0 only.
        begun: is called when the folder of checkpoints is this run's, before its first step.

    Raises:
        StrategyError: the plan breaks a rule or holds what is not executed; run.world, run.peer,
            run.timeout. DataError: tokens, weights or the newest checkpoint cannot be used; a loss
            is no number. UsageError: there is no such device; nothing is left to do; another run
            writes to the folder of checkpoints. OutputError: it cannot be written to.
    """
    on = own_device(options.on, os.environ)
    backend = backend_of(options.transport, on, os.environ)
    model, job = problem.model, problem.job
    rule = update_rule(options)
    precision, settings, source = (
        _precision(problem, options),
        run_settings(problem, options),
        first_values(problem, options),
    )
    known = training_of_run(
        model,
        job,
        plan,
        rule=rule,
        settings=settings,
        precision=precision,
        on=on,
        islands=units_of(problem.cluster)[0],
        bias_rate=options.router_bias_update,
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    ranks_of(known, ranks=world)
    share = (int(os.environ.get("RANK", "0")), world)
    tokens = open_tokens(
        dict(options.data),
        model=model,
        job=job,
        seed=options.seed if options.shuffle else None,
        share=share,
    )
    unlearnt = _evaluation_data(problem, options, share)
    native = (
        _native(problem, plan, options, settings=settings, on=on, backend=backend)
        if options.backend == NATIVE
        else None
    )
    group = process_group(
        timeout_s=options.timeout_s,
        accelerated=bool(on.type == "cuda" and backend),
        alone=len(known.devices) == 1,
        meets=native is not None,
    )
    with _lock_checkpoints(options.checkpoints), group as (rank, ranks):
        placed = ranks_of(known, ranks=ranks)
        if begun is not None:
            begun()
        log = _Log(watch=watch if rank == 0 else None)
        evaluation = unlearnt and replace(unlearnt, report=log.evaluated)
        with _interruptible() as stop, watch_memory(on) as holding:
            if native is not None:
                # PyTorch's engine takes a second to load, on every rank.
                from shardwright.execute.launch.native_rank import run_native_rank
                from shardwright.execute.native.step_events import native_recorder

                recorder = native_recorder(on) if options.trace else None
                run_native_rank(
                    known,
                    job,
                    native,
                    source=source,
                    batches=tokens.batch,
                    steps=options.steps,
                    checkpoints=options.checkpoints,
                    every=options.every,
                    keep=options.keep,
                    timeout_s=options.timeout_s,
                    report=log.add,
                    stop=stop,
                    recorder=recorder,
                    evaluation=evaluation,
                )
            else:
                recorder = _recorder(on) if options.trace else None
                run_rank(
                    known,
                    source=source,
                    batches=tokens.batch,
                    steps=options.steps,
                    checkpoints=options.checkpoints,
                    every=options.every,
                    keep=options.keep,
                    timeout_s=options.timeout_s,
                    backend=backend,
                    report=log.add,
                    stop=stop,
                    recorder=recorder,
                    evaluation=evaluation,
                )
        trace = (
            gather_trace(recorder.trace(plan=name)) if recorder is not None and log.steps else None
        )
        held_by = _peaks_of_ranks((holding.most, holding.grown), ranks=ranks)
    steps = log.steps
    held_on = {device: held_by[rank] for device, rank in placed.items()}
    return RunReport(
        steps=tuple(steps),
        tokens=problem.job.tokens_per_step,
        predicted_s=predicted_s,
        memory=tuple(_largest(m, [held_on[d] for d in m.devices if d in held_on]) for m in memory),
        on=on.type,
        first=steps[0].step - 1 if steps else options.steps,
        stopped=log.stopped,
        checkpoint=newest_checkpoint(options.checkpoints)
        if options.checkpoints is not None
        else None,
        trace=trace,
        evaluations=tuple(log.evaluations),
        remarks=(
            *(differences_from_plan(native[0]) if native is not None else ()),
            *_class_differences(problem.model),
            *_unapplied(settings),
            *_left_out(source),
        ),
    )


def update_rule(options: RunOptions) -> AdamW:
    """The optimizer that a run is asked for."""
    return AdamW(
        rate=options.rate,
        betas=options.betas,
        eps=options.eps,
        decay=options.decay,
        clip=options.clip,
        curve=options.rates,
        spared=options.no_decay,
    )


def first_values(problem: Problem, options: RunOptions) -> Source:
    """Parameters that a run begins with: those of a folder, or drawn from the seed.

    Raises:
        DataError: the folder's are of another model, or lack.
    """
    if options.weights is None:
        return InitialValues(model=problem.model, seed=options.seed, dtype=torch.float32)
    return open_weights(
        options.weights, model=problem.model, dtype=torch.float32, seed=options.seed
    )


def _evaluation_data(
    problem: Problem, options: RunOptions, share: tuple[int, int]
) -> Evaluation | None:
    """The evaluation of a run; None without data for it."""
    if not options.eval_data:
        return None
    tokens = open_tokens(dict(options.eval_data), model=problem.model, job=problem.job, share=share)
    whole = tokens.windows // tokens.samples
    return Evaluation(
        batches=tokens.batch,
        count=min(options.eval_batches or whole, whole),
        every=options.eval_every or options.steps,
        report=lambda step, loss: None,
    )


def _class_differences(model: Model) -> tuple[str, ...]:
    """Differences between the model and the published class of its configuration; weights of that
    class were refused for them.
    """
    return (
        (f"{model.architecture} is computed but for: {'; '.join(model.differs)}",)
        if model.differs
        else ()
    )


def _unapplied(settings: Settings) -> tuple[str, ...]:
    """Dropout of the published class, and losses of routers that it does not add, which are not
    applied.
    """
    kinds = (
        ("trained without dropout (config.json: {})", settings.dropout),
        (
            (
                "trained without a loss of routers that Transformers does not add either"
                " (config.json: {})"
            ),
            settings.other_losses,
        ),
    )
    named = (
        (text, ", ".join(f"{name} {value:g}" for name, value in found)) for text, found in kinds
    )
    return tuple(text.format(values) for text, values in named if values)


def _left_out(source: Source) -> tuple[str, ...]:
    """Tensors of a folder of weights that the model lacks."""
    return source.remarks if isinstance(source, HuggingFaceWeights) else ()


def _precision(problem: Problem, options: RunOptions) -> Precision:
    if options.formats == "job":
        return precision_of(problem.job, gradient=problem.runtime.gradient_dtype)
    return uniform_precision(torch.float32 if options.formats == "fp32" else torch.float64)


def _recorder(on: torch.device) -> Recorder:
    if on.type != "cuda":
        return Recorder()
    return Recorder(settle=torch.cuda.synchronize, held=torch.cuda.memory_allocated)


def _native(
    problem: Problem,
    plan: Plan,
    options: RunOptions,
    *,
    settings: Settings,
    on: torch.device,
    backend: str,
) -> tuple[Grid, Table | None]:
    """The grid that PyTorch's own engine runs, and the table of its order, if it has no named one.

    Raises:
        StrategyError: native.grid if no grid says the plan; others of `native.rules`. UsageError: a
            trace would have other actions than the plan; ranks share a GPU.
    """
    found = grid_form(plan, model=problem.model)
    if found is None:
        raise StrategyError(
            "no grid says this plan, and PyTorch's engine runs grids",
            hint=f"--backend {OWN} runs any plan",
            rule="native.grid",
        )
    if (
        options.trace
        and found[0].pp == 1
        and any(KINDS[kind] in "IW" for kind in action_rows(plan).kind)
    ):
        # Its trace would not have the plan's actions.
        raise UsageError(
            f"--backend {NATIVE} runs whole backwards without pp, {found[0].schedule} has them in"
            " halves",
            hint=f"schedule=1f1b, or --backend {OWN}",
        )
    if on.type == "cuda" and not backend:
        raise UsageError(
            f"--backend {NATIVE} needs a GPU for each rank",
            hint="--on cpu, or fewer ranks on this host",
        )
    require_expressible_grid(replace(problem.model, settings=settings), found[0], job=problem.job)
    return found


def _lock_checkpoints(checkpoints: Path | None) -> AbstractContextManager[None]:
    """The folder of checkpoints is this run's: on its first rank, unless the process that started
    the ranks has it.
    """
    first = os.environ.get("RANK", "0") == "0" and FOLDER not in os.environ
    return locked_folder(checkpoints) if checkpoints is not None and first else nullcontext()


def _peaks_of_ranks(own: tuple[int, int], *, ranks: int) -> list[tuple[int, int]]:
    """(held at most, grown) of every rank."""
    if ranks == 1:
        return [own]
    found = [torch.zeros(2, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(found, torch.tensor(own))
    return [(int(most), int(grown)) for most, grown in found]


def _largest(memory: RunMemory, found: list[tuple[int, int]]) -> RunMemory:
    return replace(
        memory,
        measured=max((most for most, _ in found), default=0),
        grown=max((grown for _, grown in found), default=0),
    )


@contextmanager
def _interruptible() -> Iterator[Stop]:
    """The first interrupt asks to stop after the step, the second stops at once."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in end_signals()}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
