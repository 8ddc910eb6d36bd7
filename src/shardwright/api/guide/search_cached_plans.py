"""Search plans for the guide, each request once."""

from __future__ import annotations

import time
from math import inf
from typing import Final

from shardwright.api.guide.best_plan_record import BestPlan
from shardwright.api.searches.find_certified_simulation import find_certified_simulation
from shardwright.errors import (
    ClusterError,
    InfeasibleError,
    RuntimeModelError,
    StrategyError,
    UsageError,
)
from shardwright.progress_callback import Progress
from shardwright.search.search_request import Request

EXCLUDED: Final = (ClusterError, RuntimeModelError, StrategyError, UsageError)
"""Errors of a request whose plans are all excluded by a rule, the framework or the cluster."""
NOTHING_LEGAL: Final = "no legal strategy"
"""First words of the error of a space in which each member breaks a rule."""
MOST_LOOKS: Final = 3000
"""Clock checks after which the search of a plan ends with what it found, the same on any machine;
the search of the guide's best plan has no such limit."""


class PlanSearches:
    """Searches plans of requests, and keeps the result of each.

    Args:
        time_limit_s: seconds after which `is_late` is true.
        progress: function that is told of each search.
    """

    def __init__(
        self, *, time_limit_s: float = inf, progress: Progress | None = None, expected: int = 0
    ) -> None:
        self._plans: dict[Request, BestPlan] = {}
        self._progress = progress
        self._expected = expected
        self._end_s = time.monotonic() + time_limit_s

    @property
    def count(self) -> int:
        """Number of different training requests whose best plan was searched or stored."""
        return len(self._plans)

    @property
    def is_late(self) -> bool:
        """True if the time limit has passed."""
        return time.monotonic() > self._end_s

    def best(self, request: Request) -> BestPlan:
        """The best plan of a request; searched once."""
        if request not in self._plans:
            if self._progress is not None:
                self._progress("search", self.count, max(self._expected, self.count + 1))
            self._plans[request] = _search(request)
        return self._plans[request]

    def keep(self, request: Request, plan: BestPlan) -> None:
        """Store a plan that was searched elsewhere."""
        self._plans[request] = plan


def _search(request: Request) -> BestPlan:
    """Search the best plan of a request, without runners-up and hints, or the reason for none."""
    try:
        best = find_certified_simulation(request, hints=False, most_looks=MOST_LOOKS)
    except InfeasibleError as error:
        return BestPlan(
            request=request, impossible=error.message.startswith(NOTHING_LEGAL), why=error.message
        )
    except EXCLUDED as error:
        return BestPlan(request=request, impossible=True, why=error.message)
    return BestPlan(
        request=request,
        grid=best.simulation.grid,
        prediction=best.simulation.prediction,
        gap=best.certificate.gap,
    )
