"""Lower bound on a plan's cost rate, by dual prices of a linear program for each subspace.

The program asks for the least cost rate of plans that complete the batch by a limit T:

    min sum x_s r_s   s.t.  sum x_s v_s(T) >= batch,  sum x_s use_sk <= N_k,
                            R1 <= sum x_s <= R2,  sum x_s nodes_s <= M

with r_s the cost rate of a replica, of its devices and not of whole nodes. Dual prices pi of
devices, sigma of nodes, rho of a replica and mu of a unit a second with v_s(T) <= sum (pi_k + mu
rate_k) use_sk + sigma nodes_s + rho for every shape prove that a plan takes at least

    (batch - sum pi_k N_k - sigma M - rho R) / mu,   R = R2 if rho > 0 else R1
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import numpy as np
from scipy.optimize import linprog

from shardwright.arrays import FloatArray
from shardwright.search.mixed.pipelines.pool_cost_rates import PricePerSecond
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import (
    PricedPipelines,
    ShapeMicrobatches,
    prices_of,
)
from shardwright.search.mixed.pipelines.resource_dual_prices import Prices, ResourceLimits
from shardwright.search.mixed.stages.subspaces_and_stage_costs import root_subspaces, split_subspace
from shardwright.search.mixed_cluster_certificate import Dual, Floor, Subspace

_LEAST_BATCH = 1e-9
"""Least dual price of the batch, as a share of the cost scale.

