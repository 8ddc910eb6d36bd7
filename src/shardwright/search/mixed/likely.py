"""How much longer sums and gathers take than a frame's terms say, as far as it is known of a plan without a simulation."""

from __future__ import annotations

from shardwright.arrays import FloatArray
from shardwright.search.mixed.market import Market
from shardwright.search.mixed.place import MixedPlan, frame_of
from shardwright.search.mixed.tables import LAYER
from shardwright.search.mixed.values import PIECES


def likely_later(market: Market, plan: MixedPlan) -> float:
    """Seconds by which the slowest first stage begins and ends later than its terms say.

    Its first layers are summed with the first ones of every other lane, and the slowest of them decides: each as with all replicas on
    devices of its own pool, cut as it is. Other stages end sooner.
    """
    ground, terms = market.ground, market.terms(frame_of(market.ground.table, plan))
    table, first = ground.table, [lane.stage_rows()[0] for lane in plan.lanes]

    def slowest(sums: FloatArray) -> float:
        each = ((int(table.pairs[row]), ground.degrees.index(int(table.tp[row]))) for row in first)
        return max(float(sums[pair, degree, plan.replicas - 1, LAYER]) for pair, degree in each)

    reduce, gather = slowest(ground.reduce), slowest(ground.gather) if terms.gathers_first else 0.0
    worst = 0.0
    for row, lane in zip(first, plan.lanes, strict=True):
        layers = lane.sizes[0]
        backward = layers * float(terms.seconds[row, LAYER, 1])
        later = _after(layers * reduce, backward) - _after(layers * float(terms.reduce[row, LAYER]), backward)
        worst = max(worst, later + layers * max(gather - float(terms.gather[row, LAYER]), 0.0))
    return worst


def _after(reduce: float, backward: float) -> float:
    """Seconds of a sum behind the last backward that it runs beside, in pieces."""
    return max(reduce / PIECES, reduce - (PIECES - 1.0) / PIECES * backward)
