"""``shardwright run``: train under a plan on PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.api import execution
from shardwright.api.stored import Stored, stored_plan
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError, UsageError
from shardwright.execute.launch.alive import end_with_launcher
from shardwright.execute.launch.checked import require_runnable
from shardwright.execute.launch.launch import FOLDER, INTERRUPTED, is_rank, launch, write_error
from shardwright.execute.launch.metrics import add_line, line_of
from shardwright.execute.launch.resumed import WORDS, compared, facts_of, known_facts, require_words
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
from shardwright.execute.launch.tensorboard import Write, writer
from shardwright.execute.state.folders import latest
from shardwright.execute.state.lock import held
from shardwright.execute.state.remembered import changed, recalled, remember, remembered
from shardwright.execute.training.rate import CURVES
from shardwright.execute.training.spared import SPARED
from shardwright.files.plan_file import read_saved
from shardwright.files.text import to_text
from shardwright.files.trace_file import trace_text
from shardwright.report.screens.run_screen import (
    evaluation_text,
    render_run,
    run_document,
    step_text,
)
from shardwright.search.summary import answer_line

DataFiles = Annotated[
    list[str],
    typer.Option(
        "--data", metavar="[SEQUENCE=]FILE", help="Token file, as `shardwright tokenise` writes."
    ),
]
Steps = Annotated[
    int,
    typer.Option(
        "--steps", min=1, help="Total number of steps, including those a checkpoint already has."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", metavar="FOLDER", help="Hugging Face safetensors to start from."),
]
Checkpoints = Annotated[
    Path | None,
    typer.Option(
        "--checkpoints",
        metavar="FOLDER",
        help="Save checkpoints here, and resume from the newest, whatever plan wrote it.",
    ),
]
Every = Annotated[
    int, typer.Option("--every", min=0, help="Steps between checkpoints; 0 means one at the end.")
]


def run(
    context: typer.Context,
    path: flags.PlanFile,
    *,
    data: DataFiles,
    steps: Steps,
    weights: Weights = None,
    checkpoints: Checkpoints = None,
    every: Every = 0,
    rate: Annotated[float, typer.Option("--rate", min=0.0, help="AdamW learning rate.")] = 1e-3,
    decay: Annotated[float, typer.Option("--decay", min=0.0, help="AdamW weight decay.")] = 0.1,
    no_decay: Annotated[
        str,
        typer.Option(
            "--no-decay",
            metavar="KIND,..",
            help="; ".join(f"{name}: {what}" for name, what in SPARED.items()),
        ),
    ] = "",
    betas: Annotated[
        str, typer.Option("--betas", metavar="B1,B2", help="AdamW betas.")
    ] = "0.9,0.95",
    eps: Annotated[float, typer.Option("--eps", min=0.0, help="AdamW epsilon.")] = 1e-8,
    curve: Annotated[
        str, typer.Option("--curve", help=f"Learning rate behind the warm-up: {', '.join(CURVES)}.")
    ] = "constant",
    curve_steps: Annotated[
        int,
        typer.Option(
            "--curve-steps",
            min=0,
            help="Steps that --curve is made for; 0 means --steps of the run's first command.",
        ),
    ] = 0,
    warmup: Annotated[
        int,
        typer.Option("--warmup", min=0, help="Steps in which the learning rate grows to --rate."),
    ] = 0,
    least: Annotated[
        float,
        typer.Option("--least", min=0.0, max=1.0, help="Share of --rate that the last step has."),
    ] = 0.0,
    keep: Annotated[
        int, typer.Option("--keep", min=0, help="Checkpoints to keep, the newest; 0 means all.")
    ] = 0,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics", metavar="FILE", help="Add a line of JSON for every step to this file."
        ),
    ] = None,
    eval_data: Annotated[
        list[str] | None,
        typer.Option(
            "--eval-data",
            metavar="[SEQUENCE=]FILE",
            help="Token file to evaluate, not to learn, after the last step.",
        ),
    ] = None,
    eval_every: Annotated[
        int,
        typer.Option(
            "--eval-every", min=0, help="Steps between evaluations; 0 means after the last alone."
        ),
    ] = 0,
    eval_batches: Annotated[
        int,
        typer.Option(
            "--eval-batches", min=0, help="Batches of an evaluation; 0 means all of --eval-data."
        ),
    ] = 0,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            "--tensorboard",
            metavar="FOLDER",
            help="Write event files of every step to this folder.",
        ),
    ] = None,
    clip: Annotated[
        float, typer.Option("--clip", min=0.0, help="Clip gradients to this norm; 0 means never.")
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option("--seed", help="Random seed of the initial parameters, without --weights."),
    ] = 0,
    load_balancing: Annotated[
        float | None,
        typer.Option(
            "--load-balancing",
            min=0.0,
            help=(
                "Coefficient of the load-balancing loss of experts; by default as config.json says."
            ),
        ),
    ] = None,
    router_bias_update: Annotated[
        float | None,
        typer.Option(
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
    ] = None,
    router_noise: Annotated[
        str,
        typer.Option(
            "--router-noise",
            help="Noise on routers: "
            + "; ".join(f"{name}: {what}" for name, what in NOISES.items()),
        ),
    ] = CONFIGURED,
    on: Annotated[
        str,
        typer.Option(
            "--on", help="Device type, cpu or cuda; by default an accelerator if there is one."
        ),
    ] = "",
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help="; ".join(f"{name}: {what}" for name, what in BACKENDS.items())
        ),
    ] = OWN,
    transport: Annotated[
        str,
        typer.Option(
            "--transport", help="; ".join(f"{name}: {what}" for name, what in TRANSPORTS.items())
        ),
    ] = AUTO,
    formats: Annotated[
        str,
        typer.Option(
            "--formats", help="; ".join(f"{name}: {what}" for name, what in FORMATS.items())
        ),
    ] = "job",
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of the last step to this file, for ui.perfetto.dev.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Compare with the prediction for the machine that was calibrated so.",
        ),
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Shuffle the samples anew in every epoch.")
    ] = False,
    accept: Annotated[
        str,
        typer.Option(
            "--accept",
            metavar="WORD,..",
            help="What may differ from the checkpoints' run: "
            + "; ".join(f"{w}: {what}" for w, what in WORDS.items()),
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=1.0, help="Seconds to wait for another rank before giving up."
        ),
    ] = 300.0,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Train under PLAN, one rank per device, launched here unless torchrun did. Ctrl-C stops after
    the current step, with a checkpoint.
    """
    screen.check_writable(trace)
    saved = read_saved(path)
    stored = stored_plan(saved)
    given: dict[str, Any] = {
        "steps": steps,
        "weights": _whole(weights),
        "checkpoints": checkpoints,
        "every": every,
        "rate": rate,
        "decay": decay,
        "no-decay": no_decay,
        "betas": betas,
        "eps": eps,
        "clip": clip,
        "curve": curve,
        "curve-steps": curve_steps or steps,
        "warmup": warmup,
        "least": least,
        "keep": keep,
        "metrics": metrics,
        "tensorboard": tensorboard,
        "eval-data": [_whole_word(word) for word in eval_data or ()],
        "eval-every": eval_every,
        "eval-batches": eval_batches,
        "shuffle": shuffle,
        "seed": seed,
        "load-balancing": load_balancing,
        "router-bias-update": router_bias_update,
        "router-noise": router_noise,
        "on": on,
        "backend": backend,
        "transport": transport,
        "formats": formats,
        "trace": trace,
        "timeout": timeout,
        "profile": _whole(profile),
    }
    before = (
        remembered(checkpoints)
        if checkpoints is not None and latest(checkpoints) is not None
        else {}
    )
    options = recalled(given, before, given=_on_the_command_line(context, given))
    asked = _asked(options, data=data)
    changes = changed(options, before)
    facts = _going_on(
        stored,
        asked,
        before=before,
        accepted=read_kinds(accept),
        lines=changes,
        quiet=quiet or as_json,
    )
    ranks = execution.num_ranks(stored)
    if ranks > 1 and not is_rank(os.environ):
        files = [word for one in data for word in ("--data", one)]
        switches = [
            flag
            for flag, is_on in (("--json", as_json), ("--quiet", quiet), ("--debug", debug))
            if is_on
        ]
        require_runnable(stored.problem, asked)
        with held(checkpoints) if checkpoints is not None else nullcontext():
            if checkpoints is not None:
                remember(checkpoints, options, facts=facts)
            raise typer.Exit(
                launch(["run", str(path), *files, *_words(options), *switches], ranks=ranks)
            )
    if FOLDER in os.environ:
        end_with_launcher(os.environ)
    first = os.environ.get("RANK", "0") == "0"
    tokens = stored.problem.job.tokens_per_step

    events: list[Write] = []

    def watch(one: RunStep | RunEvaluation) -> None:
        line = line_of(one, tokens=tokens, rate=asked.rate * asked.rates.share(one.step))
        if metrics is not None:
            add_line(metrics, line)
        if tensorboard is not None:
            events[:] = events or [writer(tensorboard)]
            events[0](line)
        if not quiet and not as_json:
            text = (
                evaluation_text(one, steps=steps)
                if isinstance(one, RunEvaluation)
                else step_text(one, steps=steps, tokens=tokens)
            )
            screen.note(text)

    try:
        known = options["profile"] if first else None
        predicted = (
            execution.predict_on_profile(saved, Path(known), formats=formats)
            if known is not None
            else None
        )
        report = execution.run(
            stored,
            asked,
            predicted=predicted,
            watch=watch,
            begun=lambda: _remember(checkpoints, options, facts),
        )
    except ShardwrightError as error:
        if write_error(error, os.environ):
            raise typer.Exit(error.exit_code) from error
        raise
    except Exception as error:
        text = " ".join(
            (
                f"rank {os.environ.get('RANK', '0')}: unexpected {type(error).__name__}: {error}"
            ).split()
        )
        write_error(
            ShardwrightError(
                text[:400], hint="this is a bug; run again with --debug for the traceback"
            ),
            os.environ,
        )
        raise
    if first and trace is not None and report.trace is not None:
        screen.save(trace, trace_text(report.trace))
    if first:
        if as_json:
            screen.write(to_text(run_document(report)))
        elif quiet:
            screen.write(
                answer_line(f"loss {report.steps[-1].loss:.6f}", step_time_s=report.step_s)
                if report.steps
                else ""
            )
        else:
            compute = stored.problem.job.compute
            shown = predicted.cluster if predicted is not None else stored.cluster
            dtype = compute.value if formats == "job" and compute is not Dtype.FP32 else ""
            screen.show(render_run(report, cluster=shown, measured=known is not None, dtype=dtype))
    if report.stopped:
        raise typer.Exit(INTERRUPTED)


