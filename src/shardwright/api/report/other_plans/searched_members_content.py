"""Contents of the report's view of the searched space: its members by time and memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from shardwright.api.report.changes.pin_space_to_one_grid import pins_of_grid
from shardwright.api.report.other_plans.plans_held_by_file_content import plans_held_by_file
from shardwright.api.report.other_plans.scatter_groups_of_plans_that_do_not_fit import (
    BEYOND_DEVICE,
    BEYOND_HOST,
)
from shardwright.api.request_to_command import command_text
from shardwright.api.request_to_problem import (
    SearchMethod,
    capacity_of,
    facts_of,
    method_of,
    problem_of,
    space_of,
)
from shardwright.arrays import IntArray
from shardwright.files.plan_and_simulation_file_contents import StoredPlan
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.report.page.view_data_types.line_chart_data import ChartAxis, round_ticks_of_ratios
from shardwright.report.page.view_data_types.scatter_chart_data import (
    ScatterChart,
    ScatterGroup,
    ScatterPoints,
    corners_of_front,
)
from shardwright.report.page.view_data_types.searched_members import (
    FateCount,
    FrontNeighbour,
    NearMembers,
    SearchedMember,
    SearchedMembers,
)
from shardwright.search.grid.best_first_search import SimulatedMember
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.find_best_grid import certify, problem_text
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members_by_bound_with_front_and_sample import (
    MembersByBound,
    by_memory,
    even_sample,
    front_members,
    members_by_bound,
    near_members,
)
from shardwright.search.grid.search_by_mesh import search
from shardwright.search.optimality_certificate import Certificate
from shardwright.search.search_request import Request
from shardwright.search.search_time_limit import Limit
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid

MOST_POINTS: Final = 2000
"""Most plotted strategies."""
MOST_SIMULATED: Final = 8
"""Most strategies of the front that are simulated, the fastest first."""
NEAR_SHARE: Final = 0.05
"""Largest slowdown against the best of a strategy that counts as nearly as fast."""
_MOST_NEAR_SIMULATED: Final = 6
"""Most strategies that are simulated to find the one with the least memory among the near ones."""
_DIGITS: Final = 5
_FIT, _DEVICE, _HOST, _SIMULATED = range(4)
GROUPS: Final = (
    ScatterGroup(name="fits, ruled out by its lower bound of time", series=0, solid=False),
    BEYOND_DEVICE,
    BEYOND_HOST,
    ScatterGroup(name="simulated", series=3, solid=True),
)
"""Groups of plotted strategies; a simulated strategy is drawn above the others."""
_NOT_ENUMERATED: Final = (
    "This search bounds parts of its space together and does not list single strategies, so of most"
    " of them only the counts are known."
)
_OTHER_VERSION: Final = (
    "The file's certificate is for other numbers than this version's, so only its counts are"
    " shown; plan again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Space:
    """The searched space with its problem, the bounds of its members, and the request's limits.

    Args:
        capacity: bytes of a device that a plan may fill.
        best: the fastest simulated member.
        fitting: all members that the search simulated and that fit.
        paired_near: members under schedules of general plans alone that are not simulated and may
            be nearly as fast as the best.
    """

    problem: Problem
    facts: GridFacts
    space: Space
    capacity: int
    members: MembersByBound
    best: SimulatedMember
    fitting: tuple[SimulatedMember, ...]
    paired_near: int


def searched_members(saved: StoredPlan, *, most: int = MOST_POINTS) -> SearchedMembers:
    """A stored search's members by fate; also as points if its grid search repeats equally.

    The search of a grid space is repeated, which gives the bounds of its members. Of other spaces
    the certificate has the counts.

    Args:
        most: most plotted strategies.
    """
    certificate = saved.certificate
    counted = SearchedMembers(
        note=_NOT_ENUMERATED,
        strategies=certificate.strategies,
        counts=_counts_by_fate(certificate),
    )
    if saved.answer is not None and method_of(saved.request) is SearchMethod.GRID:
        listed = _listed_space(saved.request, certificate)
        if listed is not None:
            return _with_points(saved, counted, listed, most=most)
        counted = replace(counted, note=_OTHER_VERSION)
    return replace(counted, held=plans_held_by_file(saved))


def _listed_space(request: Request, certificate: Certificate) -> _Space | None:
    """Repeat a search and bound its members; None if it is another one than the certificate's."""
    problem = problem_of(request)
    facts = facts_of(problem)
    space = space_of(request, problem, facts)
    if certificate.digest != space.digest(problem_text(problem)):
        return None
    capacity = capacity_of(request, problem)
    load_kernels()
    searched = search(
        problem,
        space,
        facts,
        capacity=capacity,
        top=request.top + 1,
        limit=Limit(stop_at=certificate.stopped_at),
        memory=request.search_memory,
    )
    if _counts_by_fate(certify(problem, space, searched)) != _counts_by_fate(certificate):
        return None
    fitting = tuple(searched.outcome.fitting)
    best = min(fitting, key=lambda one: one.step_time_s)
    near_s = best.step_time_s * (1.0 + NEAR_SHARE)
    return _Space(
        problem=problem,
        facts=facts,
        space=space,
        capacity=capacity,
        members=members_by_bound(problem, facts, searched, capacity=capacity, near_s=near_s),
        best=best,
        fitting=fitting,
        paired_near=sum(
            part.bounded_b0 + part.bounded_b1
            for part in searched.paired
            if part.lower_bound_s <= near_s
        ),
    )


