"""Comparison of a plan with another strategy: both simulated, the broken rules, and the
strategy's place in the search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from shardwright.api.request_to_problem import (
    JOINT,
    SPACES,
    capacity_of,
    facts_of,
    problem_of,
    space_of,
)
from shardwright.api.searches.plan_records import stored_general
from shardwright.api.simulate_legal_strategy import simulated
from shardwright.errors import StrategyError
from shardwright.files.plan_source import is_grid_text, read_strategy
from shardwright.files.stored_documents import (
    StoredPlan,
    StoredSimulation,
    stored_answer,
    stored_simulation,
)
from shardwright.program.problem import Problem
from shardwright.program.rule_violations import grid_violations, plan_violations
from shardwright.search.grid.locate_grid import Fate, Placed, placed_in
from shardwright.search.orders.fill_in_plan_orders import has_searched_orders
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.simulated_strategy import Simulation
from shardwright.search.strategy_difference import Why, fullest
from shardwright.simulator.prediction import host_lack
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.grid.grid_rules import canonical
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.text.grid_notation import changed_grid, print_grid
from shardwright.strategy.text.strategy_words import Reading, read_words

GRIDS: Final = frozenset((*SPACES, *JOINT))
"""Spaces that have all grids of a grid space."""


def why(answer: Answer | GeneralAnswer[Any] | Simulation | StoredSimulation, strategy: str) -> Why:
    """The gains and losses of `strategy` against an answer's plan, or the rules that it breaks; and
    its place in the search.

    Args:
        answer: of a search or a simulation, or what a plan file holds.
        strategy: a change of some axes of the plan's grid (``zero3``, ``tp4 dp16``, or as people
            name it: ``fsdp``, ``no recompute``, ``more tp``), a whole grid, or a plan, as
            `simulate` takes it.

    Raises:
        StrategyError: it cannot be read. InfeasibleError: no order to be found keeps within the
        memory.
    """
    stored = _stored(answer)
    plan = stored.simulation
    problem = problem_of(plan.request)
    reading = read_words(strategy, of=plan.grid) if is_grid_text(strategy) else Reading(strategy)
    name, asked = _asked(plan, problem, reading.text)
    grid = (
        asked
        if isinstance(asked, Grid)
        else None
        if has_searched_orders(asked)
        else grid_of(asked, model=problem.model)
    )
    broken = tuple(_broken(problem, asked))
    other = None
    if not broken:
        other = simulated(
            plan.request,
            problem,
            name=name,
            grid=grid,
            plan=None if isinstance(asked, Grid) else asked,
        )
    text = print_grid(grid) if grid is not None else name
    return Why(
        plan=plan,
        strategy=text,
        broken=broken,
        other=other,
        placed=_placed(stored, problem, grid, other),
        read_as=reading.read_as,
    )


def _stored(
    answer: Answer | GeneralAnswer[Any] | Simulation | StoredSimulation,
) -> StoredSimulation:
    if isinstance(answer, StoredSimulation):
        return answer
    if isinstance(answer, Answer):
        return stored_answer(answer)
    return stored_simulation(answer) if isinstance(answer, Simulation) else stored_general(answer)


def _asked(plan: Simulation, problem: Problem, strategy: str) -> tuple[str, Grid | Plan]:
    """Name and strategy of the user's text; a grid's words change the plan's grid, where it has
    one.
    """
    if plan.grid is not None and is_grid_text(strategy):
        return strategy, changed_grid(plan.grid, strategy)
    found = read_strategy(
        strategy,
        model=problem.model,
        model_name=plan.request.model,
        devices=problem.cluster.num_devices,
    )
    return found.name, found.strategy


def _broken(problem: Problem, asked: Grid | Plan) -> tuple[Violation, ...]:
    """Every rule that a strategy breaks, including those of writing a grid out as a plan."""
    try:
        return tuple(
            grid_violations(problem, asked)
            if isinstance(asked, Grid)
            else plan_violations(problem, asked)
        )
    except StrategyError as error:
        return (
            Violation(
                rule=error.rule,
                message=error.message.removesuffix(f" [{error.rule}]"),
                hint=error.hint,
                path=error.path,
            ),
        )


def _placed(
    stored: StoredSimulation, problem: Problem, grid: Grid | None, other: Simulation | None
) -> Placed:
    if not isinstance(stored, StoredPlan):
        return Placed(fate=Fate.UNSEARCHED, reason="the plan is one strategy that was simulated")
    if stored.certificate.scenarios is not None:
        return Placed(
            fate=Fate.UNSEARCHED,
            reason=(
                "the search was over several scenarios, and both are compared on the cluster as"
                " it is"
            ),
        )
    least = stored.certificate.lower_bound_s
    if other is None:
        return Placed(fate=Fate.ILLEGAL, reason="no space has it")
    mixed = stored.certificate.mixed is not None
    if grid is None or mixed or stored.space not in GRIDS:
        name = "mixed" if mixed else stored.space
        return Placed(
            fate=Fate.UNSEARCHED, reason=f"the {name} space has other strategies", bound_s=least
        )
    facts = facts_of(problem)
    same = canonical(grid, facts=facts)
    ranked = [stored.grid, *(other.grid for other in stored.alternatives)]
    for rank, one in enumerate(ranked, start=1):
        if one is not None and canonical(one, facts=facts) == same:
            return Placed(
                fate=Fate.BEST if rank == 1 else Fate.RANKED, reason=f"rank {rank}", bound_s=least
            )
    grids = replace(stored.request, space="standard") if stored.space in JOINT else stored.request
    known = max(
        stored.certificate.best_s, *(other.step_time_s for other in stored.alternatives), 0.0
    )
    space, capacity = space_of(grids, problem, facts), capacity_of(grids, problem)
    found = placed_in(problem, space, facts, grid, capacity=capacity, known_s=known)
    if found.fate is Fate.SIMULATED and fullest(other.prediction).reserved > capacity:
        return replace(
            found,
            fate=Fate.INFEASIBLE,
            reason="it was simulated, and needs more memory than a device may fill",
        )
    lack = host_lack(other.prediction.host_memory)
    if found.fate in (Fate.SIMULATED, Fate.INFEASIBLE) and lack:
        return replace(found, fate=Fate.INFEASIBLE, reason=f"it does not fit {lack}")
    if found.fate is Fate.SIMULATED and not stored.certificate.optimal:
        return replace(
            found,
            fate=Fate.UNSEARCHED,
            reason="the search was stopped before it was ruled out, or simulated",
        )
    return found
