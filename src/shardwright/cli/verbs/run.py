"""``shardwright run``: train under a plan on PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from shardwright.api import run_plan
from shardwright.api.problem_of_plan_file import PlanOfProblem, stored_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.option_declarations import Option, group, values_by_flag
from shardwright.cli.parsing.verb_from_function import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError, UsageError
from shardwright.execute.checkpoints.checkpoint_folders import newest_checkpoint
from shardwright.execute.checkpoints.folder_lock import locked_folder
from shardwright.execute.checkpoints.stored_run_options import (
    changed_options,
    merge_stored_options,
    store_options,
    stored_options,
)
from shardwright.execute.launch.end_with_launcher import end_with_launcher
from shardwright.execute.launch.metrics_file import add_line, metrics_line
from shardwright.execute.launch.resumed_run_checks import (
    WORDS,
    compare_facts,
    facts_of,
    require_words,
    stored_facts,
)
from shardwright.execute.launch.run_checks import require_runnable
from shardwright.execute.launch.run_report import (
    AUTO,
    BACKENDS,
    CONFIGURED,
    FORMATS,
    NOISES,
    OWN,
    TEXT,
    TRANSPORTS,
    RunEvaluation,
    RunOptions,
    RunStep,
)
from shardwright.execute.launch.start_ranks import (
    FOLDER,
    INTERRUPTED,
    is_rank,
    start_ranks,
    write_error,
)
from shardwright.execute.launch.tensorboard import Write, tensorboard_writer
from shardwright.execute.training.learning_rate import CURVES
from shardwright.execute.training.weight_decay_exemptions import SPARED
from shardwright.files.plan_file import read_saved
from shardwright.files.stored_plan_and_simulation import StoredSimulation
from shardwright.files.trace_file import trace_text
from shardwright.report.screens.training_run_screen import (
    evaluation_text,
    render_run,
    run_document,
    step_text,
)
from shardwright.search.answer_summary import answer_line

_DATA: Final = "Data"
_CHECKPOINTS: Final = "Parameters and checkpoints"


def _choices(sentence: str, meanings: Mapping[str, str]) -> str:
    """Help of an option: a sentence, and its values with the meaning of each."""
    values = "; ".join(f"{value}: {meaning}" for value, meaning in meanings.items())
    return f"{sentence} {values}"


@group(_DATA)
class EvaluationFlags:
    """Options for the evaluation data and the order of samples."""

    eval_data: Annotated[
        list[str] | None,
        Option(
            "--eval-data",
            metavar="[SEQUENCE=]FILE",
            help="Token file to evaluate on, and not to train on, after the last step. Repeatable.",
        ),
    ] = None
    eval_every: Annotated[
        int,
        Option(
            "--eval-every",
            min=0,
            help="Steps between evaluations; 0 means only after the last step.",
        ),
    ] = 0
    eval_batches: Annotated[
        int,
        Option(
            "--eval-batches", min=0, help="Batches of an evaluation; 0 means all of --eval-data."
        ),
    ] = 0
    shuffle: Annotated[
        bool, Option("--shuffle", help="Shuffle the samples anew in every epoch.")
    ] = False


@group("Optimizer")
class OptimizerFlags:
    """Options for AdamW and the learning rate."""

    steps: Annotated[
        int,
        Option(
            "--steps",
            min=1,
            help="Total number of steps, including those a checkpoint already has: 1000.",
        ),
    ]
    rate: Annotated[float, Option("--rate", min=0.0, help="AdamW learning rate.")] = 1e-3
    decay: Annotated[float, Option("--decay", min=0.0, help="AdamW weight decay.")] = 0.1
    no_decay: Annotated[
        str,
        Option(
            "--no-decay",
            metavar="KIND,..",
            help=_choices("Parameters without weight decay.", SPARED),
        ),
    ] = ""
    betas: Annotated[str, Option("--betas", metavar="B1,B2", help="AdamW betas.")] = "0.9,0.95"
    eps: Annotated[float, Option("--eps", min=0.0, help="AdamW epsilon.")] = 1e-8
    clip: Annotated[
        float, Option("--clip", min=0.0, help="Clip gradients to this norm; 0 means never.")
    ] = 1.0
    curve: Annotated[
        str, Option("--curve", help=f"Learning rate after the warm-up: {', '.join(CURVES)}.")
    ] = "constant"
    curve_steps: Annotated[
        int,
        Option(
            "--curve-steps",
            min=0,
            help="Steps that --curve is made for; 0 means --steps of the run's first command.",
        ),
    ] = 0
    warmup: Annotated[
        int,
        Option("--warmup", min=0, help="Steps in which the learning rate grows to --rate: 100."),
    ] = 0
    least: Annotated[
        float,
        Option("--least", min=0.0, max=1.0, help="Share of --rate that the last step has: 0.1."),
    ] = 0.0


@group(_CHECKPOINTS)
class CheckpointFlags:
    """Options for the initial parameters, and the checkpoints to save and resume from."""

    weights: Annotated[
        Path | None,
        Option("--weights", metavar="FOLDER", help="Hugging Face safetensors to start from."),
    ] = None
    seed: Annotated[
        int, Option("--seed", help="Random seed of the initial parameters, without --weights.")
    ] = 0
    checkpoints: Annotated[
        Path | None,
        Option(
            "--checkpoints",
            metavar="FOLDER",
            help="Save checkpoints here, and resume from the newest, whatever plan wrote it.",
        ),
    ] = None
    every: Annotated[
        int, Option("--every", min=0, help="Steps between checkpoints; 0 means one at the end.")
    ] = 0
    keep: Annotated[
        int, Option("--keep", min=0, help="Number of newest checkpoints to keep; 0 means all.")
    ] = 0


@group("Experts")
class RouterFlags:
    """Options for load balancing of experts."""

    load_balancing: Annotated[
        float | None,
        Option(
            "--load-balancing",
            min=0.0,
            help=(
                "Coefficient of the load-balancing loss of experts; by default as config.json says."
            ),
        ),
    ] = None
    router_bias_update: Annotated[
        float | None,
        Option(
            "--router-bias-update",
            min=0.0,
            metavar="RATE",
            help=(
                "Balance experts without a loss. After each step, add RATE to the router bias"
                " (e_score_correction_bias) of each expert that was chosen by fewer tokens than the"
                " mean, and subtract RATE for each expert chosen by more. Example: 0.001, as in"
                " DeepSeek-V3. By default, biases are not updated."
            ),
        ),
    ] = None
    router_noise: Annotated[
        str, Option("--router-noise", help=_choices("Noise on the inputs of routers.", NOISES))
    ] = CONFIGURED


@group("Execution")
class ExecutionFlags:
    """Options for devices, number formats and communication."""

    on: Annotated[
        str,
        Option("--on", help="Device type, cpu or cuda; by default an accelerator if there is one."),
    ] = ""
    backend: Annotated[
        str, Option("--backend", help=_choices("Program that trains.", BACKENDS))
    ] = OWN
    transport: Annotated[
        str, Option("--transport", help=_choices("Communication between ranks.", TRANSPORTS))
    ] = AUTO
    formats: Annotated[str, Option("--formats", help=_choices("Number formats.", FORMATS))] = "job"
    timeout: Annotated[
        float,
        Option("--timeout", min=1.0, help="Seconds to wait for another rank before giving up."),
    ] = 300.0
    profile: Annotated[
        Path | None,
        Option(
            "--profile",
            metavar="FILE",
            help="Compare with the prediction for the machine that this profile was measured on.",
        ),
    ] = None


@group(shared_options.OUTPUT)
class RecordFlags:
    """Options for files that record the steps."""

    metrics: Annotated[
        Path | None,
        Option("--metrics", metavar="FILE", help="Add a line of JSON for every step to this file."),
    ] = None
    tensorboard: Annotated[
        Path | None,
        Option(
            "--tensorboard",
            metavar="FOLDER",
            help="Write TensorBoard event files of every step to this folder.",
        ),
    ] = None
    trace: Annotated[
        Path | None,
        Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of the last step to this file, for ui.perfetto.dev.",
        ),
    ] = None


def run(
    context: typer.Context,
    path: shared_options.PlanFile,
    *,
    data: Annotated[
        list[str],
        Option(
            "--data",
            metavar="[SEQUENCE=]FILE",
            help="Token file, as `shardwright tokenise` writes. Repeatable.",
            rich_help_panel=_DATA,
        ),
    ],
    evaluation: EvaluationFlags,
    optimizer: OptimizerFlags,
    checkpointing: CheckpointFlags,
    accept: Annotated[
        str,
        Option(
            "--accept",
            metavar="WORD,..",
            help=_choices("Differences from the run of --checkpoints to accept.", WORDS),
            rich_help_panel=_CHECKPOINTS,
        ),
    ] = "",
    routers: RouterFlags,
    execution_flags: ExecutionFlags,
    records: RecordFlags,
    form: shared_options.AnswerForm,
) -> int:
    """Train under PLAN, one rank per device, launched here unless torchrun did.

    Ctrl-C stops after the current step, with a checkpoint.
    """
    screen.check_writable(records.trace)
    saved = read_saved(path)
    stored, checkpoints = stored_plan(saved), checkpointing.checkpoints
    groups = (evaluation, optimizer, checkpointing, routers, execution_flags, records)
    given = {name: value for one in groups for name, value in values_by_flag(one).items()} | {
        "curve-steps": optimizer.curve_steps or optimizer.steps,
        "weights": _absolute(checkpointing.weights),
        "profile": _absolute(execution_flags.profile),
        "eval-data": [_absolute_file(word) for word in evaluation.eval_data or ()],
    }
    is_resumed = checkpoints is not None and newest_checkpoint(checkpoints) is not None
    before = stored_options(checkpoints) if is_resumed else {}
    options = merge_stored_options(given, before, given=_on_the_command_line(context, given))
    run_options = _run_options(options, data=data)
    facts = _resumed_facts(
        stored,
        run_options,
        before=before,
        accepted=read_kinds(accept),
        lines=changed_options(options, before),
        quiet=form.quiet or form.as_json,
    )
    ranks = run_plan.num_ranks(stored)
    if ranks > 1 and not is_rank(os.environ):
        require_runnable(stored.problem, run_options)
        words = [
            *("run", str(path)),
            *(word for file in data for word in ("--data", file)),
            *_words(options),
            *_words({"json": form.as_json, "quiet": form.quiet, "debug": form.debug}),
        ]
        with locked_folder(checkpoints) if checkpoints is not None else nullcontext():
            if checkpoints is not None:
                store_options(checkpoints, options, facts=facts)
            return start_ranks(words, ranks=ranks)
    if FOLDER in os.environ:
        end_with_launcher(os.environ)
    try:
        return _train(saved, run_options, options=options, facts=facts, form=form)
    except ShardwrightError as error:
        if write_error(error, os.environ):
            return error.exit_code
        raise
    except Exception as error:
        rank, kind = os.environ.get("RANK", "0"), type(error).__name__
        text = " ".join(f"rank {rank}: unexpected {kind}: {error}".split())
        hint = "this is a bug; run again with --debug for the traceback"
        write_error(ShardwrightError(text[:400], hint=hint), os.environ)
        raise


def _train(
    saved: StoredSimulation,
    run_options: RunOptions,
    *,
    options: Mapping[str, Any],
    facts: Mapping[str, Any],
    form: shared_options.AnswerForm,
) -> int:
    """Train as one rank and print the answer on the first rank; returns the exit code."""
    stored, is_first = stored_plan(saved), os.environ.get("RANK", "0") == "0"
    profile = options["profile"] if is_first else None
    predicted = (
        run_plan.predict_on_profile(saved, Path(profile), formats=run_options.formats)
        if profile is not None
        else None
    )
    report = run_plan.run(
        stored,
        run_options,
        predicted=predicted,
        watch=_watcher(run_options, tokens=stored.problem.job.tokens_per_step, form=form),
        begun=lambda: _store_options(run_options.checkpoints, options, facts),
    )
    if is_first:
        if options["trace"] is not None and report.trace is not None:
            screen.save(options["trace"], trace_text(report.trace))
        compute = stored.problem.job.compute
        dtype = compute.value if run_options.formats == "job" and compute is not Dtype.FP32 else ""
        screen.print_answer(
            form,
            document=lambda: run_document(report),
            line=lambda: (
                answer_line(f"loss {report.steps[-1].loss:.6f}", step_time_s=report.step_s)
                if report.steps
                else ""
            ),
            picture=lambda: render_run(
                report,
                cluster=predicted.cluster if predicted is not None else stored.cluster,
                measured=predicted is not None,
                dtype=dtype,
            ),
        )
    return INTERRUPTED if report.stopped else 0


def _watcher(
    run_options: RunOptions, *, tokens: int, form: shared_options.AnswerForm
) -> Callable[[RunStep | RunEvaluation], None]:
    """A function that records and prints each step and evaluation.

    Args:
        tokens: tokens of a step.
    """
    events: list[Write] = []

    def watch(record: RunStep | RunEvaluation) -> None:
        """Write a step or an evaluation to the metrics files and the screen."""
        line = metrics_line(
            record, tokens=tokens, rate=run_options.rate * run_options.rates.share(record.step)
        )
        if run_options.metrics is not None:
            add_line(run_options.metrics, line)
        if run_options.tensorboard is not None:
            events[:] = events or [tensorboard_writer(run_options.tensorboard)]
            events[0](line)
        if not form.quiet and not form.as_json:
            screen.note(
                evaluation_text(record, steps=run_options.steps)
                if isinstance(record, RunEvaluation)
                else step_text(record, steps=run_options.steps, tokens=tokens)
            )

    return watch


def _run_options(options: Mapping[str, Any], *, data: Sequence[str]) -> RunOptions:
    """The options of a run from their values by name on the command line."""
    same = (
        "steps",
        "checkpoints",
        "every",
        "rate",
        "decay",
        "clip",
        "eps",
        "curve",
        "warmup",
        "least",
        "keep",
        "metrics",
        "tensorboard",
    )
    return RunOptions(
        **{
            name: options[name]
            for name in (*same, "seed", "on", "backend", "transport", "formats", "shuffle")
        },
        data=read_data(data),
        weights=Path(options["weights"]) if options["weights"] is not None else None,
        trace=options["trace"] is not None,
        timeout_s=options["timeout"],
        betas=read_betas(options["betas"]),
        no_decay=read_kinds(options["no-decay"]),
        curve_steps=options["curve-steps"],
        eval_data=read_data(options["eval-data"], flag="--eval-data"),
        eval_every=options["eval-every"],
        eval_batches=options["eval-batches"],
        load_balancing=options["load-balancing"],
        router_bias_update=options["router-bias-update"],
        router_noise=options["router-noise"],
    )


def _words(options: Mapping[str, Any]) -> list[str]:
    """The command-line words that set the given options."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words += [f"--{name}"] * value
        elif isinstance(value, list):
            words += [word for item in value for word in (f"--{name}", item)]
        elif value not in (None, ""):
            words += [f"--{name}", str(value)]
    return words


