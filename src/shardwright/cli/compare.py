"""``shardwright compare``: strategies or clusters side by side, one or several."""

from __future__ import annotations

from typing import Annotated

from shardwright.api import comparisons
from shardwright.cli import fit, flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.files.text import to_text
from shardwright.report.screens.comparison_screen import (
    comparison_document,
    ranked,
    render_comparison,
)
from shardwright.search.simulation import strategy_text
from shardwright.search.summary import answer_line, misfit_text

Clusters = Annotated[
    list[str], typer.Argument(metavar="CLUSTER...", help="One or more, as `plan` takes them.")
]
Strategies = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        help="A strategy; repeatable. Without any, the best plan of each cluster is searched.",
    ),
]


def compare(
    model: flags.Model,
    clusters: Clusters,
    *,
    strategy: Strategies = None,
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch = "",
    global_batch_tokens: flags.GlobalBatchTokens = "",
    tokens: flags.Tokens = "",
    price: flags.Prices = None,
    pin: flags.Pins = None,
    exclude: flags.Excludes = None,
    memory_reserve: flags.MemoryReserve = "0",
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
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict strategies of MODEL, or the best plan of each CLUSTER, side by side, with what
    training costs; exit code 6 if none fits.
    """
    texts = [screen.given(text) for text in strategy or ()]
    request = flags.read_request(locals() | {"cluster": clusters[0]})
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING) as report:
        found = comparisons.compare(
            request,
            clusters=clusters,
            strategies=texts,
            tokens=flags.read_tokens(tokens),
            prices=flags.read_prices(price),
            progress=report,
        )
    if as_json:
        screen.write(to_text(comparison_document(found)))
    elif quiet:
        best = ranked(found)[0].simulation
        misfit = misfit_text(best.prediction, classes=best.classes)
        screen.write(
            answer_line(strategy_text(best), step_time_s=best.prediction.step_time_s, misfit=misfit)
        )
    else:
        screen.show(render_comparison(found))
    raise typer.Exit(fit.exit_code(*(row.simulation.prediction for row in found)))


main = verb(compare, name="compare")
