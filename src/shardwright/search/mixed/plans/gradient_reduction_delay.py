"""Estimate of gradient reductions across lanes, beyond the terms of the plan's subspace.

The estimate needs no simulation; it decides the order of simulations only.
"""

from __future__ import annotations

from shardwright.search.mixed.pipelines.microbatches_and_layer_cut_by_deadline import PIECES
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedPlan,
    subspace_of,
    zero_of,
)
from shardwright.search.mixed.stages.find_repeating_layer_units_for_cuts import LAYER
from shardwright.search.mixed.stages.stage_gradient_reductions import GATHER, REDUCE


def estimated_delay_s(pipelines: PricedPipelines, plan: MixedPlan) -> float:
    """Estimated seconds by which reductions across lanes delay first stages; 0 if a lane shards.

    0 for plans with a lane that shards. A stage's first layers are reduced with the first layers of
    every other lane, and the slowest lane decides: each lane is priced as with all replicas on
    devices of its own pool, with its own cut. Other stages end sooner.
    """
    table, terms = (
        pipelines.stage_costs.table,
        pipelines.terms(subspace_of(pipelines.stage_costs.table, plan)),
    )
    if any(zero_of(table, lane) > 1 for lane in plan.lanes):
        return 0.0
    first = [lane.stage_rows()[0] for lane in plan.lanes]
    members = sum(
        lane.replicas * table.mesh(row).dp for row, lane in zip(first, plan.lanes, strict=True)
    )
    each = [
        pipelines.stage_costs.sums.row_seconds(row, members=members, replicas=plan.replicas)[
            :, LAYER
        ]
        for row in first
    ]
    gather, reduce = (max(float(one[which]) for one in each) for which in (GATHER, REDUCE))
    gather *= terms.gathers_first
    worst = 0.0
    for row, lane in zip(first, plan.lanes, strict=True):
        layers = lane.sizes[0]
        backward = layers * float(terms.seconds[row, LAYER, 1])
        later = _seconds_after_backward(layers * reduce, backward) - _seconds_after_backward(
            layers * float(terms.reduce[row, LAYER]), backward
        )
        worst = max(worst, later + layers * max(gather - float(terms.gather[row, LAYER]), 0.0))
    return worst


def _seconds_after_backward(reduce: float, backward: float) -> float:
    """Seconds of a reduction after the last backward that it overlaps, in pieces."""
    return max(reduce / PIECES, reduce - (PIECES - 1.0) / PIECES * backward)
