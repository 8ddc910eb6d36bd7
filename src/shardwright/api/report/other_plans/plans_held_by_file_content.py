"""Contents of the report's picture of the plans that a file holds, which the report simulates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor, inf, isclose
from typing import Final

from shardwright.api.report.first_lines_of_plan_notation import first_lines_of_notation
from shardwright.api.report.other_plans.found_plans_of_plan_file import (
    COMPOSITION,
    COST_FRONT,
    NO_GRID,
    NO_TIME,
    ONE_KIND,
    RANKED,
    FoundPlan,
    found_plans,
)
from shardwright.api.report.other_plans.scatter_groups_of_plans_that_do_not_fit import (
    BEYOND_DEVICE,
    BEYOND_HOST,
)
from shardwright.api.request_to_command import command_text
from shardwright.api.request_to_problem import problem_of
from shardwright.cost.network.networks_of_plan_devices import node_group_of
from shardwright.errors import ShardwrightError
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.program.training_problem import Problem
from shardwright.report.page.view_data_types.line_chart_data import (
    ChartAxis,
    round_ticks,
    round_ticks_of_ratios,
)
from shardwright.report.page.view_data_types.plans_held_by_file import HeldPlan, PlansHeldByFile
from shardwright.report.page.view_data_types.scatter_chart_data import (
    ScatterChart,
    ScatterGroup,
    ScatterPoints,
    corners_of_front,
)
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.search.search_request import Request
from shardwright.simulator.busy_and_waiting_by_device_kind import kind_names
from shardwright.simulator.prediction import StageMemory
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_plan
from shardwright.strategy.plan.plan import Plan

MOST_TASKS: Final = 400_000
"""Most tasks of all simulations of a report's other plans, so that they take about a second."""
BEST: Final = ScatterGroup(name="the best plan of the search", series=0, solid=True)
_UNFIT: Final = tuple(replace(group, solid=True) for group in (BEYOND_DEVICE, BEYOND_HOST))
"""Groups of plans that do not fit; few plans can be drawn as large as the others."""
GROUPS: Final = (*_UNFIT, RANKED, COST_FRONT, ONE_KIND, COMPOSITION, BEST)
"""Groups of plotted plans, in the order in which they are drawn."""
FITS: Final = "fits"
NOT_REPRODUCED: Final = "this version does not simulate it with the step that the file has"
NOT_SIMULATED: Final = "not simulated: the other plans have too many tasks"
_SAME_STEP: Final = 1e-6
"""Largest relative difference of a step that is simulated again, as files have nine digits."""
_WIDE: Final = 2.0
"""Least ratio of the longest to the shortest step from which the axis of steps is logarithmic."""


def plans_held_by_file(saved: StoredPlan) -> PlansHeldByFile | None:
    """The best plan of a search and the others in its file, simulated; None without others."""
    problem = problem_of(saved.request)
    found = found_plans(saved, problem)
    if not any(one.forms for one in found.others):
        return None
    best, group = _best(saved, found.best)
    rows = [(best, group), *_simulated_others(saved, problem, found.others)]
    rows.sort(
        key=lambda row: (
            row[0].memory_share is None,
            inf if row[0].step_s is None else row[0].step_s,
            row[0].memory_share or 0.0,
        )
    )
    return _with_chart(saved.request, problem, _with_front(rows), best=rows.index((best, group)))


def _best(saved: StoredPlan, strategy: str) -> tuple[HeldPlan, ScatterGroup]:
    """Row and group of the best plan of the search, with the file's prediction of it."""
    prediction = saved.prediction
    return _simulated_row(
        FoundPlan(
            strategy=strategy,
            group=BEST,
            step_s=prediction.step_time_s,
            forms=(),
        ),
        step_s=prediction.step_time_s,
        memory=[
            replace(stage, capacity=stage.capacity_or(prediction.capacity_bytes))
            for stage in prediction.stages
        ],
        fits_hosts=not any(host.lacking for host in prediction.host_memory),
        saved=saved,
        plan=saved.plan,
    )


def _simulated_others(
    saved: StoredPlan, problem: Problem, others: Sequence[FoundPlan]
) -> Iterator[tuple[HeldPlan, ScatterGroup]]:
    """Yield row and group of each other plan, simulated up to `MOST_TASKS` tasks of all of them."""
    best_s, tasks = saved.prediction.step_time_s, 0
    names = ("",) if problem.cluster.is_uniform else kind_names(problem.cluster)
    for one in sorted(others, key=lambda one: inf if one.step_s is None else one.step_s):
        simulated = _simulated(problem, one) if tasks < MOST_TASKS else None
        if simulated is None:
            reason = one.verdict or (NOT_REPRODUCED if tasks < MOST_TASKS else NOT_SIMULATED)
            yield _unsimulated_row(one, reason, best_s=best_s), one.group
            continue
        plan, done = simulated
        classes = done.program.classes
        tasks += len(done.program.instances)
        yield _simulated_row(
            one,
            step_s=done.step_time_s if one.step_s is None else one.step_s,
            memory=[
                replace(memory, kind=names[node_group_of(problem.cluster, kind.devices.first)])
                if len(names) > 1
                else memory
                for memory, kind in zip(done.memory, classes, strict=True)
            ],
            fits_hosts=done.fits_hosts,
            saved=saved,
            plan=None if one.is_grid else plan,
        )


def _simulated(problem: Problem, found: FoundPlan) -> tuple[Plan, SimulatedPlan] | None:
    """The form of a plan with the stored step, and its simulation; None if no form has that step.

    Any step is right where the file has none.
    """
    for plan in found.forms:
        try:
            done = simulate_plan(problem, with_searched_orders(problem, plan))
        except ShardwrightError:
            continue
        if found.step_s is None or isclose(done.step_time_s, found.step_s, rel_tol=_SAME_STEP):
            return plan, done
    return None


