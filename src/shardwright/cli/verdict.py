"""The exit code and the line of an answer that may not fit into memory."""

from __future__ import annotations

from shardwright.errors import InfeasibleError
from shardwright.search.answer_summary import answer_line, misfit_text
from shardwright.search.simulated_strategy import Simulation, strategy_text
from shardwright.simulator.prediction import Prediction


def exit_code(*predictions: Prediction) -> int:
    """0 where any of the predictions fits, else the code of `InfeasibleError`: an answer that
    nobody can run is not a success.
    """
    return 0 if any(one.fits for one in predictions) else InfeasibleError.exit_code


def simulation_line(simulation: Simulation, *, prefix: str = "") -> str:
    """The line of ``--quiet``: seconds of a step, the strategy behind `prefix`, and what does not
    fit.
    """
    prediction = simulation.prediction
    return answer_line(
        prefix + strategy_text(simulation),
        step_time_s=prediction.step_time_s,
        misfit=misfit_text(prediction, classes=simulation.classes),
    )
