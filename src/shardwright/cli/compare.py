"""``shardwright compare``: several strategies or clusters side by side."""

from __future__ import annotations

from typing import Annotated

from shardwright.api import comparisons
from shardwright.cli import flags, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.files.text import to_text
from shardwright.report.comparison import comparison_document, render_comparison
from shardwright.search.simulation import strategy_text
from shardwright.search.summary import answer_line

Clusters = Annotated[list[str], typer.Argument(metavar="CLUSTER...", help="One or more, as `plan` takes them.")]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", help="A strategy; repeatable. Without any, the best plan of each cluster is searched.")
]
Tokens = Annotated[str, typer.Option("--tokens", metavar="N", help="Tokens to train on, such as 15T: shows days and cost.")]
Prices = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="[NAME=]USD", help="Dollars a device-hour, of all or of an accelerator or instance. Repeatable."),
]


def compare(
    model: flags.Model,
    clusters: Clusters,
    *,
    strategy: Strategies = None,
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch = "",
    global_batch_tokens: flags.GlobalBatchTokens = "",
    tokens: Tokens = "",
    price: Prices = None,
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
    """Predict strategies of MODEL, or the best plans, on one CLUSTER or several side by side, with what training costs."""
    texts = [screen.given(text) for text in strategy or ()]
    if len(clusters) * max(len(texts), 1) < 2:
        raise UsageError("compare needs two strategies or clusters, or more", hint='give --strategy "..." once for each, or clusters')
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
        best = min((row.simulation for row in found), key=lambda one: one.prediction.step_time_s)
        screen.write(answer_line(strategy_text(best), step_time_s=best.prediction.step_time_s))
    else:
        screen.show(render_comparison(found))


main = verb(compare, name="compare")
