"""Training run of this process, on one or more ranks: locks, steps, evaluations and the report."""

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

from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint
from shardwright.execute.checkpoints.folder_lock import locked_folder
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.interpreter.step_recorder import Recorder, gather_trace
from shardwright.execute.launch.check_options_before_start import run_settings
from shardwright.execute.launch.end_with_launcher import end_signals
from shardwright.execute.launch.options_to_training_inputs import (
    adamw_of_options,
    evaluation_of_options,
    initial_parameters,
    native_grid,
    precision_of_options,
)
from shardwright.execute.launch.rank_device_and_backend import backend_of, own_device
from shardwright.execute.launch.run_options_and_report import (
    NATIVE,
    RunEvaluation,
    RunMemory,
    RunOptions,
    RunReport,
    RunStep,
)
from shardwright.execute.launch.start_ranks import FOLDER
from shardwright.execute.launch.train_rank_by_interpreter import rank_by_device, run_rank
from shardwright.execute.launch.watch_peak_memory_of_process import watch_memory
from shardwright.execute.native.grids_that_torch_can_run import (
    differences_from_plan,
)
from shardwright.execute.training.device_training_state import prepare_training
from shardwright.execute.training.token_batches import open_tokens
from shardwright.execute.training.training_loop import StepReport
from shardwright.execute.training.world_process_group import process_group
from shardwright.execute.weights.read_weights import HuggingFaceWeights
from shardwright.hardware.cluster_network_levels import network_units
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.training_problem import Problem
from shardwright.strategy.plan.plan import Plan

Watch = Callable[[RunStep | RunEvaluation], None]


@dataclass(slots=True)
class StopRequest:
    """A rank's request to stop; it is summed with the losses, so that all ranks stop together."""

    asked: bool = False

    def __call__(self) -> bool:
        """True if the run was asked to stop."""
        return self.asked


@dataclass(slots=True)
class _RunLog:
    """Log of the run's steps and evaluations, with their seconds."""

    watch: Watch | None
    steps: list[RunStep] = field(default_factory=list)
    evaluations: list[RunEvaluation] = field(default_factory=list)
    stopped: bool = False
    clock: float = field(default_factory=time.monotonic)

    def add(self, report: StepReport) -> None:
        """Record the end of a step, and report it to `watch`."""
        now = time.monotonic()
        self.steps.append(
            RunStep(step=report.step, loss=report.loss, norm=report.norm, seconds=now - self.clock)
        )
        self.clock, self.stopped = now, report.stopped
        if self.watch is not None:
            self.watch(self.steps[-1])

    def evaluated(self, step: int, loss: float) -> None:
        """Record the evaluation after a step, report it to `watch`, and restart the step clock."""
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
    """Train under `plan` as this rank of the environment (torchrun's), or alone with one device.

    Everything that can be checked is checked before the first step.

    Args:
        name: name of the plan.
        predicted_s: predicted seconds of a step.
        memory: predicted memory, by class of devices.
        watch: called with every step and evaluation; on rank 0 only.
        begun: called once this run has locked the checkpoint folder, before its first step.

    Raises:
        StrategyError: the plan breaks a rule or has parts that are not executed; run.world,
        run.peer, run.timeout. DataError: tokens, weights or the newest checkpoint cannot be used; a
        loss is not finite. UsageError: there is no such device; no step is left to do; another run
        uses the checkpoint folder. OutputError: the folder cannot be written to.
    """
    on = own_device(options.on, os.environ)
    backend = backend_of(options.transport, on, os.environ)
    model, job = problem.model, problem.job
    rule = adamw_of_options(options)
    precision, settings, source = (
        precision_of_options(problem, options),
        run_settings(problem, options),
        initial_parameters(problem, options),
    )
    training = prepare_training(
        model,
        job,
        plan,
        rule=rule,
        settings=settings,
        precision=precision,
        on=on,
        islands=network_units(problem.cluster)[0],
        bias_rate=options.router_bias_update,
    )
    world = int(os.environ.get("WORLD_SIZE", "1"))
    rank_by_device(training, ranks=world)
    share = (int(os.environ.get("RANK", "0")), world)
    tokens = open_tokens(
        dict(options.data),
        model=model,
        job=job,
        seed=options.seed if options.shuffle else None,
        share=share,
    )
    evaluation_data = evaluation_of_options(problem, options, share)
    native = (
        native_grid(problem, plan, options, settings=settings, on=on, backend=backend)
        if options.backend == NATIVE
        else None
    )
    group = process_group(
        timeout_s=options.timeout_s,
        accelerated=bool(on.type == "cuda" and backend),
        alone=len(training.devices) == 1,
        meets=native is not None,
    )
    with _lock_checkpoints(options.checkpoints), group as (rank, ranks):
        rank_of_device = rank_by_device(training, ranks=ranks)
        if begun is not None:
            begun()
        log = _RunLog(watch=watch if rank == 0 else None)
        evaluation = evaluation_data and replace(evaluation_data, report=log.evaluated)
        with _interruptible() as stop, watch_memory(on) as peak_memory:
            if native is not None:
                # PyTorch's engine takes a second to load, on every rank.
                from shardwright.execute.launch.train_rank_on_torch_engine import run_native_rank
                from shardwright.execute.native.step_events import native_recorder

                recorder = native_recorder(on) if options.trace else None
                run_native_rank(
                    training,
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
                    training,
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
        peaks = _peaks_of_ranks((peak_memory.most, peak_memory.grown), ranks=ranks)
    steps = log.steps
    peak_of_device = {device: peaks[rank] for device, rank in rank_of_device.items()}
    return RunReport(
        steps=tuple(steps),
        tokens=problem.job.tokens_per_step,
        predicted_s=predicted_s,
        memory=tuple(
            _with_measured_peaks(m, [peak_of_device[d] for d in m.devices if d in peak_of_device])
            for m in memory
        ),
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
            *_unapplied_settings(settings),
            *_unused_weights(source),
        ),
    )


