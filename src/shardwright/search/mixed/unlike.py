"""What sums and gathers take longer where lanes cut the same layers unlike, as far as it is known without a simulation."""

from __future__ import annotations

from shardwright.search.mixed.market import Market
from shardwright.search.mixed.place import MixedLane, MixedPlan, frame_of
from shardwright.search.mixed.tables import LAYER
from shardwright.search.mixed.values import PIECES


def unlike_seconds(market: Market, plan: MixedPlan) -> float:
    """Seconds by which the slowest first stage ends later and begins later than its terms say.

    A device that holds a part of 1 / d of a layer sums it with holders of parts of 1 / D in D / d groups, one after another; each is as
    fast as with all replicas on devices of its own pool. Other stages end sooner.
    """
    ground, terms = market.ground, market.terms(frame_of(market.ground.table, plan))
    table, worst = ground.table, 0.0
    for lane in plan.lanes:
        row, layers = lane.stage_rows()[0], lane.sizes[0]
        pair, tp = int(table.pairs[row]), int(table.tp[row])
        times = max([1.0, *(_degree(market, other, layers) / tp for other in plan.lanes if other is not lane)])
        at = pair, ground.degrees.index(tp), plan.replicas - 1, LAYER
        backward = layers * float(terms.seconds[row, LAYER, 1])
        later = _after(layers * float(ground.reduce[at]) * times, backward) - _after(layers * float(terms.reduce[row, LAYER]), backward)
        begins = layers * (float(ground.gather[at]) * times - float(terms.gather[row, LAYER])) if terms.gathers_first else 0.0
        worst = max(worst, later + begins)
    return worst


def _after(reduce: float, backward: float) -> float:
    """Seconds of a sum behind the last backward that it runs beside, in pieces."""
    return max(reduce / PIECES, reduce - (PIECES - 1.0) / PIECES * backward)


def _degree(market: Market, lane: MixedLane, layers: int) -> float:
    """The largest tensor parallel degree of a lane's stages that hold some of the first layers."""
    found, first = 1.0, 0
    for row, size in zip(lane.stage_rows(), lane.sizes, strict=True):
        if first < layers:
            found = max(found, float(market.ground.table.tp[row]))
        first += size
    return found