def _counts_by_fate(certificate: Certificate) -> tuple[FateCount, ...]:
    """Members by fate in the words of the view, in the order in which the search decides."""
    strategies = certificate.strategies
    reasons = dict(certificate.infeasible_by_reason)
    simulated_memory = reasons.get("simulated memory", 0)
    fates = (
        ("does not fit by a lower bound of memory", certificate.infeasible - simulated_memory),
        ("does not fit by the exact memory of its schedule", simulated_memory),
        ("ruled out by counting work, or with its whole mesh", certificate.bounded_b0),
        ("ruled out by the longest path of its schedule", certificate.bounded_b1),
        ("simulated", certificate.simulated),
    )
    return (
        FateCount(fate="breaks a rule", members=certificate.illegal, share=None),
        FateCount(fate="repeats another strategy", members=certificate.duplicates, share=None),
        *(
            FateCount(
                fate=fate, members=members, share=members / strategies if strategies else None
            )
            for fate, members in fates
        ),
    )


def _with_points(
    saved: StoredPlan,
    counted: SearchedMembers,
    listed: _Space,
    *,
    most: int,
) -> SearchedMembers:
    """Add the plotted strategies, those that were simulated, the near ones and the neighbour."""
    members, best = listed.members, listed.best
    simulated = {one.grid: one for one in listed.fitting}
    by_search = frozenset(simulated)
    front = front_members(members)
    _simulate(listed, front[:MOST_SIMULATED], simulated)
    near_s = best.step_time_s * (1.0 + NEAR_SHARE)
    near = near_members(members, near_s)
    least = _least_memory(listed, near, near_s, simulated)
    rows = _rows(simulated, by_search, best)
    following = next((row for row in rows if row.on_front and row.step_s > best.step_time_s), None)
    grids = {print_grid(grid): grid for grid in simulated}
    chart, shared_words = _chart(listed, front, simulated, most=most)
    return replace(
        counted,
        note="",
        plotted=len(chart.points.x),
        bounded_singly=len(members.seconds),
        bounded_together=counted.strategies - len(members.seconds),
        capacity_bytes=listed.capacity,
        chart=chart,
        shared_words=shared_words,
        simulated=rows,
        near=NearMembers(
            share=NEAR_SHARE,
            members=len(near),
            unlisted=members.num_whole_near + listed.paired_near,
            least=next((row for row in rows if row.strategy == least), None),
        ),
        neighbour=None
        if following is None
        else _neighbour(saved, listed.space, following, grids[following.strategy]),
    )


def _simulate(listed: _Space, numbers: IntArray, simulated: dict[Grid, SimulatedMember]) -> None:
    """Add the simulations of members that are not in `simulated` yet and fit."""
    for number in numbers.tolist():
        grid = listed.members.grid(number)
        if grid in simulated:
            continue
        done = simulate_grid(listed.problem, grid)
        if done.fits_in(listed.capacity):
            simulated[grid] = SimulatedMember(
                grid=grid, step_time_s=done.step_time_s, reserved_bytes=done.need
            )


