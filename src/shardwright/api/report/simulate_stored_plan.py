"""Simulation of a stored plan once, for all views of its report."""

from __future__ import annotations

from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.files.plan_and_simulation_file_contents import StoredSimulation
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.simulator.plan_simulation import SimulatedPlan, simulate_plan
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """A stored plan, simulated again as a general plan.

    Args:
        plan: with every searched order in place.
        prediction: by device class (`simulated.program.classes`, in that order).
    """

    problem: Problem
    plan: Plan
    simulated: SimulatedPlan
    prediction: Prediction


def simulate_stored(saved: StoredSimulation) -> SimulatedStep:
    """Simulate the plan of a file.

    Raises:
        ResourceError: this machine does not have the memory for so many tasks.
    """
    stored = stored_plan(saved)
    plan = with_searched_orders(stored.problem, stored.plan)
    simulated = simulate_plan(stored.problem, plan)
    return SimulatedStep(
        problem=stored.problem,
        plan=plan,
        simulated=simulated,
        prediction=predict_plan(stored.problem, plan, simulated, with_sources=False),
    )
