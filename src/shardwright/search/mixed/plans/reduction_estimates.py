"""How much longer sums and gathers take than a frame's terms say, as far as it is known of a plan
without a simulation.
"""

from __future__ import annotations

from shardwright.search.mixed.pipelines.pipeline_throughput import PIECES
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines
from shardwright.search.mixed.plans.write_plan import MixedPlan, frame_of, zero_of
from shardwright.search.mixed.stages.layer_cuts import LAYER
from shardwright.search.mixed.stages.stage_reductions import GATHER, REDUCE


def likely_later(pipelines: PricedPipelines, plan: MixedPlan) -> float:
    """Seconds by which the slowest first stage begins and ends later than its terms say; of plans
    with a lane that shards nothing is known.

    Its first layers are summed with the first ones of every other lane, and the slowest of them
    decides: each as with all replicas on devices of its own pool, cut as it is. Other stages end
    sooner.
    """
    table, terms = (
        pipelines.stage_costs.table,
        pipelines.terms(frame_of(pipelines.stage_costs.table, plan)),
    )
    if any(zero_of(table, lane) > 1 for lane in plan.lanes):
        return 0.0
    first = [lane.stage_rows()[0] for lane in plan.lanes]
    members = sum(
        lane.replicas * table.mesh(row).dp for row, lane in zip(first, plan.lanes, strict=True)
    )
    each = [
        pipelines.stage_costs.sums.of_row(row, members=members, replicas=plan.replicas)[:, LAYER]
        for row in first
    ]
    gather, reduce = (max(float(one[which]) for one in each) for which in (GATHER, REDUCE))
    gather *= terms.gathers_first
    worst = 0.0
    for row, lane in zip(first, plan.lanes, strict=True):
        layers = lane.sizes[0]
        backward = layers * float(terms.seconds[row, LAYER, 1])
        later = _after(layers * reduce, backward) - _after(
            layers * float(terms.reduce[row, LAYER]), backward
        )
        worst = max(worst, later + layers * max(gather - float(terms.gather[row, LAYER]), 0.0))
    return worst


def _after(reduce: float, backward: float) -> float:
    """Seconds of a sum behind the last backward that it runs beside, in pieces."""
    return max(reduce / PIECES, reduce - (PIECES - 1.0) / PIECES * backward)
