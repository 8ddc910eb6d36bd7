"""The problem of a request on a mixed cluster: memory that plans may fill, and pinned choices."""

from __future__ import annotations

from dataclasses import replace

from shardwright.api.request_to_problem import require_headroom
from shardwright.hardware.scale_network_limit_devices_reserve_memory import reserve_memory_share
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import options_in_text
from shardwright.search.mixed.stages.pinned_values import PinnedValues, pinned_values_of
from shardwright.search.mixed.stages.stage_cost_table import why_no_pipelines
from shardwright.search.search_request import Request
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts

NAME = "mixed"
"""Name of a mixed plan in its notation."""


def choices_for(request: Request, problem: Problem) -> PinnedValues:
    """Limits of a mixed search's choices: pins, exclusions and named runtime options."""
    choices = pinned_values_of(
        request.pins,
        request.excludes,
        pipelines=not why_no_pipelines(problem),
        experts=has_experts(problem.model),
    )
    return replace(choices, said=tuple(sorted(options_in_text(request.runtime))))


def with_headroom(request: Request, problem: Problem) -> Problem:
    """The problem with each device's memory reduced by the request's headroom."""
    require_headroom(request)
    return replace(problem, cluster=reserve_memory_share(problem.cluster, share=request.headroom))
