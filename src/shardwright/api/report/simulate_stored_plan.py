"""Simulation of a stored plan once, for all views of its report."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.plan_and_problem_from_file import stored_plan
from shardwright.errors import DataError
from shardwright.files.compare_documents import differences
from shardwright.files.plan_and_simulation_file_contents import (
    StoredPlan,
    StoredSimulation,
    prediction_document,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.orders.search_orders_of_plan import with_searched_orders
from shardwright.simulator.predict_plan import predict_plan
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_plan
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """A stored plan, simulated again as a general plan.

    Args:
        plan: the stored plan, with the order that its search finds in place of a searched order.
        prediction: values by device class stand in the order of `simulated.program.classes`.
    """

    problem: Problem
    plan: Plan
    simulated: SimulatedPlan
    prediction: Prediction


def simulate_stored(saved: StoredSimulation) -> SimulatedStep:
    """Simulate the plan of a file; error unless the file has the prediction of this version.

    A report has numbers of the file and of this simulation, so both must be one prediction.

    Raises:
        DataError: the file's prediction is not what this version simulates.
        ResourceError: this machine does not have the memory for so many tasks.
    """
    stored = stored_plan(saved)
    plan = with_searched_orders(stored.problem, stored.plan)
    simulated = simulate_plan(stored.problem, plan)
    prediction = predict_plan(stored.problem, plan, simulated, with_sources=False)
    _require_stored_prediction(saved, prediction)
    return SimulatedStep(
        problem=stored.problem,
        plan=plan,
        simulated=simulated,
        prediction=prediction,
    )


def _require_stored_prediction(saved: StoredSimulation, prediction: Prediction) -> None:
    """Raise DataError unless a file's prediction equals the given one, made without sources.

    Ignores `full_bytes`, which needs sources and which no view shows.
    """
    comparable = replace(prediction, full_bytes=saved.prediction.full_bytes)
    found = differences(prediction_document(saved.prediction), prediction_document(comparable))
    if not found:
        return
    first = next((one for one in found if one.path == "step_time_s"), found[0])
    verb = "plan" if isinstance(saved, StoredPlan) else "simulate"
    raise DataError(
        f"the file's prediction is not what this version simulates: {first}",
        hint=(
            f"write the file again with `shardwright {verb} ... -o FILE`;"
            " `shardwright check FILE` lists every difference"
        ),
    )
