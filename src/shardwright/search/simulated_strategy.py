"""A simulated strategy with the request that simulates it again."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.search.answer_summary import Line, summary, text_of
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.grid import Grid
from shardwright.strategy.plan.order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.strategy.text.printable import MAX_STRATEGY, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulated strategy with its request.

    Args:
        name: of the strategy, such as the first line of a notation says.
        grid: the grid that says it, None if none does.
        plan: the general plan that was simulated, every order found; None where the grid was
            lowered as it is.
        prediction: time and memory; of a general plan by classes of devices.
        classes: devices of each class as text (general plans).
        notes: what was done to the strategy before it was simulated, one line each.
        fitting: of a grid that does not fit, changes of one axis that do.
    """

    request: Request
    name: str
    grid: Grid | None
    plan: Plan | None
    prediction: Prediction
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fitting: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The request and the simulated step, in a few lines."""
        return text_of(simulation_lines(self))


def simulation_lines(simulation: Simulation) -> list[Line]:
    """Lines (label, text) of the request and of the simulated step."""
    given = {name: getattr(simulation, name) for name in ("classes", "fitting", "notes")}
    return summary(
        simulation.request, simulation.prediction, strategy=strategy_text(simulation), **given
    )


def strategy_text(simulation: Simulation) -> str:
    """The grid of a simulated strategy, or the name and size of its plan with its pipeline
    orders.
    """
    if simulation.grid is not None:
        return print_grid(simulation.grid)
    assert simulation.plan is not None
    plan, name = simulation.plan, printable(simulation.name, length=MAX_STRATEGY)
    stages = sum(len(lane.stages) for lane in plan.lanes)
    counts = (
        _count(plan.devices, "device"),
        _count(len(plan.lanes), "lane"),
        _count(stages, "stage"),
    )
    orders = ", ".join(o.schedule if isinstance(o, NamedOrder) else "a table" for o in plan.orders)
    pipelined = any(len(lane.stages) > 1 for lane in plan.lanes)
    return f"{name or 'a plan'}: {', '.join(counts)}{f', order {orders}' if pipelined else ''}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Results of the verification of a stored simulation.

    Args:
        devices: of the strategy.
        actions: that its orders hold and that run without a deadlock (0 where a grid was lowered as
            it is).
        drift: |simulated again - stored| / stored.
        full: share of its memory that the fullest device needs.
        leaves: of the file, made again.
    """

    devices: int
    actions: int
    drift: float
    full: float
    leaves: int = 0
