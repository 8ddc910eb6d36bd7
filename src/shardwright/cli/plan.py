"""``shardwright plan``: the best training plan of a space, and the proof."""

from __future__ import annotations

from importlib import import_module
from math import inf
from typing import Annotated

from shardwright.api import grids, problems
from shardwright.cli import flags, interrupt, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.search.engine.choose import PROCESSES, engine_of, require_engine
from shardwright.search.request import HEADROOM, SEARCH_MEMORY
from shardwright.search.summary import answer_line
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import GIB

SPACE_HELP = (
    "What is searched. standard: grids of the usual values; exhaustive: grids of every legal value; joint: layers of each stage, its "
    "splits, recomputation and pipeline schedule together; joint-named: the same with only 1F1B and interleaved 1F1B; exact: every plan of "
    "a few layers."
)


def plan(
    model: flags.Model,
    cluster: flags.Cluster,
    *,
    seq_len: flags.SeqLen,
    global_batch: flags.GlobalBatch = "",
    global_batch_tokens: flags.GlobalBatchTokens = "",
    pin: flags.Pins = None,
    exclude: flags.Excludes = None,
    max_devices: flags.MaxDevices = 0,
    use_all: flags.UseAll = False,
    memory_reserve: flags.MemoryReserve = "0",
    headroom: flags.Headroom = f"{HEADROOM:.0%}",
    search_memory: flags.SearchMemory = f"{SEARCH_MEMORY // GIB}GiB",
    top: flags.Top = 3,
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
    objective: flags.Objective = "time",
    budget: flags.Budget = "",
    scenarios: flags.Scenarios = "",
    tail: flags.Tail = 0.0,
    space: Annotated[str, typer.Option("--space", help=SPACE_HELP)] = "standard",
    lanes: Annotated[
        int,
        typer.Option("--lanes", metavar="N", min=1, help="Most lanes of a plan of --space exact: groups of devices that share the batch."),
    ] = 1,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", metavar="SECONDS", min=0.0, help="Stop searching after this many seconds; the answer then has a gap."),
    ] = inf,
    engine: flags.EngineName = PROCESSES,
    workers: flags.Workers = 0,
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Find the fastest training plan for MODEL on CLUSTER, and prove that no other plan in the search space is faster."""
    screen.check_writable(output)
    require_engine(engine)
    request = flags.read_request(locals())
    if lanes > 1 and space != "exact":
        raise UsageError(f"--lanes {lanes} is for --space exact", hint="drop it: other spaces have as many lanes as they need")
    method = problems.method_of(request)
    if method is not problems.Method.GRID:
        general = import_module("shardwright.cli.plan_general")
        with engine_of(engine, workers=workers) as working:
            general.plan(request, method, time_limit=time_limit, engine=working, output=output, as_json=as_json, quiet=quiet)
        return
    with interrupt.stopping(), screen.progress(quiet=quiet or as_json) as report:
        shown = output is not None or as_json or not quiet
        answer = grids.plan(request, time_limit_s=time_limit, progress=report, sensitive=shown)
    interrupt.note(waited=answer.waited)
    if shown:
        import_module("shardwright.cli.plan_screen").show(answer, output=output, as_json=as_json, quiet=quiet)
    if quiet and not as_json:
        screen.write(answer_line(print_grid(answer.grid), step_time_s=answer.prediction.step_time_s))
    raise typer.Exit(interrupt.code())


main = verb(plan, name="plan")
