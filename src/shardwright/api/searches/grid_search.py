"""Search for the best grid of a space, and repeat the search to check a stored answer."""

from __future__ import annotations

import random
from dataclasses import replace
from math import sqrt

from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    problem_of,
    space_of,
    with_defaults,
)
from shardwright.api.searches.nearby_batches_and_devices import suggest_nearby
from shardwright.files.compare_documents import require_same
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    document_of,
    stored_answer,
)
from shardwright.hardware.failure_rate_storage_restart import job_reliability
from shardwright.hardware.scale_network_limit_devices_reserve_memory import scale_network
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.progress_callback import Progress, beside
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.find_best_grid import answer_of, search_and_answer
from shardwright.search.grid.members.grid_search_space import Space, option_part_of_grid
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.grid.search_by_mesh_result import Searched
from shardwright.search.grid.verify_certificate import Recheck, recheck
from shardwright.search.search_answer import Answer, Goodput, Nearby, Sensitivity
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import STOP, Limit, limit_of
from shardwright.simulator.simulate_plan import plan_of_grid, simulate_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.units import GIGA

NOTABLE_DEVICES = 512
_SLOWER_NETWORK = "10 % less bandwidth between nodes"


def plan(
    request: Request,
    *,
    time_limit_s: float = float("inf"),
    progress: Progress | None = None,
    sensitive: bool = True,
) -> Answer:
    """Search the certified best grid of a request, with alternatives, sensitivity and goodput.

    The sensitivity is the effect of 10 % less network bandwidth; it is computed for a search
    without a time limit if `sensitive`.

    Raises:
        InfeasibleError: nothing fits.
    """
    request = with_defaults(request)
    problem = problem_of(request)
    facts = facts_of(problem)
    space = space_of(request, problem, facts)
    capacity = capacity_of(request, problem)
    answer, searched = search_and_answer(
        problem,
        space,
        facts,
        capacity=capacity,
        top=request.top + 1,
        limit=limit_of(time_limit_s),
        memory=request.search_memory,
        progress=progress,
    )
    finished_search = (
        searched
        if sensitive and time_limit_s == float("inf") and not answer.certificate.stopped_at
        else None
    )
    return _completed(
        request, problem, space, facts, answer, searched=finished_search, progress=progress
    )


def _completed(
    request: Request,
    problem: Problem,
    space: Space,
    facts: GridFacts,
    answer: Answer,
    *,
    searched: Searched | None,
    progress: Progress | None,
) -> Answer:
    """Add sensitivity, nearby sizes, goodput and the general plan to a grid search's answer.

    Sensitivity and nearby sizes are left out after Ctrl-C or without a finished search.
    """
    sensitivity: Sensitivity | None = None
    nearby_problems: tuple[Nearby, ...] = ()
    if searched is not None:
        sensitivity = _sensitivity(
            request,
            problem,
            option_part_of_grid(space, answer.grid),
            facts,
            answer.grid,
            searched,
            beside(progress, _SLOWER_NETWORK),
        )
        nearby_problems = suggest_nearby(
            request, problem, answer, progress=beside(progress, "other batches and devices")
        )
    return replace(
        answer,
        sensitivity=None if STOP.is_set() else sensitivity,
        nearby=() if STOP.is_set() else nearby_problems,
        goodput=(
            _goodput(problem, answer) if problem.cluster.num_devices >= NOTABLE_DEVICES else None
        ),
        plan=plan_of_grid(problem, answer.grid),
        request=request,
    )


def _sensitivity(
    request: Request,
    problem: Problem,
    space: Space,
    facts: GridFacts,
    grid: Grid,
    searched: Searched,
    progress: Progress | None,
) -> Sensitivity | None:
    """The best plan with 10 % less network bandwidth, and this plan there; None on one island.

    No lower bound of a step falls with a slower network, so meshes that were bounded above the same
    plan's step are not searched again.
    """
    if problem.cluster.num_devices <= problem.cluster.node.island:
        return None
    slower = replace(problem, cluster=scale_network(problem.cluster, factor=0.9))
    same_s = simulate_grid(slower, grid).step_time_s
    slower_search = search(
        slower,
        space,
        facts,
        capacity=capacity_of(request, problem),
        top=1,
        limit=limit_of(float("inf")),
        memory=request.search_memory,
        progress=progress,
        keeps=lambda meshes: searched.may_reach(meshes, space, same_s),
    )
    best, *_ = slower_search.outcome.ranked
    return Sensitivity(
        change=_SLOWER_NETWORK,
        same_plan_s=same_s,
        best_s=best.step_time_s,
        best_grid=best.grid,
    )


