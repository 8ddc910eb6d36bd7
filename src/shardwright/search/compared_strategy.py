"""A row of a comparison: a simulated strategy with the seconds and dollars of a training run."""

from __future__ import annotations

from shardwright.cost.step.dollars_and_joules import usd_of_step
from shardwright.hardware.catalog.list_prices import ListPrice
from shardwright.lazy_dataclass import dataclass
from shardwright.search.simulated_strategy import Simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of a comparison.

    Args:
        simulation: on its own cluster.
        devices: of the cluster.
        prices: of each kind of node; () = not known.
        usd_per_hour: of the nodes that the strategy uses, None where a price is not known.
        tokens: to be trained on; 0 = not said.
    """

    simulation: Simulation
    devices: int
    prices: tuple[ListPrice, ...]
    usd_per_hour: float | None
    tokens: float

    @property
    def seconds(self) -> float:
        """Seconds of training on all tokens, one step after another: no failures, no
        checkpoints, no evaluation.
        """
        return self.tokens / self.simulation.prediction.tokens_per_s

    @property
    def paid_devices(self) -> int:
        """Devices of the nodes that are paid for."""
        spending = self.simulation.prediction.spending
        return sum(spending.paid_devices) if spending is not None else self.devices

    @property
    def usd(self) -> float | None:
        """Dollars of the nodes and of bytes between zones for training on all tokens; None where
        a price is unknown.
        """
        return None if self.usd_per_token is None else self.usd_per_token * self.tokens

    @property
    def usd_per_token(self) -> float | None:
        """Dollars of the nodes and of bytes between zones for one token; None where a price is
        unknown.
        """
        prediction = self.simulation.prediction
        if self.usd_per_hour is None:
            return None
        egress = prediction.spending.egress_usd if prediction.spending is not None else 0.0
        step = usd_of_step(
            prediction.step_time_s, usd_per_hour=self.usd_per_hour, egress_usd=egress
        )
        return step / (prediction.step_time_s * prediction.tokens_per_s)