def _class_differences(model: Model) -> tuple[str, ...]:
    """Report lines on differences of the computed model from its published class."""
    return (
        (f"{model.architecture} is computed but for: {'; '.join(model.differs)}",)
        if model.differs
        else ()
    )


def _unapplied_settings(settings: Settings) -> tuple[str, ...]:
    """Report lines on dropout and router losses of the published class that are not applied."""
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
        (text, ", ".join(f"{name} {value:g}" for name, value in values)) for text, values in kinds
    )
    return tuple(text.format(values) for text, values in named if values)


def _unused_weights(source: Source) -> tuple[str, ...]:
    """Report lines on tensors in a folder of weights that the model does not have."""
    return source.remarks if isinstance(source, HuggingFaceWeights) else ()


def _recorder(on: torch.device) -> Recorder:
    """Create a recorder for the interpreter; on a GPU it synchronises before each reading."""
    if on.type != "cuda":
        return Recorder()
    return Recorder(settle=torch.cuda.synchronize, held=torch.cuda.memory_allocated)


def _lock_checkpoints(checkpoints: Path | None) -> AbstractContextManager[None]:
    """Context manager that locks the checkpoint folder on rank 0, unless a launcher has done so.

    Nothing is locked if the launcher has locked the folder.
    """
    first = os.environ.get("RANK", "0") == "0" and FOLDER not in os.environ
    return locked_folder(checkpoints) if checkpoints is not None and first else nullcontext()


def _peaks_of_ranks(local_peaks: tuple[int, int], *, ranks: int) -> list[tuple[int, int]]:
    """Gather (maximum allocated bytes, growth in bytes) of every rank."""
    if ranks == 1:
        return [local_peaks]
    peaks = [torch.zeros(2, dtype=torch.int64) for _ in range(ranks)]
    dist.all_gather(peaks, torch.tensor(local_peaks))
    return [(int(most), int(grown)) for most, grown in peaks]


def _with_measured_peaks(memory: RunMemory, peaks: list[tuple[int, int]]) -> RunMemory:
    """The memory record of a device class, with the largest measured bytes of its devices."""
    return replace(
        memory,
        measured=max((most for most, _ in peaks), default=0),
        grown=max((grown for _, grown in peaks), default=0),
    )


@contextmanager
def _interruptible() -> Iterator[StopRequest]:
    """Context manager: a first interrupt asks to stop after the step, a second stops at once."""
    stop = StopRequest()

    def ask(number: int, frame: FrameType | None) -> None:
        """Ask to stop after the step; at a second interrupt, stop at once."""
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    handlers = {number: signal.signal(number, ask) for number in end_signals()}
    try:
        yield stop
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