def _goodput(problem: Problem, answer: Answer) -> Goodput | None:
    """Goodput with checkpoints every sqrt(2 c M) (Young 1974, equation 1); None without failures.

    The interval sqrt(2 c M) loses least to checkpoints of c seconds and failures every M seconds. A
    checkpoint is written at the storage rate of the whole cluster, and nothing of it is hidden
    behind training.
    """
    devices = answer.prediction.devices
    job = job_reliability(problem.cluster, devices=devices)
    rate = job.failures_per_hour.value
    if not rate:
        return None
    failure_interval_s = 3600.0 / rate
    state = problem.model.num_trainable_parameters * (
        problem.optimizer.state_bytes + problem.job.parameter.bits // 8
    )
    checkpoint_s = max(state / job.storage.value, 1.0)
    interval_s = sqrt(2 * checkpoint_s * failure_interval_s)
    lost_share = (
        checkpoint_s / interval_s + (interval_s / 2 + job.restart_s.value) / failure_interval_s
    )
    return Goodput(
        failures_per_day=86400.0 / failure_interval_s,
        checkpoint_interval_s=interval_s,
        goodput=max(1.0 - lost_share, 0.0),
        assumptions=(
            (
                f"{rate / devices:.3g} failures a device-hour"
                f" ({job.failures_per_hour.origin.reference})"
            ),
            (
                f"a checkpoint takes {checkpoint_s:.3g} s: {state / 1e12:.3g} TB at"
                f" {job.storage.value / GIGA:.4g} GB/s in all, nothing hidden"
                f" ({job.storage.origin.reference})"
            ),
            f"a restart takes {job.restart_s.value:g} s ({job.restart_s.origin.reference})",
        ),
    )


def check(
    request: Request, answer: Answer, *, seed: int = 0, progress: Progress | None = None
) -> Recheck:
    """Repeat the search of `answer` and compare every value; see `check_stored`."""
    return check_stored(
        stored_answer(replace(answer, request=request)), seed=seed, progress=progress
    )


def check_stored(stored: StoredPlan, *, seed: int = 0, progress: Progress | None = None) -> Recheck:
    """Repeat a stored search and compare every value, then recheck its certificate.

    The repeated search stops where the stored search stopped. The recheck bounds and simulates a
    random 1 % of the space, and all members that the bounds leave.

    Raises:
        DataError: a field differs, or the certificate does not hold.
    """
    answer = stored.answer
    assert answer is not None
    sensitive = answer.sensitivity is not None or bool(answer.nearby)
    repeat = repeat_search(
        stored.request, answer.certificate.stopped_at, sensitive=sensitive, progress=progress
    )
    leaves = require_same(document_of(stored), document_of(stored_answer(repeat.answer)))
    result = recheck(
        repeat.problem,
        repeat.space,
        repeat.facts,
        answer,
        capacity=capacity_of(stored.request, repeat.problem),
        generator=random.Random(seed),
        repeated=repeat.searched,
        progress=progress,
    )
    return replace(result, leaves=leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedSearch:
    """A repeated search with its inputs and its answer."""

    problem: Problem
    space: Space
    facts: GridFacts
    searched: Searched
    answer: Answer


def repeat_search(
    request: Request, stopped_at: int, *, sensitive: bool, progress: Progress | None = None
) -> RepeatedSearch:
    """Search a request again up to clock check `stopped_at` (0 = all), with sensitivity if asked.

    The stopping point counts looks at the clock (`search.search_time_limit.Limit`).
    """
    problem = problem_of(request)
    facts = facts_of(problem)
    space, capacity = space_of(request, problem, facts), capacity_of(request, problem)
    load_kernels()
    limit = Limit(stop_at=stopped_at)
    searched = search(
        problem,
        space,
        facts,
        capacity=capacity,
        top=request.top + 1,
        limit=limit,
        memory=request.search_memory,
        progress=progress,
    )
    bare_answer = answer_of(problem, space, facts, searched, capacity=capacity, limit=limit)
    answer = _completed(
        request,
        problem,
        space,
        facts,
        bare_answer,
        searched=searched if sensitive else None,
        progress=progress,
    )
    return RepeatedSearch(
        problem=problem, space=space, facts=facts, searched=searched, answer=answer
    )
