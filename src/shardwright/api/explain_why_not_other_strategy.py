"""Compare a plan with another strategy: changes, broken rules, and its fate in the search."""

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
from shardwright.api.searches.general_plan_file_content_and_verification import stored_general
from shardwright.api.simulate_grid_or_plan_of_request import simulate_legal_strategy
from shardwright.errors import StrategyError
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    StoredSimulation,
    stored_answer,
    stored_simulation,
)
from shardwright.files.plan_argument import is_grid_text, read_strategy
from shardwright.program.strategy_rule_violations import grid_violations, plan_violations
from shardwright.program.training_problem import Problem
from shardwright.search.grid.fate_of_grid import Fate, LocatedGrid, placed_in
from shardwright.search.orders.search_orders_of_plan import has_searched_orders
from shardwright.search.plan_against_strategy_result import Why, fullest
from shardwright.search.search_answer import Answer, GeneralAnswer
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.prediction import host_lack
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.text.grid_notation import changed_grid, print_grid
from shardwright.strategy.text.translate_phrases_to_grid_notation import (
    TranslatedStrategy,
    translate_phrases,
)

GRID_SPACES: Final = frozenset((*SPACES, *JOINT))
"""Names of the spaces that contain a whole space of grids."""


def why(answer: Answer | GeneralAnswer[Any] | Simulation | StoredSimulation, strategy: str) -> Why:
    """Compare `strategy` with an answer's plan: both simulations, broken rules, fate in the search.

    Args:
        answer: the answer of a search, a simulation, or the content of a plan file.
        strategy: a change of some axes of the plan's grid (``zero3``, ``tp4 dp16``, or as people
            name it: ``fsdp``, ``no recompute``, ``more tp``), a whole grid, or a plan, as
            `simulate` takes it.

    Raises:
        StrategyError: the strategy cannot be read. InfeasibleError: no schedule within the memory
        was found.
    """
    stored = _stored_answer(answer)
    plan = stored.simulation
    problem = problem_of(plan.request)
    words_read = (
        translate_phrases(strategy, of=plan.grid)
        if is_grid_text(strategy)
        else TranslatedStrategy(strategy)
    )
    name, requested = _requested_strategy(plan, problem, words_read.text)
    grid = (
        requested
        if isinstance(requested, Grid)
        else None
        if has_searched_orders(requested)
        else grid_of(requested, model=problem.model)
    )
    broken = tuple(_broken_rules(problem, requested))
    other = None
    if not broken:
        other = simulate_legal_strategy(
            plan.request,
            problem,
            name=name,
            grid=grid,
            plan=None if isinstance(requested, Grid) else requested,
        )
    text = print_grid(grid) if grid is not None else name
    return Why(
        plan=plan,
        strategy=text,
        broken=broken,
        other=other,
        placed=_fate_in_search(stored, problem, grid, other),
        read_as=words_read.read_as,
    )


def _stored_answer(
    answer: Answer | GeneralAnswer[Any] | Simulation | StoredSimulation,
) -> StoredSimulation:
    """Convert an answer of any search, or a simulation, to the content of its plan file."""
    if isinstance(answer, StoredSimulation):
        return answer
    if isinstance(answer, Answer):
        return stored_answer(answer)
    return stored_simulation(answer) if isinstance(answer, Simulation) else stored_general(answer)


def _requested_strategy(
    plan: Simulation, problem: Problem, strategy: str
) -> tuple[str, Grid | Plan]:
    """(name, grid or plan) of the user's strategy; words of a grid change the plan's grid."""
    if plan.grid is not None and is_grid_text(strategy):
        schedules = problem.runtime.schedules
        return strategy, changed_grid(plan.grid, strategy, schedules=schedules)
    source = read_strategy(
        strategy,
        model=problem.model,
        model_name=plan.request.model,
        devices=problem.cluster.num_devices,
        schedules=problem.runtime.schedules,
    )
    return source.name, source.strategy


def _broken_rules(problem: Problem, requested: Grid | Plan) -> tuple[Violation, ...]:
    """Every rule that a grid or plan breaks; an error of converting a grid counts as one."""
    try:
        return tuple(
            grid_violations(problem, requested)
            if isinstance(requested, Grid)
            else plan_violations(problem, requested)
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


def _fate_in_search(
    stored: StoredSimulation, problem: Problem, grid: Grid | None, other: Simulation | None
) -> LocatedGrid:
    """Fate of a strategy in a stored plan's search; `other` = its simulation, None if illegal."""
    if not isinstance(stored, StoredPlan):
        return LocatedGrid(
            fate=Fate.UNSEARCHED, reason="the plan is one strategy that was simulated"
        )
    if stored.certificate.scenarios is not None:
        return LocatedGrid(
            fate=Fate.UNSEARCHED,
            reason=(
                "the search was over several scenarios, and both are compared on the cluster as"
                " it is"
            ),
        )
    lower_bound_s = stored.certificate.lower_bound_s
    if other is None:
        return LocatedGrid(fate=Fate.ILLEGAL, reason="no space has it")
    mixed = stored.certificate.mixed is not None
    if grid is None or mixed or stored.space not in GRID_SPACES:
        name = "mixed" if mixed else stored.space
        return LocatedGrid(
            fate=Fate.UNSEARCHED,
            reason=f"the {name} space has other strategies",
            bound_s=lower_bound_s,
        )
    facts = facts_of(problem)
    same = canonical(grid, facts=facts)
    ranked = [stored.grid, *(other.grid for other in stored.alternatives)]
    for rank, ranked_grid in enumerate(ranked, start=1):
        if ranked_grid is not None and canonical(ranked_grid, facts=facts) == same:
            return LocatedGrid(
                fate=Fate.BEST if rank == 1 else Fate.RANKED,
                reason=f"rank {rank}",
                bound_s=lower_bound_s,
            )
    grids = replace(stored.request, space="standard") if stored.space in JOINT else stored.request
    known = max(
        stored.certificate.best_s, *(other.step_time_s for other in stored.alternatives), 0.0
    )
    space, capacity = space_of(grids, problem, facts), capacity_of(grids, problem)
    placed = placed_in(problem, space, facts, grid, capacity=capacity, known_s=known)
    if placed.fate is Fate.SIMULATED and fullest(other.prediction).reserved > capacity:
        return replace(
            placed,
            fate=Fate.INFEASIBLE,
            reason="it was simulated, and needs more memory than a device may fill",
        )
    lack = host_lack(other.prediction.host_memory)
    if placed.fate in (Fate.SIMULATED, Fate.INFEASIBLE) and lack:
        return replace(placed, fate=Fate.INFEASIBLE, reason=f"it does not fit {lack}")
    if placed.fate is Fate.SIMULATED and not stored.certificate.optimal:
        return replace(
            placed,
            fate=Fate.UNSEARCHED,
            reason="the search was stopped before it was ruled out, or simulated",
        )
    return placed
