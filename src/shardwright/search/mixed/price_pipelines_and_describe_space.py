"""The space of a mixed search: its priced pipelines, and its description."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.errors import InfeasibleError
from shardwright.program.training_problem import Problem, under
from shardwright.runtime.framework_description import Options
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed.stages.cheapest_recompute_that_fits import MOST_STAGES
from shardwright.search.mixed.stages.device_pools import pools_of
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import pattern_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.stage_cost_table import MICROBATCHES, why_no_pipelines
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.mixed.stages.zero_sharded_lane_costs import PLAIN, zero_stages
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import has_experts

TOLERANCE = 0.03
"""Default relative gap between the plan and its lower bound at which the search stops."""


def price_pipelines(
    problem: Problem, rows: tuple[Options, ...], choices: PinnedValues, *, effort: Effort
) -> dict[Options, PricedPipelines]:
    """Price the stages of all pipelines under each set of runtime options."""
    return {
        options: PricedPipelines.of(
            MixedStageCosts.of(under(problem, options), choices), effort=effort
        )
        for options in rows
    }


def stage_costs_by_options(
    pipeline_sets: Mapping[Options, PricedPipelines],
) -> dict[Options, MixedStageCosts]:
    """Stage costs of the pipelines under each set of runtime options."""
    return {options: pipelines.stage_costs for options, pipelines in pipeline_sets.items()}


def no_plan_fits() -> InfeasibleError:
    """Create the error that no plan of a mixed cluster fits in memory."""
    return InfeasibleError(
        "no plan fits in memory on any pool or on all together",
        hint="more or larger devices, or a smaller model",
    )


def space_text(problem: Problem, rows: tuple[Options, ...], choices: PinnedValues) -> str:
    """Describe the whole search space in words and values, for the certificate."""
    pinned = f"; {choices.text()}" if choices.text() else ""
    return (
        f"{pipelines_space(problem, rows, choices)}; and every grid of the standard space of each"
        f" pool alone, on any number of its nodes{pinned}"
    )


def pipelines_space(problem: Problem, rows: tuple[Options, ...], choices: PinnedValues) -> str:
    """Describe the space of pipelines over several pools in words and values."""
    devices = (
        f"mixed: {' + '.join(f'{pool.devices} {pool.name}' for pool in pools_of(problem.cluster))}"
    )
    if because := why_no_pipelines(problem):
        return f"{devices}; no pipelines over several pools, as {because}"
    stage = "tp inside a node and sp"
    if has_experts(problem.model):
        stage = "tp x dp inside a node, sp, and experts over all of it (ep = tp x dp)"
    cuts = f" ({said})" if (said := pattern_of(problem.model).text()) else ""
    options = ", ".join(
        " ".join(f"{name}={value}" for name, value in row) or "as it is" for row in rows
    )
    sizes = ", ".join(map(str, choices.sizes(MICROBATCHES)))
    return (
        f"{devices}; any number of replicas of any pipelines of at most two runs of like stages,"
        f" {MOST_STAGES} stages in all, a stage on one pool with {stage}; mbs {{{sizes}}}, any cut"
        f" of the layers{cuts}, each stage recomputes any number of its first layers in full and of"
        f" the next ones selectively, 1F1B, {_lanes_space(problem, choices)}, any shares of the"
        f" batch, any idle devices; options of the runtime {{{options}}}"
    )


def _lanes_space(problem: Problem, choices: PinnedValues) -> str:
    """Describe the allowed ZeRO stages of lanes in words and values."""
    stages = zero_stages(problem, choices)
    if stages.all_stages == (PLAIN,):
        return "zero1 over all replicas"
    of_all = (
        "zero1 over all replicas of a lane that shares no more, or "
        if PLAIN in stages.all_stages
        else ""
    )
    several = [str(zero) for zero in stages.several if zero != PLAIN]
    beside = ""
    if several != [str(zero) for zero in stages.one]:
        beside = (
            f", {{{', '.join(several)}}} in pipelines of several stages"
            if several
            else ", in pipelines of one stage"
        )
    return (
        f"{of_all}zero {{{', '.join(map(str, stages.one))}}} over the two or more replicas of one"
        f" shape{beside}"
    )
