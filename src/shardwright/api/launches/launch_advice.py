"""Advice on a user's launch: its predicted step, faster changes, and the best strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from shardwright.api.launches.step_gains_of_bf16_and_no_dropout import is_repaired, job_causes
from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.errors import InfeasibleError, UsageError
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    PlanToExport,
    export_files,
)
from shardwright.frameworks.export.plan_runtime_options_as_flags import flag_pairs
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import (
    launch_of_files,
    read_launch,
    settings_of_files,
)
from shardwright.frameworks.registry import READERS, STRATEGY_FLAGS, TARGETS
from shardwright.hardware.cluster import Cluster
from shardwright.program.strategy_rule_violations import grid_violations
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress
from shardwright.runtime.list_and_set_runtime_options import offered_values
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order
from shardwright.runtime.parse_launch_arguments import ON
from shardwright.search.advice_answer import Advice, Change
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.gain_of_unsearched_options import LEAST_GAIN, with_helping_options
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.neighbour_strategies import one_change, simulated_change
from shardwright.search.plan_against_strategy_result import fullest
from shardwright.search.search_answer import Answer
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid

NUM_CHANGES = 3
"""Largest number of changes in the advice."""


def read_request(
    paths: Sequence[str],
    request: Request,
    *,
    cluster: Cluster,
    framework: str = "",
    given: Mapping[str, str] | None = None,
) -> tuple[Launch, Request]:
    """Read a launch from files; returns the launch and the completed request for its job.

    Args:
        request: has the model and the cluster; its other values override values in the files.
        cluster: the cluster that `request` names.
        framework, given: as `read_launch`.

    Raises:
        DataError: the files cannot be read.
        UsageError: neither the files nor the request have the length of a sample or the batch.
    """
    return _with_job(
        read_launch(paths, framework=framework, given=given, **_platform(request, cluster)), request
    )


def read_texts(
    files: Sequence[tuple[str, str]],
    request: Request,
    *,
    cluster: Cluster,
    framework: str = "",
    given: Mapping[str, str] | None = None,
) -> tuple[Launch, Request]:
    """Read a launch from (name, text) of its files, as `read_request`; no file is opened."""
    return _with_job(
        launch_of_files(files, framework=framework, given=given, **_platform(request, cluster)),
        request,
    )


def _platform(request: Request, cluster: Cluster) -> dict[str, Any]:
    """Keyword arguments of a reader of launches: model, devices, devices a node and runtime."""
    from shardwright.model.requested_model_with_teacher import requested_model

    return {
        "model": requested_model(request.model, train=request.train, teacher=request.teacher),
        "devices": cluster.num_devices,
        "node_devices": min(group.kind.num_devices for group in cluster.groups),
        "runtime": request.runtime,
    }


def _with_job(launch: Launch, request: Request) -> tuple[Launch, Request]:
    """Fill a request's missing job values from a launch, and the launch's from it; returns both."""
    length, batch = request.seq_len or launch.seq_len, request.global_batch or launch.global_batch
    if not (length and batch):
        raise UsageError(
            "the launch does not say "
            + ("how long a sample is" if not length else "how many samples a step has"),
            hint="--seq-len and --global-batch say it",
        )
    completed = replace(
        request,
        seq_len=length,
        global_batch=batch,
        runtime=launch.runtime,
        precision=request.precision or launch.precision,
        dropout=request.dropout or launch.dropout,
        train=request.train or launch.train,
        pins=request.pins or launch.possible,
    )
    completed = with_defaults(completed)
    launch = _without_unsupported_kernels(launch, completed)
    return replace(
        launch, seq_len=length, global_batch=batch, precision=completed.precision
    ), completed


def _without_unsupported_kernels(launch: Launch, request: Request) -> Launch:
    """Drop kernel options that the launch's devices do not offer, and add a note about them."""
    kernel_options = [
        (name, value) for name, value in launch.grid.options if BY_NAME[name].of_device
    ]
    offered = offered_values(problem_of(request).runtime) if kernel_options else {}
    unsupported = [
        (name, value) for name, value in kernel_options if value not in offered.get(name, ())
    ]
    if not unsupported:
        return launch
    options = tuple(pair for pair in launch.grid.options if pair not in unsupported)
    words = ", ".join(f"{name}={value}" for name, value in unsupported)
    note = f"{words} is no kernel of these devices: their own is priced"
    return replace(launch, grid=replace(launch.grid, options=options), notes=(*launch.notes, note))


def advise(launch: Launch, request: Request, *, progress: Progress | None = None) -> Advice:
    """Simulate a launch, rank single changes by the time they save, and search the best strategy.

    The best strategy is certified.

    Every change of one decision is simulated, so none gains more than those listed; the best
    strategy is that of the standard space under the launch's numerics, with a proof that none there
    is faster. `everything` is the fastest of the best strategy, the launch and its best change,
    each with every option that helps: never slower than a change of one decision.

    Raises:
        As `problem_of`.
    """
    problem, grid = problem_of(request), launch.grid
    facts = facts_of(problem)
    broken = (*launch.refused, *grid_violations(problem, grid))
    now = (
        None
        if broken
        else simulate_legal_strategy(request, problem, name=print_grid(grid), grid=grid)
    )
    numeric_options = tuple((name, value) for name, value in grid.options if BY_NAME[name].numerics)
    searched = replace(
        request,
        runtime=" ".join([launch.runtime, *(f"{name}={value}" for name, value in numeric_options)]),
    )
    space, capacity = space_of(request, problem, facts), capacity_of(request, problem)
    best = _search_best(searched, facts, capacity=capacity, progress=progress)
    changes, considered = _best_single_changes(
        problem,
        space,
        facts,
        launch,
        now=now.prediction.step_time_s if now else 0.0,
        capacity=capacity,
    )
    changes = [change for change in changes if is_repaired(launch, change[1], problem.model)]
    everything = None
    if best is not None:
        # What a search sets to the runtime's own value is not set.
        options = in_vocabulary_order(
            pair
            for pair in {**dict(numeric_options), **dict(best.grid.options)}.items()
            if pair not in problem.runtime.own
        )
        starts = [
            (replace(best.grid, options=options), best.prediction.step_time_s),
            *((changed_grid, s) for _, changed_grid, s in changes[:1]),
        ]
        if now is not None and now.prediction.fits and fullest(now.prediction).reserved <= capacity:
            starts.insert(0, (grid, now.prediction.step_time_s))
        fastest_grid, seconds = _with_all_helping_options(problem, starts, capacity=capacity)
        everything = _change(
            problem, request, launch, print_grid(fastest_grid), fastest_grid, seconds, now
        )
    return Advice(
        broken=broken,
        now=now,
        changes=tuple(
            _change(problem, request, launch, text, changed_grid, seconds, now)
            for text, changed_grid, seconds in changes
        ),
        considered=considered,
        best=best,
        everything=everything,
        causes=job_causes(launch, request, now),
    )


