"""``shardwright run``: train under a plan on PyTorch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.api import execution
from shardwright.api.stored import stored_plan
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.errors import ShardwrightError, UsageError
from shardwright.execute.launch.alive import end_with_launcher
from shardwright.execute.launch.checked import require_runnable
from shardwright.execute.launch.launch import FOLDER, INTERRUPTED, is_rank, launch, write_error
from shardwright.execute.launch.metrics import add_line
from shardwright.execute.launch.run_report import BACKENDS, FORMATS, OWN, TEXT, RunOptions, RunStep
from shardwright.execute.state.folders import latest
from shardwright.execute.state.lock import held
from shardwright.execute.training.rate import CURVES
from shardwright.execute.training.spared import SPARED
from shardwright.files.plan_file import read_saved
from shardwright.files.text import to_text
from shardwright.files.trace_file import trace_text
from shardwright.report.run_face import render_run, run_document, step_text
from shardwright.search.summary import answer_line

DataFiles = Annotated[
    list[str],
    typer.Option("--data", metavar="[SEQUENCE=]FILE", help="Token file, as `shardwright tokenise` writes."),
]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Total number of steps, including those a checkpoint already has.")]
Weights = Annotated[Path | None, typer.Option("--weights", metavar="FOLDER", help="Hugging Face safetensors to start from.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option("--checkpoints", metavar="FOLDER", help="Save checkpoints here, and resume from the newest, whatever plan wrote it."),
]
Every = Annotated[int, typer.Option("--every", min=0, help="Steps between checkpoints; 0 means one at the end.")]


def run(
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
        str, typer.Option("--no-decay", metavar="KIND,..", help="; ".join(f"{name}: {what}" for name, what in SPARED.items()))
    ] = "",
    betas: Annotated[str, typer.Option("--betas", metavar="B1,B2", help="AdamW betas.")] = "0.9,0.95",
    eps: Annotated[float, typer.Option("--eps", min=0.0, help="AdamW epsilon.")] = 1e-8,
    curve: Annotated[str, typer.Option("--curve", help=f"Learning rate behind the warm-up: {', '.join(CURVES)}.")] = "constant",
    warmup: Annotated[int, typer.Option("--warmup", min=0, help="Steps in which the learning rate grows to --rate.")] = 0,
    least: Annotated[float, typer.Option("--least", min=0.0, max=1.0, help="Share of --rate that the last step has.")] = 0.0,
    keep: Annotated[int, typer.Option("--keep", min=0, help="Checkpoints to keep, the newest; 0 means all.")] = 0,
    metrics: Annotated[
        Path | None, typer.Option("--metrics", metavar="FILE", help="Add a line of JSON for every step to this file.")
    ] = None,
    clip: Annotated[float, typer.Option("--clip", min=0.0, help="Clip gradients to this norm; 0 means never.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the initial parameters, without --weights.")] = 0,
    on: Annotated[str, typer.Option("--on", help="Device type, cpu or cuda; by default an accelerator if there is one.")] = "",
    backend: Annotated[str, typer.Option("--backend", help="; ".join(f"{name}: {what}" for name, what in BACKENDS.items()))] = OWN,
    formats: Annotated[str, typer.Option("--formats", help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()))] = "job",
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace of the last step to this file, for ui.perfetto.dev.")
    ] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Shuffle the samples anew in every epoch.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1.0, help="Seconds to wait for another rank before giving up.")] = 300.0,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Train under PLAN, one rank per device, launched here unless torchrun did. Ctrl-C stops after the current step, with a checkpoint."""
    screen.check_writable(trace)
    saved = read_saved(path)
    stored = stored_plan(saved)
    options: dict[str, Any] = {
        "steps": steps,
        "weights": weights,
        "checkpoints": checkpoints,
        "every": every,
        "rate": rate,
        "decay": decay,
        "clip": clip,
        "eps": eps,
        "curve": curve,
        "warmup": warmup,
        "least": least,
        "keep": keep,
        "metrics": metrics,
        "seed": seed,
        "on": on,
        "backend": backend,
        "formats": formats,
    }
    asked = RunOptions(
        data=read_data(data),
        shuffle=shuffle,
        trace=trace is not None,
        timeout_s=timeout,
        betas=read_betas(betas),
        no_decay=read_kinds(no_decay),
        **options,
    )
    ranks = execution.num_ranks(stored)
    if ranks > 1 and not is_rank(os.environ):
        files = [word for one in data for word in ("--data", one)]
        valued = {**options, "trace": trace, "timeout": timeout, "betas": betas, "no-decay": no_decay}
        given = [word for name, value in valued.items() if value not in (None, "") for word in (f"--{name}", str(value))]
        switches = [flag for flag, is_on in (("--shuffle", shuffle), ("--json", as_json), ("--quiet", quiet), ("--debug", debug)) if is_on]
        require_runnable(stored.problem, asked)
        with held(checkpoints) if checkpoints is not None else nullcontext():
            _say_resumed(checkpoints, quiet=quiet or as_json)
            raise typer.Exit(launch(["run", str(path), *files, *given, *switches], ranks=ranks))
    if FOLDER in os.environ:
        end_with_launcher(os.environ)
    else:
        _say_resumed(checkpoints, quiet=quiet or as_json)
    first = os.environ.get("RANK", "0") == "0"
    tokens = stored.problem.job.tokens_per_step

    def watch(step: RunStep) -> None:
        if metrics is not None:
            add_line(metrics, step, tokens=tokens, rate=rate * asked.rates.share(step.step))
        if not quiet and not as_json:
            screen.note(step_text(step, steps=steps, tokens=tokens))

    try:
        report = execution.run(stored, asked, watch=watch)
    except ShardwrightError as error:
        if write_error(error, os.environ):
            raise typer.Exit(error.exit_code) from error
        raise
    except Exception as error:
        text = " ".join(f"rank {os.environ.get('RANK', '0')}: unexpected {type(error).__name__}: {error}".split())
        write_error(ShardwrightError(text[:400], hint="this is a bug; run again with --debug for the traceback"), os.environ)
        raise
    if first and trace is not None and report.trace is not None:
        screen.save(trace, trace_text(report.trace))
    if first:
        if as_json:
            screen.write(to_text(run_document(report)))
        elif quiet:
            screen.write(answer_line(f"loss {report.steps[-1].loss:.6f}", step_time_s=report.step_s) if report.steps else "")
        else:
            screen.show(render_run(report, cluster=stored.cluster))
    if report.stopped:
        raise typer.Exit(INTERRUPTED)


def _say_resumed(checkpoints: Path | None, *, quiet: bool) -> None:
    newest = latest(checkpoints) if checkpoints is not None else None
    if newest is not None and not quiet and os.environ.get("RANK", "0") == "0":
        screen.note(f"going on from {newest}")


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
        raise UsageError(f"--betas {text[:40]!r} are not two numbers from 0 to below 1", hint="--betas 0.9,0.95")
    return one, other


def read_data(words: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """``["tokens.npy", "encoder=source.npy"]`` as sequences and files.

    Raises:
        UsageError: a sequence is named twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        sequence, file = (name, path) if equals and name.isidentifier() else (TEXT, word)
        if sequence in found:
            raise UsageError(f"--data gives two files of {sequence}", hint="one file of tokens for each sequence")
        found[sequence] = Path(file)
    return tuple(found.items())


main = verb(run, name="run")
