"""Workers that serve together, and how: what a simulation needs to know beside requests and the
step table.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.job.serving import Speculation
from shardwright.lazy_dataclass import dataclass
from shardwright.serving.deployments.scheduler_settings import Scheduler
from shardwright.serving.simulation.request_router import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessing:
    """How many guesses are right. `acceptance`: see `Speculation`; `sampled`: drawn for each
    iteration of each request from `seed`, else every request gets what is the mean, rounded down in
    sum.
    """

    acceptance: float = 0.0
    sampled: bool = False
    seed: int = 0

    def chances(self, guesses: int) -> FloatArray:
        """As `policy.guesses` takes them: acceptance, sampled or not, tokens in the mean."""
        mean = Speculation(tokens=guesses, acceptance=self.acceptance).mean_tokens
        return np.array([self.acceptance, self.sampled, mean], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Equal workers.

    Args:
        scheduler: of each rank.
        workers: how many;
        ranks: of each, in lockstep.
        router: which one a request goes to.
        think_s: seconds between the last token of a request and the arrival of the next one of a
            closed loop.
        guessing: of speculation.
    """

    scheduler: Scheduler
    workers: int = 1
    ranks: int = 1
    router: Router = Router.ROUND_ROBIN
    think_s: float = 0.0
    guessing: Guessing = Guessing()

    def __post_init__(self) -> None:
        if self.workers < 1 or self.ranks < 1:
            raise ValueError(f"{self.workers} workers of {self.ranks} ranks")
