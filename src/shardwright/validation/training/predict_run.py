"""Predict the step time and memory of a measured training run."""

from __future__ import annotations

from shardwright.errors import InfeasibleError
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, Constants
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.prediction import Prediction
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.validation.training.measured_training_run import TrainingRun


def problem_of_run(run: TrainingRun, constants: Constants = SHIPPED) -> Problem:
    """Prediction problem (model, cluster, job, runtime) of a measured run under `constants`."""
    return Problem(
        model=run.model,
        cluster=run.cluster,
        job=run.job,
        runtime=load_runtime(run.runtime),
        constants=constants,
    )


def predict_run(run: TrainingRun, constants: Constants = SHIPPED) -> Prediction:
    """Predict step time and memory of a measured run, even if it exceeds the device's memory.

    Raises:
        InfeasibleError, StrategyError, ModelError, ClusterError, RuntimeModelError: the part that
        cannot be predicted.
    """
    return predict(problem_of_run(run, constants), run.grid, with_sources=False)


def predict_fitting_run(run: TrainingRun, constants: Constants = SHIPPED) -> Prediction:
    """Predict step time and memory of a measured run; raises if it does not fit.

    Raises:
        InfeasibleError: the run does not fit. Others as `predict_run`.
    """
    prediction = predict_run(run, constants)
    require_fits(prediction)
    return prediction


def require_fits(prediction: Prediction) -> None:
    """Raise InfeasibleError if the predicted allocation exceeds a device's memory."""
    capacity, allocated = prediction.capacity_bytes, prediction.allocated_bytes
    if capacity and allocated > capacity:
        raise InfeasibleError(f"{allocated} bytes on a device of {capacity}")


def step_seconds(run: TrainingRun, constants: Constants = SHIPPED) -> float:
    """Simulated seconds a step of a measured run, without its memory."""
    return simulate_grid(problem_of_run(run, constants), run.grid).step_time_s
