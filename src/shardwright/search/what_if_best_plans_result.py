"""Best plans of a request at several values of one axis, and where the best plan changes."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.best_simulation_with_certificate import CertifiedSimulation
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import strategy_text
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPosition:
    """The best plan of a request at one value of an axis.

    Args:
        value: number of sequences, tokens or devices; of the other axes the factor by which the
            request's quantity is multiplied.
        is_base: True for the request's own value.
        amount: the quantity at that value, such as bytes of a device's memory; None on a cluster
            of several kinds of devices.
        request: the changed request; its search finds the same plan again.
        prices: (name, dollars a device-hour) pairs, as ``--price`` has them.
        devices: number of devices of the cluster.
        found: the best plan with its certificate; None if nothing fits.
        why: the reason why nothing fits; empty if a plan fits.
        usd_per_million_tokens: None if nothing fits, or a node in use has no price.
    """

    value: float
    is_base: bool
    amount: float | None
    request: Request
    prices: tuple[tuple[str, float], ...]
    devices: int
    found: CertifiedSimulation | None
    why: str
    usd_per_million_tokens: float | None

    @property
    def strategy(self) -> str:
        """Text of the best plan; empty if nothing fits."""
        return "" if self.found is None else strategy_text(self.found.simulation)

    @property
    def plan(self) -> Grid | Plan | None:
        """The best plan: a grid where one expresses it; None if nothing fits."""
        if self.found is None:
            return None
        return self.found.simulation.grid or self.found.simulation.plan

    @property
    def step_s(self) -> float | None:
        """Predicted seconds of a step; None if nothing fits."""
        return None if self.found is None else self.found.simulation.prediction.step_time_s

    @property
    def tokens_per_s_per_device(self) -> float | None:
        """Tokens a second for each device of the cluster, idle ones too; None if nothing fits."""
        if self.found is None:
            return None
        return self.found.simulation.prediction.tokens_per_s / self.devices


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Two positions between which the best plan changes, as near as they were searched."""

    low: WhatIfPosition
    high: WhatIfPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The best plans of a request at several values of one axis, all else equal.

    Args:
        axis: name of the axis (`api.what_if.axes_of_request.AXES`).
        request: the request that was changed.
        positions: ascending in value; those that a search ended for.
        break_evens: between neighbouring positions with different best plans, ascending.
    """

    axis: str
    request: Request
    positions: tuple[WhatIfPosition, ...]
    break_evens: tuple[BreakEven, ...]
