"""Seconds that tokens of ranks with attention of their own take to their experts and back."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import FloatArray
from shardwright.collectives.algorithm import Collective
from shardwright.cost.communication import Network, dispatch_seconds, move_seconds, spans_along
from shardwright.cost.degree_rows import Rows
from shardwright.model.ir.operator import Operator
from shardwright.runtime.engines.engine import ExpertExchange


def exchange_seconds(
    exchange: ExpertExchange, route: Operator, rows: Rows, *, network: Network, hidden: int, element: int = 2
) -> FloatArray:
    """(t,) seconds of both ways.

    GATHERED: an all-gather of all ranks' tokens and a reduce-scatter of their sums. ALL_TO_ALL: a copy for each expert. Others: a copy for
    each device, or node and device, that a token goes to (`communication.dispatch_seconds`).

    Args:
        route: the operator that chooses experts. rows: ``mbs`` tokens of each rank. hidden: elements of a token; element: bytes of one.

    Leaves out that a dispatch may send fewer bits than a combine.
    """
    assert route.experts is not None
    tokens = np.asarray(rows["mbs"], dtype=np.float64)
    (span, *_) = spans_along("coset", rows, network)
    if exchange is ExpertExchange.GATHERED:
        volume = tokens * rows["dp"] * hidden * element
        there = move_seconds(Collective.ALL_GATHER, volume=volume, span=span, network=network)
        return there + move_seconds(Collective.REDUCE_SCATTER, volume=volume, span=span, network=network)
    volume = tokens * hidden * element * route.experts.topk
    if exchange is ExpertExchange.ALL_TO_ALL:
        return 2 * move_seconds(Collective.ALL_TO_ALL, volume=volume, span=span, network=network)
    groups = (route.experts.groups, route.experts.of_groups)
    return 2 * dispatch_seconds(volume=volume, copies=route.experts.topk, span=span, groups=groups)
