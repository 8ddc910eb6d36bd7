"""``shardwright simulate``: time and memory of one strategy."""

from __future__ import annotations

from importlib import import_module

from rich.console import Group

from shardwright.api import simulations
from shardwright.cli import fit, flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.stored import file_text, prediction_document, stored_simulation
from shardwright.files.text import to_text
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.search.simulation import strategy_text
from shardwright.search.summary import answer_line, misfit_text


def simulate(
    model: flags.Model,
    cluster: flags.Cluster,
    *,
    strategy: flags.Strategy,
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch = "",
    global_batch_tokens: flags.GlobalBatchTokens = "",
    runtime: flags.RuntimeName = "",
    precision: flags.Precision = "",
    encoder_len: flags.EncoderLen = 0,
    image_tokens: flags.ImageTokens = 0,
    expert_imbalance: flags.ExpertImbalance = 1.0,
    dropout: flags.Dropout = False,
    gradient_wire: flags.GradientWire = "",
    train: flags.Train = "",
    teacher: flags.Teacher = "",
    profile: flags.ProfileFile = "",
    memory_reserve: flags.MemoryReserve = "0",
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict the step time and memory of MODEL on CLUSTER under one strategy; exit code 6 if it
    does not fit.
    """
    screen.check_writable(output)
    request = flags.read_request(locals())
    text = screen.given(strategy)
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING):
        found = simulations.simulation(request, strategy=text)
    if output is not None:
        screen.save(output, file_text(stored_simulation(found), output))
    if as_json:
        screen.write(to_text(prediction_document(found.prediction)))
    elif quiet:
        misfit = misfit_text(found.prediction, classes=found.classes)
        screen.write(
            answer_line(
                strategy_text(found), step_time_s=found.prediction.step_time_s, misfit=misfit
            )
        )
    else:
        shown = render_simulation(found, picture=simulations.small_picture(found))
        runs = (
            import_module("shardwright.cli.frameworks")
            .frameworks_of(stored_simulation(found))
            .sections
            if found.grid is None
            else ()
        )
        screen.show(Group(shown, *runs))
    raise typer.Exit(fit.exit_code(found.prediction))


main = verb(simulate, name="simulate")
