"""Plans of one shape, whose replicas sum gradients stage by stage and wait for no others'."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

import numpy as np

from shardwright.cost.step.model_flops import LONGEST_STEP_S
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.runtime import Options
from shardwright.search.mixed.pipelines.pipeline_subsets import weights_of
from shardwright.search.mixed.pipelines.priced_pipelines import Market, Values
from shardwright.search.mixed.pipelines.search_tasks import Bench, Stock
from shardwright.search.mixed.plans.composition_search import WORTH, whole_frame
from shardwright.search.mixed.plans.simulated_plans import (
    LOOSE,
    Lanes,
    MixedCandidate,
    Standing,
    candidate,
)

SINGLE = 400
"""Shapes of which each number of replicas that shares the batch equally is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Replicas that share the batch equally.

    Args:
        market: its place on the bench, with some options.
        limit_s: by which they end.
        whole: what is known of shapes by then of any number of replicas.
    """

    market: int
    options: Options
    replicas: int
    limit_s: float
    whole: Values


def look_at_one_shape(standing: Standing, bench: Bench, market: Market, options: Options) -> None:
    """Let plans of one shape wait: of each number of replicas that shares the batch equally the
    shapes that end first.
    """
    if standing.ends():
        return
    limit = standing.best_s * WORTH if isfinite(standing.best_s) else LONGEST_STEP_S
    place, shapes = bench.place(market), market.shapes
    # Lanes of one stage that shard are grids of a pool.
    several = bool((shapes.sharded & (shapes.stages.sum(axis=1) > 1)).any())
    for sharded in (*((False,) if not shapes.sharded.all() else ()), *((True,) if several else ())):
        _look_at_equal(
            standing,
            bench,
            market,
            options,
            market.values(whole_frame(market, sharded=sharded, alone=sharded), limit),
            place,
        )


def _look_at_equal(
    standing: Standing, bench: Bench, market: Market, options: Options, whole: Values, place: int
) -> None:
    limit = whole.limit_s
    counts = [
        replicas
        for replicas in range(1, market.ground.most_replicas + 1)
        if market.batch % replicas == 0
    ]
    asked = [
        Equal(market=place, options=options, replicas=replicas, limit_s=limit, whole=whole)
        for replicas in counts
    ]
    for found in bench.map(shapes_that_end, asked):
        for lanes, one in found:
            standing.wait(lanes, one, options)


def shapes_that_end(stock: Stock, asked: Equal) -> list[tuple[Lanes, MixedCandidate | None]]:
    """Lanes that do the batch by the limit, cut, of the shapes that fill most of the cluster."""
    market, replicas = stock.markets[asked.market], asked.replicas
    shapes = market.shapes
    each = np.where(
        market.batch % (replicas * shapes.mbs) == 0, market.batch // (replicas * shapes.mbs), 0
    )
    room = (
        (each > 0)
        & (replicas * shapes.use <= market.devices).all(axis=1)
        & (asked.whole.microbatches >= each)
    )
    room &= (
        (shapes.sharded == asked.whole.frame.sharded)
        & (shapes.least <= replicas)
        & (replicas <= shapes.most)
    )
    which = np.flatnonzero(room)
    if not len(which):
        return []
    frame = replace(asked.whole.frame, replicas=(replicas, replicas))
    values = market.values(frame, asked.limit_s, asked.whole)
    values.microbatches = np.minimum(values.microbatches, each)
    # Those that fill most of the cluster first: few others can be best.
    which = which[np.argsort(-(shapes.use[which] @ weights_of(market)), kind="stable")[:SINGLE]]
    market.refine(values, which, above=each[which] - 1)
    ends = which[values.microbatches[which] == each[which]]
    alone: list[Lanes] = [
        [(shape, replicas, microbatches)]
        for shape, microbatches in zip(ends.tolist(), each[ends].tolist(), strict=True)
    ]
    return [
        (lanes, candidate(market, lanes, asked.limit_s / LOOSE, asked.options)) for lanes in alone
    ]
