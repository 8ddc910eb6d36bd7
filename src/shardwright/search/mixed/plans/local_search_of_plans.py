"""Local search around the best mixed plans: move one layer, or a few microbatches.

A change is kept where the plan's step is shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import lcm

from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.run_tasks_on_engine import SearchTasks
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedLane,
    MixedPlan,
    general_plan,
)
from shardwright.search.mixed.plans.plan_search_state import (
    SearchState,
    SimulationTask,
    run_simulation_task,
)
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts


def improve_best_plans(
    state: SearchState, tasks: SearchTasks, stage_costs_of: Mapping[Options, MixedStageCosts]
) -> None:
    """Improve each of the best plans by small changes, as long as a change shortens the step.

    At most `Effort.changes_per_plan` changes are tried of a plan.
    """
    for seconds, _, plan, options in sorted(state.ranked)[: tasks.effort.improved_plans]:
        improve_plan(state, tasks, stage_costs_of[options], seconds, plan, options)


def improve_plan(
    state: SearchState,
    tasks: SearchTasks,
    stage_costs: MixedStageCosts,
    seconds: float,
    plan: MixedPlan,
    options: Options,
) -> None:
    """Improve one plan by small changes, as long as a change shortens the step.

    Changes that are under simulation when one helps are still of the plan before it.
    """
    effort = tasks.effort
    pipelines_index, begun, tries = tasks.index_with_stage_costs(stage_costs), deque[MixedPlan](), 0
    changes = neighbours(stage_costs, plan, most_moved=effort.moved_microbatches)

    def ask() -> SimulationTask | None:
        """The simulation task of the next change; None = no change or try is left."""
        nonlocal tries
        changed_plan = next((one for one in changes if (options, one) not in state.seen), None)
        if changed_plan is None or tries == effort.changes_per_plan or state.ends():
            return None
        tries += 1
        state.seen.add((options, changed_plan))
        begun.append(changed_plan)
        return state.simulation_task(pipelines_index, changed_plan, options)

    for step in tasks.flow(
        run_simulation_task, ask, size=effort.changes_at_once, more=effort.changes_per_plan
    ):
        changed_plan = begun.popleft()
        changed_seconds = state.add_simulated(
            changed_plan,
            options,
            step,
            partial(general_plan, stage_costs, changed_plan, options=options),
        )
        if changed_seconds < seconds:
            seconds, changes = (
                changed_seconds,
                neighbours(stage_costs, changed_plan, most_moved=effort.moved_microbatches),
            )


def neighbours(
    stage_costs: MixedStageCosts, plan: MixedPlan, *, most_moved: int
) -> Iterator[MixedPlan]:
    """Plans that differ by one layer between two stages, or by a few microbatches of two lanes."""
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
                yield _with_lanes(plan, {number: replace(lane, sizes=tuple(sizes))})
    for giver, receiver in permutations(range(len(plan.lanes)), 2):
        units = [
            plan.lanes[n].replicas * int(stage_costs.table.mbs[plan.lanes[n].rows[0]])
            for n in (giver, receiver)
        ]
        less, more = (lcm(*units) // unit for unit in units)
        if max(less, more) <= most_moved and plan.lanes[giver].microbatches > less:
            changed = {
                giver: replace(
                    plan.lanes[giver], microbatches=plan.lanes[giver].microbatches - less
                ),
                receiver: replace(
                    plan.lanes[receiver], microbatches=plan.lanes[receiver].microbatches + more
                ),
            }
            yield _with_lanes(plan, changed)


def _with_lanes(plan: MixedPlan, changed: dict[int, MixedLane]) -> MixedPlan:
    """The plan with some lanes replaced, by lane number."""
    return replace(
        plan, lanes=tuple(changed.get(number, lane) for number, lane in enumerate(plan.lanes))
    )
