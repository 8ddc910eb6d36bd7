"""Comparison of a plan with another strategy: both simulated, broken rules, and the fate of the
other in the search.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.api.general import stored_general
from shardwright.api.problems import JOINT, SPACES, capacity_of, facts_of, problem_of, space_of
from shardwright.api.simulated import simulated
from shardwright.errors import StrategyError
from shardwright.files.plan_source import is_grid_text, read_strategy
from shardwright.files.stored import StoredPlan, StoredSimulation, stored_answer, stored_simulation
from shardwright.program.legal import grid_violations, plan_violations
from shardwright.program.problem import Problem
from shardwright.search.answer import Answer
from shardwright.search.exact.find import ExactAnswer
from shardwright.search.grid.placed import Fate, Placed, placed_in
from shardwright.search.joint.find import JointAnswer
from shardwright.search.orders.resolve_plan import is_open
from shardwright.search.simulation import Simulation
from shardwright.search.why import Why, fullest
from shardwright.simulator.prediction import host_lack
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.match import grid_of
from shardwright.strategy.grid.rules import canonical
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import changed_grid, print_grid
from shardwright.strategy.text.strategy_words import Reading, read_words
from shardwright.strategy.violation import Violation

GRID_SPACES: Final = frozenset((*SPACES, *JOINT))
"""Spaces that have all grids of a grid space."""


def why(
    answer: Answer | JointAnswer | ExactAnswer | Simulation | StoredSimulation, strategy: str
) -> Why:
    """Gain and loss of `strategy` against an answer's plan, or the rules that it breaks; and its
    fate in the search.

    Args:
        answer: answer of a search or a simulation, or the record of a plan file.
        strategy: a change of some axes of the plan's grid (``zero3``, ``tp4 dp16``, or an everyday
            phrase: ``fsdp``, ``no recompute``, ``more tp``), a whole grid, or a plan, as `simulate`
            takes it.

    Raises:
        StrategyError: it cannot be read.
        InfeasibleError: no order within the memory is found.
    """
    stored = _stored(answer)
    plan = stored.simulation
    problem = problem_of(plan.request)
    reading = read_words(strategy, of=plan.grid) if is_grid_text(strategy) else Reading(strategy)
    name, question = _asked(plan, problem, reading.text)
    grid = (
        question
        if isinstance(question, Grid)
        else None
        if is_open(question)
        else grid_of(question, model=problem.model)
    )
    broken = tuple(_broken(problem, question))
    other_simulation = None
    if not broken:
        other_simulation = simulated(
            plan.request,
            problem,
            name=name,
            grid=grid,
            plan=None if isinstance(question, Grid) else question,
        )
    text = print_grid(grid) if grid is not None else name
    return Why(
        plan=plan,
        strategy=text,
        broken=broken,
        other=other_simulation,
        placed=_placed(stored, problem, grid, other_simulation),
        read_as=reading.read_as,
    )


def _stored(
    answer: Answer | JointAnswer | ExactAnswer | Simulation | StoredSimulation,
) -> StoredSimulation:
    """The answer as the record of a plan file."""
    if isinstance(answer, StoredSimulation):
        return answer
    if isinstance(answer, Answer):
        return stored_answer(answer)
    return stored_simulation(answer) if isinstance(answer, Simulation) else stored_general(answer)


def _asked(plan: Simulation, problem: Problem, strategy: str) -> tuple[str, Grid | Plan]:
    """Name of the strategy of the question, and the strategy; a grid's words change the plan's
    grid, where it has one.
    """
    if plan.grid is not None and is_grid_text(strategy):
        return strategy, changed_grid(plan.grid, strategy)
    source = read_strategy(
        strategy,
        model=problem.model,
        model_name=plan.request.model,
        devices=problem.cluster.num_devices,
    )
    return source.name, source.strategy


def _broken(problem: Problem, question: Grid | Plan) -> tuple[Violation, ...]:
    """All rules that a strategy breaks, with those of expanding a grid into a plan."""
    try:
        return tuple(
            grid_violations(problem, question)
            if isinstance(question, Grid)
            else plan_violations(problem, question)
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
    """Fate of a strategy in the stored plan's search, with the reason."""
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
    lower_bound_s = stored.certificate.lower_bound_s
    if other is None:
        return Placed(fate=Fate.ILLEGAL, reason="no space has it")
    mixed = stored.certificate.mixed is not None
    if grid is None or mixed or stored.space not in GRID_SPACES:
        name = "mixed" if mixed else stored.space
        return Placed(
            fate=Fate.UNSEARCHED,
            reason=f"the {name} space has other strategies",
            bound_s=lower_bound_s,
        )
    facts = facts_of(problem)
    canonical_grid = canonical(grid, facts=facts)
    ranked = [stored.grid, *(other.grid for other in stored.alternatives)]
    for rank, ranked_grid in enumerate(ranked, start=1):
        if ranked_grid is not None and canonical(ranked_grid, facts=facts) == canonical_grid:
            return Placed(
                fate=Fate.BEST if rank == 1 else Fate.RANKED,
                reason=f"rank {rank}",
                bound_s=lower_bound_s,
            )
    grids = replace(stored.request, space="standard") if stored.space in JOINT else stored.request
    best_known_s = max(
        stored.certificate.best_s, *(other.step_time_s for other in stored.alternatives), 0.0
    )
    space, capacity = space_of(grids, problem, facts), capacity_of(grids, problem)
    placed = placed_in(problem, space, facts, grid, capacity=capacity, known_s=best_known_s)
    if placed.fate is Fate.SIMULATED and fullest(other.prediction).reserved > capacity:
        return replace(
            placed,
            fate=Fate.INFEASIBLE,
            reason="it was simulated, and needs more memory than a device may fill",
        )
    host_shortage = host_lack(other.prediction.host_memory)
    if placed.fate in (Fate.SIMULATED, Fate.INFEASIBLE) and host_shortage:
        return replace(placed, fate=Fate.INFEASIBLE, reason=f"it does not fit {host_shortage}")
    if placed.fate is Fate.SIMULATED and not stored.certificate.optimal:
        return replace(
            placed,
            fate=Fate.UNSEARCHED,
            reason="the search was stopped before it was ruled out, or simulated",
        )
    return placed
