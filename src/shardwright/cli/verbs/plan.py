"""``shardwright plan``: find the best training plan of a search space, and prove it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwright.api import request_to_problem
from shardwright.api.searches import grid_search
from shardwright.cli import prediction_exit_code_and_quiet_line as verdict
from shardwright.cli.declare_engine_and_workers_options import EngineFlags
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Option, group
from shardwright.cli.parsing.parse_token_and_sequence_counts import AUTO
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import keyboard_interrupt
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.errors import UsageError
from shardwright.search.answer_summary_text import answer_line, misfit_text
from shardwright.search.parallel.engine_by_name import engine_of, require_engine
from shardwright.search.search_request import HEADROOM, SEARCH_MEMORY, TOP, Request
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import GIB

if TYPE_CHECKING:
    from shardwright.cli.terminal.additional_sections_and_json_fields_record import ExtraAnswers
    from shardwright.search.simulated_strategy import Simulation

Cost = Callable[["Simulation"], "ExtraAnswers"]
"""Function that makes additional sections of an answer."""


@group(shared_options.LIMITS)
class LimitFlags:
    """Options that limit the plan, and the search in time and memory."""

    max_devices: Annotated[
        int,
        Option("--max-devices", metavar="N", min=0, help="Most devices of a plan; 0 means all."),
    ] = 0
    use_all: Annotated[
        bool, Option("--use-all", help="Leave no device idle, even where that is slower.")
    ] = False
    headroom: Annotated[
        str,
        Option(
            "--headroom",
            metavar="PERCENT",
            help=(
                "Share of each device's memory that plans leave free, because predictions of"
                " memory are off by a few percent."
            ),
        ),
    ] = f"{HEADROOM:.0%}"
    budget: Annotated[
        str,
        Option(
            "--budget",
            metavar="USD",
            help="Most dollars per hour that all nodes of a plan cost together: 40.",
            show_default=False,
        ),
    ] = ""
    time_limit: Annotated[
        float,
        Option(
            "--time-limit",
            metavar="SECONDS",
            min=0.0,
            help="Stop searching after this many seconds; the answer then has a gap.",
        ),
    ] = inf
    search_memory: Annotated[
        str,
        Option(
            "--search-memory",
            metavar="GIB",
            help="Memory that the search may use, in GiB; it searches a larger space in parts.",
        ),
    ] = f"{SEARCH_MEMORY // GIB}GiB"


@group(shared_options.SEARCH)
class SearchFlags:
    """Options for the search space and the objective."""

    space: Annotated[
        str,
        Option(
            "--space",
            help=(
                "Plans to search. standard: grids of the usual values; exhaustive: grids of every"
                " legal value; joint: layers of each stage, its splits, recomputation and pipeline"
                " schedule together; joint-named: the same with only 1F1B and interleaved 1F1B;"
                " exact: every plan of a few layers."
            ),
        ),
    ] = "standard"
    lanes: Annotated[
        int,
        Option(
            "--lanes",
            metavar="N",
            min=1,
            help=(
                "Most lanes of a plan of --space exact. A lane is a group of devices that trains a"
                " share of the batch."
            ),
        ),
    ] = 1
    objective: Annotated[
        str,
        Option(
            "--objective",
            metavar="NAME",
            help=(
                "Quantity to minimise: time (seconds per step), cost (dollars per step), energy"
                " (joules per step), or pareto (the front of time and cost)."
            ),
        ),
    ] = "time"
    top: Annotated[
        int,
        Option(
            "--top",
            metavar="N",
            min=0,
            max=1000,
            help="Number of runners-up to certify and show; joint and exact searches have none.",
        ),
    ] = TOP
    scenarios: Annotated[
        str,
        Option(
            "--scenarios",
            metavar="FILE",
            help=(
                "YAML file of cluster conditions (busy network, slow nodes) with probabilities:"
                " find one plan for all of them."
            ),
            show_default=False,
        ),
    ] = ""
    tail: Annotated[
        float,
        Option(
            "--tail",
            metavar="LEVEL",
            min=0.0,
            max=1.0,
            help=(
                "Judge a plan for --scenarios by the mean over the slowest part of the time: 0 is"
                " all of it, 0.9 the slowest tenth, 1 the slowest scenario."
            ),
        ),
    ] = 0.0
    devices: Annotated[
        str,
        Option(
            "--devices",
            metavar="A..B",
            help=(
                "Plan on the first A, 2A, 4A .. B devices of CLUSTER instead, and show how step"
                " time and efficiency scale: 8..512, or 8,24,64."
            ),
            show_default=False,
        ),
    ] = ""
    critical_batch: Annotated[
        str,
        Option(
            "--critical-batch",
            metavar="TOKENS",
            help="Critical batch size in tokens per step, for --global-batch auto: 4M.",
            show_default="by a published law of model size and --tokens",
        ),
    ] = ""


def plan(
    model: shared_options.Model,
    cluster: shared_options.Cluster,
    *,
    job: shared_options.JobFlags,
    platform: shared_options.PlatformFlags,
    limits: LimitFlags,
    search: SearchFlags,
    pins: shared_options.PinFlags,
    processes: EngineFlags,
    training_cost: shared_options.CostFlags,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> int:
    """Find the fastest training plan for MODEL on CLUSTER, and prove that it is the fastest.

    No other plan in the search space is faster.
    """
    screen.check_writable(output)
    require_engine(processes.engine)
    automatic = job.global_batch.startswith(AUTO)
    _refuse_unused_options(search, automatic=automatic, output=output)
    tokens, prices = (
        parse_memory_and_cost.read_tokens(training_cost.tokens),
        parse_memory_and_cost.read_prices(training_cost.price),
    )
    if prices and not (tokens or search.devices):
        raise UsageError(
            "--price is for the cost of --tokens",
            hint="--tokens 15T; a search for cost takes the prices of the cluster",
        )
    request = _with_limits(
        shared_options.read_request(
            model,
            cluster,
            job=replace(job, global_batch="1") if automatic else job,
            platform=platform,
            pins=pins,
        ),
        limits,
        search,
    )
    if search.devices:
        trials = import_module("shardwright.cli.verbs.plan_several_device_counts_or_batches")
        trials.show_scaling(request, search.devices, tokens=tokens, prices=prices, form=form)
        return 0
    cost: Cost | None = None
    if automatic or tokens:
        request, cost = import_module(
            "shardwright.cli.verbs.plan_several_device_counts_or_batches"
        ).batch_and_cost(
            request,
            job.global_batch,
            critical=search.critical_batch,
            tokens=tokens,
            prices=prices,
            form=form,
        )
    method = request_to_problem.method_of(request)
    if method is request_to_problem.SearchMethod.GRID:
        return _plan_grids(
            request, time_limit=limits.time_limit, cost=cost, output=output, form=form
        )
    with engine_of(processes.engine, workers=processes.workers) as engine:
        code: int = import_module("shardwright.cli.verbs.plan_general").plan(
            request,
            method,
            time_limit=limits.time_limit,
            engine=engine,
            cost=cost,
            output=output,
            form=form,
        )
        return code


def _refuse_unused_options(search: SearchFlags, *, automatic: bool, output: Path | None) -> None:
    """Raise UsageError for options that the chosen search does not read."""
    if search.lanes > 1 and search.space != "exact":
        raise UsageError(
            f"--lanes {search.lanes} is for --space exact",
            hint="drop it: other spaces have as many lanes as they need",
        )
    if search.devices and output is not None:
        raise UsageError(
            "--devices shows several plans, and -o writes one",
            hint="plan once more with --max-devices N -o FILE",
        )
    if search.devices and automatic:
        raise UsageError("--devices compares plans of one batch", hint="--global-batch N")
    if search.critical_batch and not (automatic or search.devices):
        raise UsageError(
            "--critical-batch is for --global-batch auto", hint="drop it, or --global-batch auto"
        )


def _with_limits(request: Request, limits: LimitFlags, search: SearchFlags) -> Request:
    """The request with the limits, the space and the objective of its search."""
    return replace(
        request,
        max_devices=limits.max_devices,
        use_all=limits.use_all,
        headroom=parse_memory_and_cost.read_headroom(limits.headroom),
        budget=parse_memory_and_cost.read_budget(limits.budget),
        search_memory=parse_memory_and_cost.read_search_memory(limits.search_memory),
        space=search.space,
        lanes=search.lanes,
        objective=search.objective,
        top=search.top,
        scenarios=search.scenarios,
        tail=search.tail,
    )


def _plan_grids(
    request: Request,
    *,
    time_limit: float,
    cost: Cost | None,
    output: Path | None,
    form: shared_options.AnswerForm,
) -> int:
    """Search a space of grids and print the answer; returns the exit code."""
    prints_line = form.quiet and not form.as_json
    with keyboard_interrupt.stop_search_on_interrupt(), screen.progress(form) as report:
        answer = grid_search.plan(
            request,
            time_limit_s=time_limit,
            progress=report,
            sensitive=output is not None or not prints_line,
        )
    keyboard_interrupt.note_late_plan(waited=answer.waited)
    if output is not None or not prints_line:
        import_module("shardwright.cli.terminal.print_and_save_grid_search_answer").show(
            answer, cost=cost, output=output, form=form
        )
    prediction = answer.prediction
    if prints_line:
        # Not `verdict.simulation_line`: its simulation is not made for a line.
        strategy, misfit = print_grid(answer.grid), misfit_text(prediction)
        screen.write(answer_line(strategy, step_time_s=prediction.step_time_s, misfit=misfit))
    return keyboard_interrupt.exit_code_of_answer() or verdict.exit_code(prediction)


main = verb(plan, name="plan")
