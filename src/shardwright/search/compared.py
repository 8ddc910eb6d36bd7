"""A simulated strategy as one of several that are compared, with what training under it costs."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.hardware.catalog.prices import ListPrice
from shardwright.search.simulation import Simulation

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of a comparison.

    Args:
        simulation: on its own cluster. devices: of the cluster. prices: of each kind of node; () = not known.
        usd_per_hour: of the whole cluster, None where a price is not known. tokens: to be trained on; 0 = not said.
    """

    simulation: Simulation
    devices: int
    prices: tuple[ListPrice, ...]
    usd_per_hour: float | None
    tokens: float

    @property
    def seconds(self) -> float:
        """Of training on all tokens, steps one after another: no failures, no checkpoints, no evaluation."""
        return self.tokens / self.simulation.prediction.tokens_per_s

    @property
    def usd(self) -> float | None:
        """What the cluster costs for as long."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.seconds / SECONDS_PER_HOUR

    @property
    def usd_per_token(self) -> float | None:
        """What the cluster costs while it trains on one token."""
        speed = self.simulation.prediction.tokens_per_s
        return None if self.usd_per_hour is None else self.usd_per_hour / SECONDS_PER_HOUR / speed
