"""The least that plans take a second to do the batch by a limit: a linear program's prices, frame
by frame.

    min sum x_s r_s   s.t.  sum x_s v_s(T) >= batch,  sum x_s use_sk <= N_k,
                            R1 <= sum x_s <= R2,  sum x_s nodes_s <= M

with r_s what a replica takes a second, of devices and not of whole nodes. Prices pi of devices,
sigma of nodes, rho of a replica and mu of a unit a second with v_s(T) <= sum (pi_k + mu rate_k)
use_sk + sigma nodes_s + rho for every shape show that a plan takes at least

    (batch - sum pi_k N_k - sigma M - rho R) / mu,   R = R2 if rho > 0 else R1
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import numpy as np
from scipy.optimize import linprog

from shardwright.arrays import FloatArray
from shardwright.search.mixed.pipelines.device_prices import Prices, Room
from shardwright.search.mixed.pipelines.price_per_second import PricePerSecond
from shardwright.search.mixed.pipelines.priced_pipelines import PricedPipelines, Values, prices_of
from shardwright.search.mixed.stages.frame_terms import first_frames, split
from shardwright.search.mixed_certificate import Dual, Floor, Frame

_LEAST_BATCH = 1e-9
"""Share of all that is taken a second that the batch is worth at least, where so many replicas have
to be that they do more anyway."""

Known = dict[Frame, Values]
"""Values of the shapes of frames, at the last limit that was priced."""


def floor_of(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    frame: Frame,
    limit_s: float,
    known: Known,
) -> Floor:
    """The least that a plan of the frame takes a second to do the batch by the limit, as high as
    prices show it.
    """
    dual, values = pipelines.priced(frame, limit_s, start=known.get(frame))
    known[frame] = values
    if dual.samples < pipelines.batch:
        return _closed(dual)
    while True:
        found = _least_prices(pipelines, price_per_second, values)
        if found is None:
            return _nothing(frame, limit_s, pipelines)
        prices, money = found
        underpriced = pipelines.underpriced(values, with_rates(prices, price_per_second, money))
        if not len(underpriced):
            return repriced(pipelines, price_per_second, values, prices, money)
        values.active = np.concatenate([values.active, underpriced])


def repriced(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    values: Values,
    prices: Prices,
    money: float,
) -> Floor:
    """The prices with a replica's raised until they cover what every shape is worth, and what they
    show then.
    """
    worth = pipelines.samples(values)
    worse = float(
        (worth - pipelines.cost(with_rates(prices, price_per_second, money)))[worth > 0].max(
            initial=0.0
        )
    )
    prices, room = (
        prices._replace(replicas=prices.replicas + max(worse, 0.0)),
        pipelines.room(values.frame),
    )
    low, high = room.replicas
    free = float(prices.devices @ room.devices + prices.nodes * room.nodes) + prices.replicas * (
        high if prices.replicas > 0 else low
    )
    left = pipelines.batch - free
    rate = max(left / money, 0.0) if money else (None if left > 0 else 0.0)
    return _floor(values.frame, values.limit_s, prices, money, rate)


def holds_floor(pipelines: PricedPipelines, price_per_second: PricePerSecond, floor: Floor) -> bool:
    """True where a floor's prices prove its rate: the samples of every shape by the limit are
    computed again, without a linear program.
    """
    prices = Prices(devices=np.array(floor.devices), nodes=floor.nodes, replicas=floor.replicas)
    values, mbs = pipelines.values(floor.frame, floor.limit_s), pipelines.shapes.mbs
    whole = with_rates(prices, price_per_second, floor.money)
    most = np.floor(np.maximum(pipelines.cost(whole), 0.0) / mbs).astype(np.int64)
    underpriced = np.flatnonzero(values.microbatches > most)
    pipelines.refine(values, underpriced, above=most[underpriced])
    again = repriced(pipelines, price_per_second, values, prices, floor.money)
    if floor.rate is None:
        return again.rate is None
    return again.rate is None or again.rate >= floor.rate * (1 - 1e-6)


def least_floors(
    pipelines: PricedPipelines,
    price_per_second: PricePerSecond,
    limit_s: float,
    *,
    enough: float,
    most: int,
    known: Known,
) -> tuple[Floor, ...]:
    """Floors of frames that make up the space, the weakest of them split until it is `enough`, in
    so many linear programs at most.
    """
    waiting: list[tuple[float, int, Floor]] = []
    turn = 0
    for turn, frame in enumerate(first_frames(pipelines.stage_costs)):
        heappush(
            waiting, _ranked(floor_of(pipelines, price_per_second, frame, limit_s, known), turn)
        )
    while waiting[0][0] < enough and turn < most:
        parts = split(pipelines.stage_costs, waiting[0][2].frame)
        if not parts:
            break
        weakest = heappop(waiting)[2].frame
        for part in parts:
            if part not in known and weakest in known:
                known[part] = known[weakest]
            turn += 1
            heappush(
                waiting, _ranked(floor_of(pipelines, price_per_second, part, limit_s, known), turn)
            )
    return tuple(floor for _, _, floor in sorted(waiting, key=lambda one: one[1]))


def least_of(floors: tuple[Floor, ...]) -> float:
    """The least rate of some floors; inf = no plan ends by their limit."""
    return min((inf if one.rate is None else one.rate for one in floors), default=inf)


def _ranked(floor: Floor, turn: int) -> tuple[float, int, Floor]:
    return (inf if floor.rate is None else floor.rate), turn, floor


def with_rates(prices: Prices, price_per_second: PricePerSecond, money: float) -> Prices:
    """Prices of devices with what they take a second among them."""
    return prices._replace(devices=prices.devices + money * price_per_second.rates)


def _least_prices(
    pipelines: PricedPipelines, price_per_second: PricePerSecond, values: Values
) -> tuple[Prices, float] | None:
    """Prices of the active shapes, and samples that a unit a second is worth; None where the
    program has no solution.
    """
    some = values.active[values.microbatches[values.active] > 0]
    use, nodes = pipelines.shapes.use[some].astype(np.float64), pipelines.shapes.nodes[some]
    worth = (values.microbatches[some] * pipelines.shapes.mbs[some]).astype(np.float64)
    taken = use @ price_per_second.rates
    scale = float(taken.max(initial=0.0))
    if not scale:
        return None
    marginals = _solved(
        use, nodes, worth / pipelines.batch, taken / scale, pipelines.room(values.frame)
    )
    if marginals is None:
        return None
    batch = max(float(marginals[0]), _LEAST_BATCH)
    each = pipelines.batch / batch
    devices, (node, high, low) = marginals[1:-3] * each, (marginals[-3:] * each).tolist()
    return Prices(devices=devices, nodes=node, replicas=high - low), each / scale


def _solved(
    use: FloatArray, nodes: FloatArray, share: FloatArray, taken: FloatArray, room: Room
) -> FloatArray | None:
    """(batch, pools, nodes, high, low) dual prices of the program;
    None where it has no solution.
    """
    ones = np.ones(len(share))
    rows = np.concatenate([[-share], use.T, [nodes, ones, -ones]])
    low, high = room.replicas
    found = linprog(
        taken,
        A_ub=rows,
        b_ub=np.array([-1.0, *room.devices, room.nodes, high, -low], dtype=np.float64),
        method="highs",
    )
    return (
        None
        if found.x is None
        else np.maximum(-np.asarray(found.ineqlin.marginals, dtype=np.float64), 0.0)
    )


def _floor(frame: Frame, limit_s: float, prices: Prices, money: float, rate: float | None) -> Floor:
    return Floor(
        frame=frame,
        limit_s=limit_s,
        devices=tuple(prices.devices.tolist()),
        nodes=float(prices.nodes),
        replicas=float(prices.replicas),
        money=float(money),
        rate=rate,
    )


def _closed(dual: Dual) -> Floor:
    """No plan of the frame ends by the limit."""
    return _floor(dual.frame, dual.limit_s, prices_of(dual), 0.0, None)


def _nothing(frame: Frame, limit_s: float, pipelines: PricedPipelines) -> Floor:
    """Nothing is shown of the frame."""
    none = Prices(
        devices=np.zeros(len(pipelines.stage_costs.table.pools)),
        nodes=0.0,
        replicas=float(pipelines.batch),
    )
    return _floor(frame, limit_s, none, 0.0, 0.0)
