"""The plans that a plan file holds, as the search found them, before their simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardwright.errors import ShardwrightError
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.report.page.view_data_types.scatter_chart_data import ScatterGroup
from shardwright.search.mixed.plans.move_plan_to_pool_devices import move_to_pool
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed_cluster_certificate import GIVEN_UP, MixedPart, PoolAlone
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid, print_grid

COMPOSITION: Final = ScatterGroup(
    name="the fastest found of another composition", series=1, solid=True
)
ONE_KIND: Final = ScatterGroup(
    name="the best grid on one kind of device alone", series=2, solid=True
)
COST_FRONT: Final = ScatterGroup(name="on the front of time and cost", series=5, solid=True)
RANKED: Final = ScatterGroup(name="next in rank", series=6, solid=True)
NO_GRID: Final = "no grid fits"
NO_TIME: Final = "the time limit passed before a grid was found"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlan:
    """A plan of the file before its simulation.

    Args:
        kind: words that are more exact than the group's name.
        step_s: seconds of its step in the file; None = the file has none for this cluster.
        forms: general plans that it may be: several where the file does not name its devices.
        is_grid: True if `strategy` is the grid in notation, on devices from the first on.
        verdict: why there may be no form.
    """

    strategy: str
    group: ScatterGroup
    step_s: float | None
    forms: tuple[Plan, ...]
    kind: str = ""
    is_grid: bool = False
    verdict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlans:
    """The plans of a file.

    Args:
        best: the best plan in words: the grid in notation, the pipelines, or the plan's name.
        others: the plans beside the best one, each once.
    """

    best: str
    others: tuple[FoundPlan, ...]


def found_plans(saved: StoredPlan, problem: Problem) -> FoundPlans:
    """The plans that a file holds, before their simulation.

    Those beside the best one are the next plans in rank and, of a mixed search, the fastest plans
    of other compositions, the best grid on each kind of device alone, and the front of time and
    cost.
    """
    found, seen, others = list(_all_plans(saved, problem)), [saved.plan], []
    for one in found:
        if not any(form in seen for form in one.forms):
            seen += one.forms
            others.append(one)
    same = (one.strategy for one in found if saved.plan in one.forms)
    mixed = saved.certificate.mixed
    return FoundPlans(
        best=(
            print_grid(saved.grid)
            if saved.grid is not None
            else (mixed.pipelines if mixed is not None else "") or next(same, saved.name)
        ),
        others=tuple(others),
    )


def _all_plans(saved: StoredPlan, problem: Problem) -> Iterator[FoundPlan]:
    """Yield the plans of each part of a file, some perhaps more than once."""
    for ranked in saved.alternatives:
        yield FoundPlan(
            strategy=print_grid(ranked.grid),
            group=RANKED,
            step_s=ranked.step_time_s,
            forms=(plan_of_grid(problem, ranked.grid),),
            is_grid=True,
        )
    scenarios, mixed = saved.certificate.scenarios, saved.certificate.mixed
    if scenarios is not None:
        for tried in scenarios.next_best:
            yield _tried_in_all_states(problem, tried.strategy)
    if mixed is not None:
        yield from _plans_of_mixed(problem, mixed)


def _tried_in_all_states(problem: Problem, strategy: str) -> FoundPlan:
    """A next best plan of a search over several states of the cluster.

    The file has no notation of pipelines in words, nor the devices of a grid on a mixed cluster.
    """
    return FoundPlan(
        strategy=strategy,
        group=RANKED,
        kind="next in rank over all scenarios",
        step_s=None,
        forms=_plan_of_text(problem, strategy) if problem.cluster.is_uniform else (),
        is_grid=True,
        verdict="the file has no notation of it",
    )


def _plan_of_text(problem: Problem, strategy: str) -> tuple[Plan, ...]:
    """The plan of a grid in notation; none if the text is no grid of the cluster's devices."""
    try:
        grid = parse_grid(strategy)
        return (plan_of_grid(problem, grid),) if grid.devices <= problem.cluster.num_devices else ()
    except ShardwrightError:
        return ()


def _plans_of_mixed(problem: Problem, mixed: MixedPart) -> Iterator[FoundPlan]:
    """Yield the plans in the certificate of a mixed search."""
    for runner in mixed.runners:
        yield FoundPlan(
            strategy=runner.pipelines,
            group=COMPOSITION,
            step_s=runner.step_time_s,
            forms=(runner.plan,),
        )
    for pool in mixed.alone:
        yield _grid_on_one_kind(problem, pool)
    for one in () if mixed.valued is None else mixed.valued.front:
        yield FoundPlan(
            strategy=one.pipelines, group=COST_FRONT, step_s=one.step_time_s, forms=(one.plan,)
        )


def _grid_on_one_kind(problem: Problem, alone: PoolAlone) -> FoundPlan:
    """The best grid on the devices of one kind, or why there is none.

    A certificate names the kind of a pool, and two pools may be of one kind.
    """
    fewest = f"{alone.fewest:,} to " if 0 < alone.fewest < alone.devices else ""
    return FoundPlan(
        strategy=alone.strategy or "-",
        group=ONE_KIND,
        kind=f"the best grid on {fewest}{alone.devices:,} {alone.name} alone",
        step_s=alone.step_time_s,
        forms=tuple(
            move_to_pool(plan, problem, pool)
            for plan in (_plan_of_text(problem, alone.strategy) if alone.strategy else ())
            for pool in pools_of(problem.cluster)
            if pool.name == alone.name and plan.devices <= pool.devices
        ),
        verdict="" if alone.strategy else NO_TIME if alone.stopped_at == GIVEN_UP else NO_GRID,
    )
