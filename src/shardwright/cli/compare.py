"""``shardwright compare``: several strategies side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.api import simulations
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.files.stored import simulation_document
from shardwright.files.text import to_text
from shardwright.report.terminal import render_comparison
from shardwright.search.simulation import strategy_text
from shardwright.search.summary import answer_line


def compare(
    model: flags.Model,
    cluster: flags.Cluster,
    *,
    strategy: Annotated[list[str], typer.Option("--strategy", help="Strategy to compare, as for simulate; give two or more.")],
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch = "",
    global_batch_tokens: flags.GlobalBatchTokens = "",
    runtime: flags.RuntimeName = "",
    precision: flags.Precision = "",
    encoder_len: flags.EncoderLen = 0,
    image_tokens: flags.ImageTokens = 0,
    train: flags.Train = "",
    profile: flags.ProfileFile = "",
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Predict the step time and memory of MODEL on CLUSTER under several strategies, side by side."""
    if len(strategy) < 2:
        raise UsageError("compare needs two strategies or more", hint='give --strategy "..." once for each')
    request = flags.read_request(locals())
    texts = [screen.given(text) for text in strategy]
    with screen.progress(quiet=quiet or as_json, doing=screen.SIMULATING):
        found = [simulations.simulation(request, strategy=text) for text in texts]
    if as_json:
        screen.write(to_text({"strategies": [simulation_document(one) for one in found]}))
    elif quiet:
        best = min(found, key=lambda one: one.prediction.step_time_s)
        screen.write(answer_line(strategy_text(best), step_time_s=best.prediction.step_time_s))
    else:
        screen.show(render_comparison(found))


main = verb(compare, name="compare")
