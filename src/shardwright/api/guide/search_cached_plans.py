"""Search plans for the guide, each request once."""

from __future__ import annotations

import time
from dataclasses import replace
from math import inf
from typing import Final

from shardwright.api.request_to_command import command_text
from shardwright.api.searches.find_certified_simulation import find_certified_simulation
from shardwright.errors import (
    ClusterError,
    InfeasibleError,
    RuntimeModelError,
    StrategyError,
    UsageError,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.report.page.view_data.guide_rules_and_verdicts import GuidePlan
from shardwright.search.search_request import Choices, Request
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid

EXCLUDED: Final = (ClusterError, RuntimeModelError, StrategyError, UsageError)
"""Errors of a request whose plans are all excluded by a rule, the framework or the cluster."""
NOTHING_LEGAL: Final = "no legal strategy"
"""First words of the error of a space in which each member breaks a rule."""
MOST_LOOKS: Final = 3000
"""Clock checks after which the search of a plan ends with what it found, the same on any machine;
the search of the guide's best plan has no such limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlan:
    """The best plan of a request, or why there is none.

    Args:
        grid, prediction: None where there is no plan.
        gap: share of the step by which an unsearched plan may be faster; 0 where all are searched.
        impossible: True if a rule or the training framework excludes all plans, False if all plans
            need too much memory.
        why: reason why there is no plan.
    """

    request: Request
    grid: Grid | None = None
    prediction: Prediction | None = None
    gap: float = 0.0
    impossible: bool = False
    why: str = ""

    @property
    def step_s(self) -> float:
        """Step seconds; infinity where there is no plan."""
        return inf if self.prediction is None else self.prediction.step_time_s


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
        """Number of different requests that were searched."""
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


def searched_plan(plan: BestPlan) -> GuidePlan:
    """Contents of the guide for a searched plan, or for the reason why there is none."""
    if plan.grid is None or plan.prediction is None:
        return GuidePlan(command=command_text(plan.request), why=plan.why)
    prediction = plan.prediction
    return GuidePlan(
        command=command_text(plan.request),
        strategy=print_grid(plan.grid),
        step_s=prediction.step_time_s,
        tokens_per_s=prediction.tokens_per_s,
        memory_share=prediction.reserved_bytes / prediction.capacity_bytes,
        gap=plan.gap,
    )


def with_pins(request: Request, pins: Choices) -> Request | None:
    """The request with further pins; None where they contradict the request's own.

    Values of an axis that both name are the values in both.
    """
    merged = dict(request.pins)
    for axis, values in pins:
        if axis in merged:
            values = tuple(value for value in merged[axis] if value in values)
        if not values:
            return None
        merged[axis] = values
    return replace(request, pins=tuple(merged.items()))