def _on_the_command_line(context: typer.Context, options: Mapping[str, Any]) -> frozenset[str]:
    """Names of the options that the command line sets, without those at their defaults."""
    sources = {name: context.get_parameter_source(name.replace("-", "_")) for name in options}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )


def _absolute(path: Path | None) -> str | None:
    """The absolute path as text, or None."""
    return None if path is None else str(path.absolute())


def _absolute_file(word: str) -> str:
    """``SEQUENCE=FILE`` with the absolute path of the file."""
    ((sequence, path),) = read_data([word])
    return f"{sequence}={path.absolute()}"


def _store_options(
    checkpoints: Path | None, options: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Store the options and facts of a run beside its checkpoints.

    Nothing is stored if the process that started this rank has stored them.
    """
    if checkpoints is not None and FOLDER not in os.environ and os.environ.get("RANK", "0") == "0":
        store_options(checkpoints, options, facts=facts)


def _resumed_facts(
    stored: PlanOfProblem,
    run_options: RunOptions,
    *,
    before: Mapping[str, Any],
    accepted: Sequence[str],
    lines: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """Compare a resumed run with its checkpoint's run and print differences; returns the facts.

    The facts are the settings that the loss depends on.

    Args:
        before: options of the run that wrote the checkpoint.
        accepted: words for the differences that are accepted.
        lines: options that differ.

    Raises:
        DataError: a difference was not accepted. UsageError: an unknown word.
    """
    require_words(accepted)
    if run_options.checkpoints is None or FOLDER in os.environ:
        return {}
    facts, newest = (
        facts_of(stored.problem, stored.plan, run_options),
        newest_checkpoint(run_options.checkpoints),
    )
    if newest is None:
        return facts
    differences = compare_facts(
        stored_facts(run_options.checkpoints),
        facts,
        accepted=accepted,
        folder=run_options.checkpoints,
    )
    if os.environ.get("RANK", "0") == "0":
        messages = [*lines, *differences, *_curve_lines(run_options, before)]
        if messages or not quiet:
            screen.note("; ".join([f"going on from {newest}", *messages]))
    return facts


def _curve_lines(run_options: RunOptions, before: Mapping[str, Any]) -> tuple[str, ...]:
    """Lines on a learning-rate curve that does not end with the run, or may differ from before."""
    if run_options.curve == "constant":
        return ()
    if before and "curve-steps" not in before:
        return (
            (
                f"not known for how many steps the {run_options.curve} curve was made: it is of"
                f" {run_options.curve_steps}"
            ),
        )
    if run_options.curve_steps == run_options.steps:
        return ()
    return (
        (
            f"the {run_options.curve} curve is of {run_options.curve_steps} steps, not of"
            f" {run_options.steps}: --curve-steps {run_options.steps} changes it"
        ),
    )


def read_kinds(text: str) -> tuple[str, ...]:
    """Split comma-separated words: ``vectors,embeddings`` is two words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_betas(text: str) -> tuple[float, float]:
    """Parse --betas: ``0.9,0.95``.

    Raises:
        UsageError: the text is not two numbers from 0 to below 1.
    """
    words = text.split(",")
    try:
        first, second = (float(word) for word in words)
    except ValueError:
        first = second = -1.0
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        raise UsageError(
            f"--betas {text[:40]!r} are not two numbers from 0 to below 1", hint="--betas 0.9,0.95"
        )
    return first, second


def read_data(words: Sequence[str], *, flag: str = "--data") -> tuple[tuple[str, Path], ...]:
    """Parse --data: ``["tokens.npy", "encoder=source.npy"]`` as (sequence, file) pairs.

    Raises:
        UsageError: a sequence is named twice.
    """
    files: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        sequence, file = (name, path) if equals and name.isidentifier() else (TEXT, word)
        if sequence in files:
            raise UsageError(
                f"{flag} gives two files of {sequence}", hint="one file of tokens for each sequence"
            )
        files[sequence] = Path(file)
    return tuple(files.items())


main = verb(run, name="run")