It stands in for a price of 0 where the least number of replicas completes more than the batch.
"""

ValuesCache = dict[Subspace, ShapeMicrobatches]
"""Shape values of each subspace, at the last limit that was priced."""


def floor_of(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    subspace: Subspace,
    limit_s: float,
    values_cache: ValuesCache,
) -> Floor:
    """Highest proven lower bound on the cost rate of a subspace's plans that end by a limit.

    Column generation: shapes with more samples than their price join the linear program until there
    are none.
    """
    dual, values = pipelines.priced(subspace, limit_s, start=values_cache.get(subspace))
    values_cache[subspace] = values
    if dual.samples < pipelines.batch:
        return _closed_floor(dual)
    while True:
        least_prices = _least_prices(pipelines, price_per_second, values)
        if least_prices is None:
            return _trivial_floor(subspace, limit_s, pipelines)
        prices, money = least_prices
        underpriced = pipelines.underpriced(values, with_rates(prices, price_per_second, money))
        if not len(underpriced):
            return valid_floor(pipelines, price_per_second, values, prices, money)
        values.active = np.concatenate([values.active, underpriced])


def valid_floor(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    values: ShapeMicrobatches,
    prices: Prices,
    money: float,
) -> Floor:
    """Raise the replica price until no shape is underpriced; return the resulting floor."""
    samples = pipelines.samples(values)
    deficit = float(
        (samples - pipelines.cost(with_rates(prices, price_per_second, money)))[samples > 0].max(
            initial=0.0
        )
    )
    prices, room = (
        prices._replace(replicas=prices.replicas + max(deficit, 0.0)),
        pipelines.resource_limits(values.subspace),
    )
    low, high = room.replicas
    resource_samples = float(
        prices.devices @ room.devices + prices.nodes * room.nodes
    ) + prices.replicas * (high if prices.replicas > 0 else low)
    left = pipelines.batch - resource_samples
    rate = max(left / money, 0.0) if money else (None if left > 0 else 0.0)
    return _floor_with_plain_prices(values.subspace, values.limit_s, prices, money, rate)


def floor_holds(pipelines: PricedPipelines, price_per_second: PricePerSecond, floor: Floor) -> bool:
    """True where a floor's prices prove its rate, with every shape's samples recomputed.

    No linear program is solved.
    """
    prices = Prices(devices=np.array(floor.devices), nodes=floor.nodes, replicas=floor.replicas)
    values, mbs = pipelines.values(floor.frame, floor.limit_s), pipelines.shapes.mbs
    whole = with_rates(prices, price_per_second, floor.money)
    most = np.floor(np.maximum(pipelines.cost(whole), 0.0) / mbs).astype(np.int64)
    underpriced = np.flatnonzero(values.microbatches > most)
    pipelines.refine(values, underpriced, above=most[underpriced])
    checked = valid_floor(pipelines, price_per_second, values, prices, floor.money)
    if floor.rate is None:
        return checked.rate is None
    return checked.rate is None or checked.rate >= floor.rate * (1 - 1e-6)


def least_floors(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    limit_s: float,
    *,
    enough: float,
    max_programs: int,
    values_cache: ValuesCache,
) -> tuple[Floor, ...]:
    """Cost-rate floors of subspaces that cover the space, the weakest subspace split first.

    Ends when every floor is `enough`, or after `max_programs` linear programs.
    """
    waiting: list[tuple[float, int, Floor]] = []
    turn = 0
    for turn, subspace in enumerate(root_subspaces(pipelines.stage_costs)):
        heappush(
            waiting,
            _heap_entry(
                floor_of(pipelines, price_per_second, subspace, limit_s, values_cache), turn
            ),
        )
    while waiting[0][0] < enough and turn < max_programs:
        parts = split_subspace(pipelines.stage_costs, waiting[0][2].frame)
        if not parts:
            break
        weakest = heappop(waiting)[2].frame
        for part in parts:
            if part not in values_cache and weakest in values_cache:
                values_cache[part] = values_cache[weakest]
            turn += 1
            heappush(
                waiting,
                _heap_entry(
                    floor_of(pipelines, price_per_second, part, limit_s, values_cache), turn
                ),
            )
    return tuple(floor for _, _, floor in sorted(waiting, key=lambda one: one[1]))


def least_rate(floors: tuple[Floor, ...]) -> float:
    """Lowest dollars or joules a second of some floors; inf = no plan ends by their limit."""
    return min((inf if floor.rate is None else floor.rate for floor in floors), default=inf)


def _heap_entry(floor: Floor, turn: int) -> tuple[float, int, Floor]:
    """Heap entry of a floor: the smallest rate first, then the earliest."""
    return (inf if floor.rate is None else floor.rate), turn, floor


def with_rates(prices: Prices, price_per_second: PricePerSecond, money: float) -> Prices:
    """Prices of devices plus `money` times the cost rate of a device."""
    return prices._replace(devices=prices.devices + money * price_per_second.rates)


def _least_prices(
    pipelines: PricedPipelines, price_per_second: PricePerSecond, values: ShapeMicrobatches
) -> tuple[Prices, float] | None:
    """Dual prices over active shapes, and samples that a unit a second is worth; None = none.

    None where the program has no solution.
    """
    shapes = values.active[values.microbatches[values.active] > 0]
    use, nodes = pipelines.shapes.use[shapes].astype(np.float64), pipelines.shapes.nodes[shapes]
    worth = (values.microbatches[shapes] * pipelines.shapes.mbs[shapes]).astype(np.float64)
    cost_rates = use @ price_per_second.rates
    scale = float(cost_rates.max(initial=0.0))
    if not scale:
        return None
    marginals = _solved(
        use,
        nodes,
        worth / pipelines.batch,
        cost_rates / scale,
        pipelines.resource_limits(values.subspace),
    )
    if marginals is None:
        return None
    batch = max(float(marginals[0]), _LEAST_BATCH)
    each = pipelines.batch / batch
    devices, (node, high, low) = marginals[1:-3] * each, (marginals[-3:] * each).tolist()
    return Prices(devices=devices, nodes=node, replicas=high - low), each / scale


def _solved(
    use: FloatArray,
    nodes: FloatArray,
    share: FloatArray,
    cost_rates: FloatArray,
    limits: ResourceLimits,
) -> FloatArray | None:
    """Dual prices (batch, each pool, nodes, high, low) of the cost-rate program; None = none.

    None where the program has no solution.
    """
    ones = np.ones(len(share))
    rows = np.concatenate([[-share], use.T, [nodes, ones, -ones]])
    low, high = limits.replicas
    solution = linprog(
        cost_rates,
        A_ub=rows,
        b_ub=np.array([-1.0, *limits.devices, limits.nodes, high, -low], dtype=np.float64),
        method="highs",
    )
    return (
        None
        if solution.x is None
        else np.maximum(-np.asarray(solution.ineqlin.marginals, dtype=np.float64), 0.0)
    )


def _floor_with_plain_prices(
    subspace: Subspace, limit_s: float, prices: Prices, money: float, rate: float | None
) -> Floor:
    """Floor of a subspace: its rate ($/s or W; None = no plan), dual prices as numbers."""
    return Floor(
        frame=subspace,
        limit_s=limit_s,
        devices=tuple(prices.devices.tolist()),
        nodes=float(prices.nodes),
        replicas=float(prices.replicas),
        money=float(money),
        rate=rate,
    )


def _closed_floor(dual: Dual) -> Floor:
    """Floor with rate None for the dual prices' subspace, of which no plan ends by the limit."""
    return _floor_with_plain_prices(dual.frame, dual.limit_s, prices_of(dual), 0.0, None)


def _trivial_floor(subspace: Subspace, limit_s: float, pipelines: PricedPipelines) -> Floor:
    """Floor of 0 for a subspace of which nothing is proven."""
    none = Prices(
        devices=np.zeros(len(pipelines.stage_costs.table.pools)),
        nodes=0.0,
        replicas=float(pipelines.batch),
    )
    return _floor_with_plain_prices(subspace, limit_s, none, 0.0, 0.0)