def _least_memory(
    listed: _Space, near: IntArray, near_s: float, simulated: dict[Grid, SimulatedMember]
) -> str:
    """Notation of the strategy with the least memory whose simulated step is at most `near_s`.

    Simulates the near members with the least bounds of memory until one is that fast, and adds them
    to `simulated`.
    """
    for number in list(by_memory(listed.members, near))[:_MOST_NEAR_SIMULATED]:
        _simulate(listed, np.array([number]), simulated)
        grid = listed.members.grid(number)
        if grid in simulated and simulated[grid].step_time_s <= near_s:
            break
    fast = [one for one in simulated.values() if one.step_time_s <= near_s]
    least = min(fast, key=lambda one: (one.reserved_bytes, one.step_time_s))
    return print_grid(least.grid)


def _rows(
    simulated: dict[Grid, SimulatedMember], by_search: frozenset[Grid], best: SimulatedMember
) -> tuple[SearchedMember, ...]:
    """Rows of the simulated strategies, the fastest first; equal steps by memory, then notation."""
    ordered = sorted(
        simulated.items(),
        key=lambda item: (item[1].step_time_s, item[1].reserved_bytes, print_grid(item[0])),
    )
    rows, least = [], float("inf")
    for grid, one in ordered:
        rows.append(
            SearchedMember(
                strategy=print_grid(grid),
                step_s=one.step_time_s,
                reserved_bytes=one.reserved_bytes,
                slower=one.step_time_s / best.step_time_s - 1.0,
                saved_bytes=best.reserved_bytes - one.reserved_bytes,
                found_by="search" if grid in by_search else "report",
                on_front=one.reserved_bytes < least,
            )
        )
        least = min(least, one.reserved_bytes)
    return tuple(rows)


def _neighbour(saved: StoredPlan, space: Space, row: SearchedMember, grid: Grid) -> FrontNeighbour:
    """The front's next strategy, with the command that searches its values alone."""
    request = saved.request
    return FrontNeighbour(
        strategy=row.strategy,
        step_s=row.step_s,
        reserved_bytes=row.reserved_bytes,
        saved_bytes=row.saved_bytes,
        slower=row.slower,
        command=command_text(replace(request, pins=pins_of_grid(space, grid, pins=request.pins))),
    )


def _chart(
    listed: _Space, front: IntArray, simulated: dict[Grid, SimulatedMember], *, most: int
) -> tuple[ScatterChart, str]:
    """(chart of simulated strategies, front by bounds and a sample; words that all of them have).

    Also the words of the notation that all of them have.
    """
    members = listed.members
    bounds_only = [number for number in front.tolist() if members.grid(number) not in simulated][
        : max(most - len(simulated), 0)
    ]
    count = max(most - len(simulated) - len(bounds_only), 0)
    points: list[tuple[Grid, float, float, int]] = []
    for number in (*bounds_only, *even_sample(members, count=count, without=front).tolist()):
        grid = members.grid(number)
        if grid in simulated:
            continue
        host = members.memory[number] <= listed.capacity
        group = _FIT if members.fits[number] else _HOST if host else _DEVICE
        values = float(members.seconds[number]), float(members.memory[number])
        points.append((grid, *values, group))
    points += [
        (grid, one.step_time_s, float(one.reserved_bytes), _SIMULATED)
        for grid, one in simulated.items()
    ]
    points.sort(key=lambda point: (point[3], point[1], point[2]))
    texts = [print_grid(point[0], defaults=False).split() for point in points]
    shared = [word for word in texts[0] if all(word in words for words in texts)]
    steps = tuple(_rounded(point[1]) for point in points)
    reserved = tuple(_rounded(point[2]) for point in points)
    chart = ScatterChart(
        x=ChartAxis(
            name="step", form="seconds", ticks=round_ticks_of_ratios(steps), logarithmic=True
        ),
        y=ChartAxis(
            name="memory of the fullest device",
            form="bytes",
            ticks=round_ticks_of_ratios(reserved),
            logarithmic=True,
        ),
        groups=GROUPS,
        points=ScatterPoints(
            x=steps,
            y=reserved,
            label=tuple(" ".join(word for word in words if word not in shared) for words in texts),
            group=tuple(point[3] for point in points),
        ),
        line=corners_of_front(
            (_rounded(one.step_time_s), _rounded(one.reserved_bytes)) for one in simulated.values()
        ),
        limit=float(listed.capacity),
    )
    return chart, " ".join(shared)


def _rounded(value: float) -> float:
    """A value with 5 significant digits."""
    return float(f"{value:.{_DIGITS}g}")
