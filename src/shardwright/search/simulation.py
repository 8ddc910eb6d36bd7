"""One strategy that was simulated, with all that asks for it again."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.search.request import Request
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What `api.simulations.simulation` returns.

    Args:
        name: of the strategy, such as the first line of a notation says. grid: the grid that says it, None if none does.
        plan: the general plan that was simulated, every order found; None where the grid was lowered as it is.
        prediction: time and memory; of a general plan by classes of devices. classes: devices of each class as text (general plans).
        notes: what was done to the strategy before it was simulated, one line each. fitting: of a grid that does not fit, changes of one
            axis that do.
    """

    request: Request
    name: str
    grid: Grid | None
    plan: Plan | None
    prediction: Prediction
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a second look at a stored simulation found.

    Args:
        devices: of the strategy. actions: that its orders hold and that run without a deadlock (0 where a grid was lowered as it is).
        drift: |simulated again - stored| / stored. full: share of its memory that the fullest device needs.
        leaves: of the file, made again.
    """

    devices: int
    actions: int
    drift: float
    full: float
    leaves: int = 0
