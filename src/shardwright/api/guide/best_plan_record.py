"""The best plan of a request, as the guide's rules read and print it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from shardwright.api.request_to_command import command_text
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import GuidePlan
from shardwright.search.search_request import Choices, Request
from shardwright.simulator.prediction import Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid


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

    An axis that both pin keeps only the values that are in both.
    """
    merged = dict(request.pins)
    for axis, values in pins:
        if axis in merged:
            values = tuple(value for value in merged[axis] if value in values)
        if not values:
            return None
        merged[axis] = values
    return replace(request, pins=tuple(merged.items()))
