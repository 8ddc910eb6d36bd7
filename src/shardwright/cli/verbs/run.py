"""``shardwright run``: train under a plan on PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from shardwright.api import prove_or_train_plan as run_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem, stored_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, values_by_flag
from shardwright.cli.parsing.option_groups_of_run_verb import (
    CHECKPOINTS,
    DATA,
    CheckpointFlags,
    EvaluationFlags,
    ExecutionFlags,
    OptimizerFlags,
    RecordFlags,
    RouterFlags,
    help_with_choices,
)
from shardwright.cli.parsing.run_verb_options_from_and_to_words import (
    absolute_file,
    absolute_path,
    command_line_words,
    options_on_command_line,
    read_kinds,
    run_options_of,
)
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError
from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint
from shardwright.execute.checkpoints.folder_lock import locked_folder
from shardwright.execute.checkpoints.stored_run_options import (
    changed_options,
    merge_stored_options,
    store_options,
    stored_options,
)
from shardwright.execute.launch.check_options_before_start import require_runnable
from shardwright.execute.launch.compare_run_facts_on_resume import (
    WORDS,
    compare_facts,
    facts_of,
    require_words,
    stored_facts,
)
from shardwright.execute.launch.end_with_launcher import end_with_launcher
from shardwright.execute.launch.metrics_file import add_line, metrics_line
from shardwright.execute.launch.run_options_and_report import (
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
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.files.trace_file import trace_text
from shardwright.report.screens.executed_training_run_screen import (
    evaluation_text,
    render_run,
    run_document,
    step_text,
)
from shardwright.search.answer_summary_text import answer_line


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
            rich_help_panel=DATA,
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
            help=help_with_choices("Differences from the run of --checkpoints to accept.", WORDS),
            rich_help_panel=CHECKPOINTS,
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
        "weights": absolute_path(checkpointing.weights),
        "profile": absolute_path(execution_flags.profile),
        "eval-data": [absolute_file(word) for word in evaluation.eval_data or ()],
    }
    is_resumed = checkpoints is not None and newest_checkpoint(checkpoints) is not None
    before = stored_options(checkpoints) if is_resumed else {}
    options = merge_stored_options(given, before, given=options_on_command_line(context, given))
    run_options = run_options_of(options, data=data)
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
            *command_line_words(options),
            *command_line_words({"json": form.as_json, "quiet": form.quiet, "debug": form.debug}),
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


main = verb(run, name="run")
