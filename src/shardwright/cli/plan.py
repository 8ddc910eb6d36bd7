"""``shardwright plan``: the best training plan of a space, and the proof."""

from __future__ import annotations

from importlib import import_module
from math import inf
from typing import Annotated

import typer

from shardwright.api import grids
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.files.stored import plan_document
from shardwright.files.text import to_text
from shardwright.report.terminal import render_answer
from shardwright.search.request import HEADROOM
from shardwright.strategy.text.grid_notation import print_grid

GENERAL = ("joint", "joint-named", "exact")
"""Spaces of general plans; their search is loaded where one is asked for."""
SPACE_HELP = (
    "standard; exhaustive: every value that is legal in principle; joint: stage cut, splits of each stage, recompute and found orders "
    "together; joint-named: the same with 1F1B and interleaved 1F1B alone; exact: every plan of one lane of a few layers."
)


def plan(
    model: flags.Model,
    cluster: flags.Cluster,
    *,
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch,
    pin: flags.Pins = None,
    exclude: flags.Excludes = None,
    max_devices: flags.MaxDevices = 0,
    use_all: flags.UseAll = False,
    memory_reserve: flags.MemoryReserve = "0",
    headroom: flags.Headroom = f"{HEADROOM:.0%}",
    top: flags.Top = 3,
    runtime: flags.RuntimeName = "",
    precision: flags.Precision = "",
    encoder_len: flags.EncoderLen = 0,
    image_tokens: flags.ImageTokens = 0,
    profile: flags.ProfileFile = "",
    space: Annotated[str, typer.Option("--space", help=SPACE_HELP)] = "standard",
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.0, help="Seconds after which the search stops early.")] = inf,
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Find the best training plan of MODEL on CLUSTER, and prove that no other of the space is faster."""
    screen.check_writable(output)
    request = flags.read_request(locals())
    if space in GENERAL:
        general = import_module("shardwright.cli.plan_general")
        general.plan(request, time_limit=time_limit, output=output, as_json=as_json, quiet=quiet)
        return
    with screen.progress(quiet=quiet or as_json) as report:
        answer = grids.plan(request, time_limit_s=time_limit, progress=report)
    document = plan_document(answer)
    if output is not None:
        screen.save(output, to_text(document))
    if as_json:
        screen.write(to_text({**document, "search_time_s": answer.search_time_s}))
    elif quiet:
        screen.write(print_grid(answer.grid) + "\n")
    else:
        screen.show(render_answer(answer))


main = verb(plan, name="plan")
