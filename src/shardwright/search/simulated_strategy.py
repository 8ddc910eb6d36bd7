"""A simulated strategy with the request that repeats its simulation."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.answer_summary_text import Line, summary, text_of
from shardwright.search.search_request import Request
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import NamedOrder
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.strategy.text.replace_unprintable_characters import MAX_STRATEGY, printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulated strategy with its request.

    Args:
        name: name of the strategy, such as the first line of a notation.
        grid: the grid that expresses it, None = no grid does.
        plan: the general plan that was simulated, with every order found; None if the grid was
            lowered as it is.
        prediction: time and memory; of a general plan by classes of devices.
        classes: text of the devices of each class (general plans).
        notes: changes that were made to the strategy before the simulation, one line each.
        fitting: changes of one axis with which a grid that does not fit would fit.
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
        """Text of the request and the simulated step."""
        return text_of(simulation_lines(self))


def simulation_lines(simulation: Simulation) -> list[Line]:
    """Lines (label, text) of the request and of the simulated step."""
    texts = {name: getattr(simulation, name) for name in ("classes", "fitting", "notes")}
    return summary(
        simulation.request, simulation.prediction, strategy=strategy_text(simulation), **texts
    )


def strategy_text(simulation: Simulation) -> str:
    """Text of a simulated grid, or of a plan's name, sizes and pipeline orders."""
    if simulation.grid is not None:
        return print_grid(simulation.grid)
    assert simulation.plan is not None
    plan, name = simulation.plan, printable(simulation.name, length=MAX_STRATEGY)
    stages = sum(len(lane.stages) for lane in plan.lanes)
    counts = (
        _count_text(plan.devices, "device"),
        _count_text(len(plan.lanes), "lane"),
        _count_text(stages, "stage"),
    )
    orders = ", ".join(o.schedule if isinstance(o, NamedOrder) else "a table" for o in plan.orders)
    pipelined = any(len(lane.stages) > 1 for lane in plan.lanes)
    return f"{name or 'a plan'}: {', '.join(counts)}{f', order {orders}' if pipelined else ''}"


def _count_text(number: int, noun: str) -> str:
    """Text of a number with its noun in singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Results of the verification of a stored simulation.

    Args:
        devices: number of devices of the strategy.
        actions: number of actions in its orders, which run without a deadlock (0 if a grid was
            lowered as it is).
        drift: |new - stored| / stored step time.
        full: fraction of its memory that the fullest device needs.
        leaves: number of values of the file that were recomputed.
    """

    devices: int
    actions: int
    drift: float
    full: float
    leaves: int = 0