def _with_all_helping_options(
    problem: Problem, starts: Sequence[tuple[Grid, float]], *, capacity: int
) -> tuple[Grid, float]:
    """Add every option that helps to each strategy; returns the fastest (strategy, step seconds).

    Args:
        starts: strategies with the seconds of their steps.
    """
    improved = [
        with_helping_options(problem, grid, step_time_s=seconds, capacity=capacity)
        for grid, seconds in starts
    ]
    return min(improved, key=lambda strategy: strategy[1])


def _search_best(
    request: Request, facts: GridFacts, *, capacity: int, progress: Progress | None
) -> Answer | None:
    """Search the launch's space of grids: the certified best strategy; None if nothing fits."""
    problem = problem_of(request)
    try:
        answer = find(
            problem,
            space_of(request, problem, facts),
            facts,
            capacity=capacity,
            top=1,
            hints=False,
            progress=progress,
        )
    except InfeasibleError:
        return None
    return replace(answer, request=request, plan=plan_of_grid(problem, answer.grid))


def _best_single_changes(
    problem: Problem, space: Space, facts: GridFacts, launch: Launch, *, now: float, capacity: int
) -> tuple[list[tuple[str, Grid, float]], int]:
    """(at most 3 best changes as (text, grid, step s), one an axis or option; number simulated)."""
    best_of_decision: dict[str, tuple[float, str, Grid]] = {}
    considered = 0
    for text, changed_grid in one_change(problem, space, facts, launch.grid):
        result = simulated_change(problem, changed_grid, capacity=inf)
        if result is None:
            continue
        considered += 1
        if not result.fits_in(capacity) or (now and result.step_time_s > now * (1 - LEAST_GAIN)):
            continue
        decision = text.rstrip("0123456789").partition("=")[0]
        best_of_decision[decision] = min(
            best_of_decision.get(decision, (float("inf"), text, changed_grid)),
            (result.step_time_s, text, changed_grid),
            key=lambda ranked_change: ranked_change[0],
        )
    ranked = sorted(best_of_decision.values(), key=lambda ranked_change: ranked_change[0])[
        :NUM_CHANGES
    ]
    return [(text, changed_grid, seconds) for seconds, text, changed_grid in ranked], considered


def _change(
    problem: Problem,
    request: Request,
    launch: Launch,
    text: str,
    grid: Grid,
    seconds: float,
    now: Simulation | None,
) -> Change:
    """Describe a strategy as a change of the launch: share of time gained, settings to add, remove.

    No settings are compared for a launch that cannot run.
    """
    if now is None:
        return Change(text=text, grid=grid, step_time_s=seconds, gain=0.0)
    before, after = (
        _settings(problem, request, launch, launch.grid),
        _settings(problem, request, launch, grid),
    )
    return Change(
        text=text,
        grid=grid,
        step_time_s=seconds,
        gain=1 - seconds / now.prediction.step_time_s,
        added=tuple(pair for pair in after.items() if before.get(pair[0]) != pair[1]),
        removed=tuple(pair for pair in before.items() if after.get(pair[0]) != pair[1]),
    )


def _settings(problem: Problem, request: Request, launch: Launch, grid: Grid) -> Mapping[str, str]:
    """(name -> value) settings of a strategy in the launch's framework; empty without exporter.

    Where `export` writes the files of another framework with the same settings, the flags of the
    strategy's options follow.
    """
    reader = READERS.load(launch.framework)
    if reader.settings_of is not None:
        settings = reader.settings_of(
            grid, runtime=launch.runtime, global_batch=problem.job.global_batch
        )
        if settings:
            return settings
    if reader.target not in TARGETS:
        return {}
    plan = plan_of_grid(problem, grid)
    given = PlanToExport(
        name="advice", cluster=request.cluster, problem=problem, plan=plan, grid=grid, table=None
    )
    files = export_files(TARGETS.load(reader.target), given)
    exported_settings = dict(
        settings_of_files((Path(export_file.name).name, export_file.text) for export_file in files)
    )
    if not files and reader.target in STRATEGY_FLAGS:
        exported_settings = {
            name: value or ON for name, value in STRATEGY_FLAGS.load(reader.target)(given)
        }
    if reader.target == launch.framework:
        return exported_settings
    values = {**dict(problem.runtime.own), **dict(grid.options)}
    flags = (
        offer.flag for offer in problem.runtime.offers if values.get(offer.option) == offer.value
    )
    worded = {reader.own_name(name): value for name, value in exported_settings.items()}
    return worded | {
        n: v for flag in flags for n, v in flag_pairs(flag) if reader.own_name(n) not in worded
    }