def _unsimulated_row(found: FoundPlan, reason: str, *, best_s: float) -> HeldPlan:
    """Row of a plan without simulation, with the step of the file."""
    return HeldPlan(
        strategy=found.strategy,
        kind=found.kind or found.group.name,
        series=found.group.series,
        step_s=found.step_s,
        slower=None if found.step_s is None else found.step_s / best_s - 1.0,
        device="",
        reserved_bytes=None,
        capacity_bytes=None,
        memory_share=None,
        verdict=reason,
        on_front=False,
        notation=None,
    )


def _simulated_row(
    found: FoundPlan,
    *,
    saved: StoredPlan,
    step_s: float,
    memory: Sequence[StageMemory],
    fits_hosts: bool,
    plan: Plan | None,
) -> tuple[HeldPlan, ScatterGroup]:
    """Row and group of a simulated plan.

    Args:
        saved: contents of the file, with the best plan that it is compared with.
        memory: of each class of devices, with its capacity and, on a mixed cluster, its kind. The
            fullest device has the largest share of its capacity in use.
        plan: its notation is shown; None = `found.strategy` is its notation.
    """
    fullest = max(memory, key=lambda one: one.reserved / one.capacity)
    share = 1.0 - saved.request.headroom
    fits = all(one.reserved <= int(one.capacity * share) for one in memory)
    group = _UNFIT[0] if not fits else found.group if fits_hosts else _UNFIT[1]
    row = HeldPlan(
        strategy=found.strategy,
        kind=found.kind or found.group.name,
        series=group.series,
        step_s=step_s,
        slower=step_s / saved.prediction.step_time_s - 1.0,
        device=fullest.kind,
        reserved_bytes=fullest.reserved,
        capacity_bytes=fullest.capacity,
        memory_share=fullest.reserved / fullest.capacity,
        verdict=FITS if group is found.group else group.name,
        on_front=False,
        notation=None if plan is None else _shown_notation(plan, name=saved.name or "plan"),
    )
    return row, group


def _shown_notation(plan: Plan, *, name: str) -> str | None:
    """First lines of a plan's text, with a comment where it has more; None where it has none."""
    lines = first_lines_of_notation(plan, name=name)
    more = lines.lines - lines.shown
    return f"{lines.text}\n# {more:,} more lines" if more else lines.text


def _with_front(
    rows: Sequence[tuple[HeldPlan, ScatterGroup]],
) -> list[tuple[HeldPlan, ScatterGroup]]:
    """Mark the fitting plans that no other beats in step and share; the fastest row is first."""
    least, marked = inf, []
    for row, group in rows:
        share = row.memory_share
        on_front = row.verdict == FITS and share is not None and share < least
        marked.append((replace(row, on_front=on_front), group))
        least = share if on_front and share is not None else least
    return marked


def _with_chart(
    request: Request,
    problem: Problem,
    rows: Sequence[tuple[HeldPlan, ScatterGroup]],
    *,
    best: int,
) -> PlansHeldByFile:
    """Add the chart, the least full plan, and the front's plan behind row `best` with its command.

    The best plan of a search for cost may not be the fastest.
    """
    plans = tuple(row for row, _ in rows)
    fitting = [row for row in plans if row.verdict == FITS]
    least = min(fitting, key=lambda row: (row.memory_share or inf, row.step_s), default=plans[best])
    neighbour = next((row for row in plans[best + 1 :] if row.on_front), None)
    return PlansHeldByFile(
        plans=plans,
        others=sum(row.verdict not in (NO_GRID, NO_TIME) for row in plans) - 1,
        unfit=sum(group in _UNFIT for _, group in rows),
        has_scenarios=bool(request.scenarios),
        unequal_devices=len({g.kind.accelerator.memory_bytes for g in problem.cluster.groups}) > 1,
        best=plans[best],
        least=None if least is plans[best] else least,
        neighbour=neighbour,
        command="" if neighbour is None else _search_with_as_much_free(request, neighbour),
        chart=_chart(request, rows),
    )


def _search_with_as_much_free(request: Request, plan: HeldPlan) -> str:
    """The command that searches the best plan with as much memory free as a plan leaves."""
    assert plan.memory_share is not None
    percent = floor(1000.0 * (1.0 - plan.memory_share) - 1e-6) / 10.0
    return command_text(replace(request, headroom=percent / 100.0))


def _chart(request: Request, rows: Sequence[tuple[HeldPlan, ScatterGroup]]) -> ScatterChart:
    """Scatter chart of the simulated plans by step and share of memory, with the front."""
    shown = [(row, group) for row, group in rows if row.memory_share is not None]
    steps = tuple(row.step_s or 0.0 for row, _ in shown)
    shares = tuple(row.memory_share or 0.0 for row, _ in shown)
    wide = max(steps) / min(steps) >= _WIDE
    limit = 1.0 - request.headroom
    front = [(row.step_s or 0.0, row.memory_share or 0.0) for row, _ in shown if row.on_front]
    return ScatterChart(
        x=ChartAxis(
            name="step",
            form="seconds",
            ticks=round_ticks_of_ratios(steps) if wide else round_ticks(steps, most=4),
            logarithmic=wide,
        ),
        y=ChartAxis(
            name="share of the fullest device's memory in use",
            form="whole_percent",
            ticks=round_ticks([0.0, *shares, limit]),
        ),
        groups=GROUPS,
        points=ScatterPoints(
            x=steps,
            y=shares,
            label=tuple(row.strategy for row, _ in shown),
            group=tuple(GROUPS.index(group) for _, group in shown),
        ),
        line=corners_of_front(front),
        limit=limit,
    )