def _asked(options: Mapping[str, Any], *, data: Sequence[str]) -> RunOptions:
    """Options by their names in the command line, as a run takes them."""
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
    """Options as words of a command line."""
    found: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            found += [f"--{name}"] * value
        elif isinstance(value, list):
            found += [word for one in value for word in (f"--{name}", one)]
        elif value not in (None, ""):
            found += [f"--{name}", str(value)]
    return found


def _on_the_command_line(context: typer.Context, options: Mapping[str, Any]) -> frozenset[str]:
    """Options that somebody gave, not their defaults."""
    sources = {name: context.get_parameter_source(name.replace("-", "_")) for name in options}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )


def _whole(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _whole_word(word: str) -> str:
    """``SEQUENCE=FILE`` with the file's whole path."""
    ((sequence, path),) = read_data([word])
    return f"{sequence}={path.absolute()}"


def _remember(
    checkpoints: Path | None, options: Mapping[str, Any], facts: Mapping[str, Any]
) -> None:
    """Unless the process that started this rank has done it."""
    if checkpoints is not None and FOLDER not in os.environ and os.environ.get("RANK", "0") == "0":
        remember(checkpoints, options, facts=facts)


def _going_on(
    stored: Stored,
    asked: RunOptions,
    *,
    before: Mapping[str, Any],
    accepted: Sequence[str],
    lines: Sequence[str],
    quiet: bool,
) -> dict[str, Any]:
    """What the run's loss depends on, to be kept; where it goes on, after it was compared and every
    difference was said.

    Args:
        before: options of the run that it goes on from.
        accepted: words of what may differ.
        lines: options that differ.

    Raises:
        DataError: something differs that was not accepted. UsageError: an unknown word.
    """
    require_words(accepted)
    if asked.checkpoints is None or FOLDER in os.environ:
        return {}
    facts, newest = facts_of(stored.problem, stored.plan, asked), latest(asked.checkpoints)
    if newest is None:
        return facts
    differences = compared(
        known_facts(asked.checkpoints), facts, accepted=accepted, folder=asked.checkpoints
    )
    if os.environ.get("RANK", "0") == "0":
        said = [*lines, *differences, *_curve_lines(asked, before)]
        if said or not quiet:
            screen.note("; ".join([f"going on from {newest}", *said]))
    return facts


def _curve_lines(asked: RunOptions, before: Mapping[str, Any]) -> tuple[str, ...]:
    """Where the learning rate's curve does not end with the run, or is not known to be the one of
    before.
    """
    if asked.curve == "constant":
        return ()
    if before and "curve-steps" not in before:
        return (
            (
                f"not known for how many steps the {asked.curve} curve was made: it is of"
                f" {asked.curve_steps}"
            ),
        )
    if asked.curve_steps == asked.steps:
        return ()
    return (
        (
            f"the {asked.curve} curve is of {asked.curve_steps} steps, not of {asked.steps}:"
            f" --curve-steps {asked.steps} changes it"
        ),
    )


def read_kinds(text: str) -> tuple[str, ...]:
    """``vectors,embeddings`` as two words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_betas(text: str) -> tuple[float, float]:
    """``0.9,0.95`` as the betas of AdamW.

    Raises:
        UsageError: they are not two numbers from 0 to below 1.
    """
    words = text.split(",")
    try:
        one, other = (float(word) for word in words)
    except ValueError:
        one = other = -1.0
    if not (0.0 <= one < 1.0 and 0.0 <= other < 1.0):
        raise UsageError(
            f"--betas {text[:40]!r} are not two numbers from 0 to below 1", hint="--betas 0.9,0.95"
        )
    return one, other


def read_data(words: Sequence[str], *, flag: str = "--data") -> tuple[tuple[str, Path], ...]:
    """``["tokens.npy", "encoder=source.npy"]`` as sequences and files.

    Raises:
        UsageError: a sequence is named twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        sequence, file = (name, path) if equals and name.isidentifier() else (TEXT, word)
        if sequence in found:
            raise UsageError(
                f"{flag} gives two files of {sequence}", hint="one file of tokens for each sequence"
            )
        found[sequence] = Path(file)
    return tuple(found.items())


main = verb(run, name="run")
