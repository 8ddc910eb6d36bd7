"""Equal workers that serve one stream of requests: their number, ranks, scheduler and router."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Speculation
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings
from shardwright.serving.simulation.request_router import Router


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftAcceptance:
    """Acceptance of draft tokens in speculative decoding.

    Args:
        acceptance: see `Speculation`.
        sampled: drawn for each iteration of each request from `seed`; otherwise every request gets
            the mean, rounded down in sum.
        seed: random seed.
    """

    acceptance: float = 0.0
    sampled: bool = False
    seed: int = 0

    def chances(self, draft_tokens: int) -> FloatArray:
        """(3,) a draft token's acceptance, 1.0 if sampled (else 0.0), mean tokens an iteration."""
        mean = Speculation(tokens=draft_tokens, acceptance=self.acceptance).mean_tokens
        return np.array([self.acceptance, self.sampled, mean], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Equal workers that serve one stream of requests.

    Args:
        scheduler: settings of each rank's scheduler.
        workers: number of workers.
        ranks: ranks of each worker, in lockstep.
        router: rule that chooses the rank of a request.
        think_s: seconds between the last token of a request and the arrival of the next one of a
            closed loop.
        acceptance: acceptance of draft tokens.
    """

    scheduler: SchedulerSettings
    workers: int = 1
    ranks: int = 1
    router: Router = Router.ROUND_ROBIN
    think_s: float = 0.0
    acceptance: DraftAcceptance = DraftAcceptance()

    def __post_init__(self) -> None:
        if self.workers < 1 or self.ranks < 1:
            raise ValueError(f"{self.workers} workers of {self.ranks} ranks")
