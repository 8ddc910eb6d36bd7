"""A row of a comparison: a simulated strategy with the seconds and dollars of a training run."""

from __future__ import annotations

from shardwright.cost.step.dollars_and_joules import usd_of_step
from shardwright.hardware.catalog.list_prices import ListPrice
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.simulated_strategy import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A simulated strategy as a row of a comparison, with prices and training tokens.

    Args:
        simulation: simulation on the row's own cluster.
        devices: number of devices of the cluster.
        prices: list prices of each kind of node; () = unknown.
        usd_per_hour: dollars an hour of the nodes that the strategy uses, None if a price is
            unknown.
        tokens: number of training tokens; 0 = not given.
    """

    simulation: Simulation
    devices: int
    prices: tuple[ListPrice, ...]
    usd_per_hour: float | None
    tokens: float

    @property
    def seconds(self) -> float:
        """Seconds of training on all tokens, without failures, checkpoints and evaluation."""
        return self.tokens / self.simulation.prediction.tokens_per_s

    @property
    def paid_devices(self) -> int:
        """Number of devices in the paid nodes; all the cluster's if spending is unknown."""
        spending = self.simulation.prediction.spending
        return sum(spending.paid_devices) if spending is not None else self.devices

    @property
    def usd(self) -> float | None:
        """Dollars of nodes and inter-zone traffic for all tokens; None if a price is unknown."""
        return None if self.usd_per_token is None else self.usd_per_token * self.tokens

    @property
    def usd_per_token(self) -> float | None:
        """Dollars of nodes and inter-zone traffic per token; None if a price is unknown."""
        prediction = self.simulation.prediction
        if self.usd_per_hour is None:
            return None
        egress = prediction.spending.egress_usd if prediction.spending is not None else 0.0
        step = usd_of_step(
            prediction.step_time_s, usd_per_hour=self.usd_per_hour, egress_usd=egress
        )
        return step / (prediction.step_time_s * prediction.tokens_per_s)
