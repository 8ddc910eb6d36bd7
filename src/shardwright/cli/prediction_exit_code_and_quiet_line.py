"""Exit code and ``--quiet`` line of a prediction that may not fit into memory."""

from __future__ import annotations

from shardwright.errors import InfeasibleError
from shardwright.search.answer_summary_text import answer_line, misfit_text
from shardwright.search.simulated_strategy import Simulation, strategy_text
from shardwright.simulator.prediction import Prediction


def exit_code(*predictions: Prediction) -> int:
    """0 if any of the predictions fits in memory, else the exit code of `InfeasibleError`."""
    return 0 if any(prediction.fits for prediction in predictions) else InfeasibleError.exit_code


def simulation_line(simulation: Simulation, *, prefix: str = "") -> str:
    """Line of ``--quiet``: seconds a step, `prefix` and strategy, and a note if it does not fit."""
    prediction = simulation.prediction
    return answer_line(
        prefix + strategy_text(simulation),
        step_time_s=prediction.step_time_s,
        misfit=misfit_text(prediction, classes=simulation.classes),
    )
