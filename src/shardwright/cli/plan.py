"""``shardwright plan``: the best training plan of a space, and the proof."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from shardwright.api import grids, problems
from shardwright.cli import fit, flags, interrupt, screen
from shardwright.cli import light_typer as typer
from shardwright.cli.command import verb
from shardwright.errors import UsageError
from shardwright.search.engine.choose import PROCESSES, engine_of, require_engine
from shardwright.search.request import HEADROOM, SEARCH_MEMORY, Request
from shardwright.search.summary import answer_line, misfit_text
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import GIB

if TYPE_CHECKING:
    from shardwright.cli.beside import Beside
    from shardwright.search.simulation import Simulation

AUTO: Final = "auto"
Cost = Callable[["Simulation"], "Beside"]
"""What is shown beside an answer."""
SPACE_HELP = (
    "What is searched. standard: grids of the usual values; exhaustive: grids of every legal value;"
    " joint: layers of each stage, its splits, recomputation and pipeline schedule together;"
    " joint-named: the same with only 1F1B and interleaved 1F1B; exact: every plan of a few layers."
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
        typer.Option(
            "--lanes",
            metavar="N",
            min=1,
            help="Most lanes of a plan of --space exact: groups of devices that share the batch.",
        ),
    ] = 1,
    devices: flags.ScaledDevices = "",
    critical_batch: flags.CriticalBatch = "",
    tokens: flags.Tokens = "",
    price: flags.Prices = None,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            min=0.0,
            help="Stop searching after this many seconds; the answer then has a gap.",
        ),
    ] = inf,
    engine: flags.EngineName = PROCESSES,
    workers: flags.Workers = 0,
    output: flags.Output = None,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Find the fastest training plan for MODEL on CLUSTER, and prove that no other plan in the
    search space is faster.
    """
    screen.check_writable(output)
    require_engine(engine)
    if lanes > 1 and space != "exact":
        raise UsageError(
            f"--lanes {lanes} is for --space exact",
            hint="drop it: other spaces have as many lanes as they need",
        )
    given = locals()
    if devices:
        _scale(given)
        return
    request, cost = _asked(given)
    method = problems.method_of(request)
    shown: dict[str, Any] = {"cost": cost, "output": output, "as_json": as_json, "quiet": quiet}
    if method is problems.Method.GRID:
        _plan_grids(request, time_limit=time_limit, **shown)
    with engine_of(engine, workers=workers) as working:
        import_module("shardwright.cli.plan_general").plan(
            request, method, time_limit=time_limit, engine=working, **shown
        )


def _plan_grids(
    request: Request,
    *,
    time_limit: float,
    cost: Cost | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search a space of grids, show the answer, and end the program with its exit code."""
    with interrupt.stopping(), screen.progress(quiet=quiet or as_json) as report:
        shown = output is not None or as_json or not quiet
        answer = grids.plan(request, time_limit_s=time_limit, progress=report, sensitive=shown)
    interrupt.note(waited=answer.waited)
    if shown:
        import_module("shardwright.cli.plan_screen").show(
            answer, cost=cost, output=output, as_json=as_json, quiet=quiet
        )
    found = answer.prediction
    if quiet and not as_json:
        screen.write(
            answer_line(
                print_grid(answer.grid), step_time_s=found.step_time_s, misfit=misfit_text(found)
            )
        )
    raise typer.Exit(interrupt.code() or fit.exit_code(found))


def _scale(given: Mapping[str, Any]) -> None:
    """``plan --devices A..B``: a table, and no plan file."""
    if given["output"] is not None:
        raise UsageError(
            "--devices shows several plans, and -o writes one",
            hint="plan once more with --max-devices N -o FILE",
        )
    if given["global_batch"].startswith(AUTO):
        raise UsageError("--devices compares plans of one batch", hint="--global-batch N")
    trials = import_module("shardwright.cli.trials")
    tokens, prices = flags.read_tokens(given["tokens"]), flags.read_prices(given["price"])
    shown = {name: given[name] for name in ("as_json", "quiet")}
    trials.show_scaling(
        flags.read_request(given), given["devices"], tokens=tokens, prices=prices, **shown
    )


def _asked(given: Mapping[str, Any]) -> tuple[Request, Cost | None]:
    """The request with its batch chosen, and what is shown beside the answer: how the batch was
    chosen, what training costs.
    """
    tokens, prices, text = (
        flags.read_tokens(given["tokens"]),
        flags.read_prices(given["price"]),
        given["global_batch"],
    )
    if prices and not tokens:
        raise UsageError(
            "--price is for the cost of --tokens",
            hint="--tokens 15T; a search for cost takes the prices of the cluster",
        )
    automatic = text.startswith(AUTO)
    if given["critical_batch"] and not automatic:
        raise UsageError(
            "--critical-batch is for --global-batch auto", hint="drop it, or --global-batch auto"
        )
    if not (automatic or tokens):
        return flags.read_request(given), None
    trials = import_module("shardwright.cli.trials")
    request = flags.read_request({**given, "global_batch": "1"} if automatic else given)
    chosen = trials.NOTHING
    if automatic:
        silent = given["quiet"] or given["as_json"]
        batch, chosen = trials.choose_batch(
            request, text, critical=given["critical_batch"], tokens=tokens, quiet=silent
        )
        request = replace(request, global_batch=batch)
    return (
        request,
        lambda simulation: chosen + trials.training_cost(simulation, tokens=tokens, prices=prices),
    )


main = verb(plan, name="plan")
