"""The exit code of an answer that has a verdict on memory."""

from __future__ import annotations

from shardwright.errors import InfeasibleError
from shardwright.simulator.prediction import Prediction


def exit_code(*predictions: Prediction) -> int:
    """0 where any of the predictions fits, else that of `InfeasibleError`: an answer that nobody
    can run is not a success.
    """
    return 0 if any(one.fits for one in predictions) else InfeasibleError.exit_code
