"""Small changes to the best mixed plans, kept where their step is shorter: a layer to the next
stage, microbatches to another lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import lcm

from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.search_tasks import SearchTasks
from shardwright.search.mixed.plans.simulated_plans import Simulating, Standing, simulated_there
from shardwright.search.mixed.plans.write_plan import MixedLane, MixedPlan, general_plan
from shardwright.search.mixed.stages.frame_terms import StageCosts


def improve_best_plans(
    standing: Standing, tasks: SearchTasks, stage_costs_of: Mapping[Options, StageCosts]
) -> None:
    """Change each of the best plans step by step; a change that helps it is kept, until none does
    or `Effort.changes_per_plan` are spent.
    """
    for seconds, _, plan, options in sorted(standing.ranked)[: tasks.effort.improved_plans]:
        improve_plan(standing, tasks, stage_costs_of[options], seconds, plan, options)


def improve_plan(
    standing: Standing,
    tasks: SearchTasks,
    stage_costs: StageCosts,
    seconds: float,
    plan: MixedPlan,
    options: Options,
) -> None:
    """Change one plan step by step. Of changes that are under way when one helps, the others are
    still of the plan before it.
    """
    effort = tasks.effort
    place, begun, tries = tasks.place_of(stage_costs), deque[MixedPlan](), 0
    others = neighbours(stage_costs, plan, most_moved=effort.moved_microbatches)

    def ask() -> Simulating | None:
        nonlocal tries
        other = next((one for one in others if (options, one) not in standing.seen), None)
        if other is None or tries == effort.changes_per_plan or standing.ends():
            return None
        tries += 1
        standing.seen.add((options, other))
        begun.append(other)
        return standing.simulating(place, other, options)

    for step in tasks.flow(
        simulated_there, ask, size=effort.changes_at_once, more=effort.changes_per_plan
    ):
        other = begun.popleft()
        found = standing.take(
            other, options, step, partial(general_plan, stage_costs, other, options=options)
        )
        if found < seconds:
            seconds, others = (
                found,
                neighbours(stage_costs, other, most_moved=effort.moved_microbatches),
            )


def neighbours(stage_costs: StageCosts, plan: MixedPlan, *, most_moved: int) -> Iterator[MixedPlan]:
    """Plans that differ by one layer of one lane's cut, or by a few microbatches of two lanes."""
    for number, lane in enumerate(plan.lanes):
        for give, take in (
            (i, j)
            for i in range(len(lane.sizes))
            for j in (i - 1, i + 1)
            if 0 <= j < len(lane.sizes)
        ):
            if lane.sizes[give] > 1:
                sizes = list(lane.sizes)
                sizes[give], sizes[take] = sizes[give] - 1, sizes[take] + 1
                yield _with(plan, {number: replace(lane, sizes=tuple(sizes))})
    for one, other in permutations(range(len(plan.lanes)), 2):
        units = [
            plan.lanes[n].replicas * int(stage_costs.table.mbs[plan.lanes[n].rows[0]])
            for n in (one, other)
        ]
        less, more = (lcm(*units) // unit for unit in units)
        if max(less, more) <= most_moved and plan.lanes[one].microbatches > less:
            changed = {
                one: replace(plan.lanes[one], microbatches=plan.lanes[one].microbatches - less),
                other: replace(
                    plan.lanes[other], microbatches=plan.lanes[other].microbatches + more
                ),
            }
            yield _with(plan, changed)


def _with(plan: MixedPlan, changed: dict[int, MixedLane]) -> MixedPlan:
    return replace(
        plan, lanes=tuple(changed.get(number, lane) for number, lane in enumerate(plan.lanes))
    )
