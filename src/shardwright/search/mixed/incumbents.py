"""Plans to compare with: compositions at limits a little above the bound by work, cut, placed and simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isfinite, log2

import numpy as np

from shardwright.cost.model_flops import LONGEST_STEP_S
from shardwright.errors import ShardwrightError
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.frames import Dual, Frame
from shardwright.search.limit import Limit
from shardwright.search.mixed.compose import compose, cut_lanes, dealt
from shardwright.search.mixed.market import Market, Values
from shardwright.search.mixed.place import MixedPlan, frame_of, general_plan
from shardwright.search.mixed.values import best_cut
from shardwright.simulator.simulate import simulate_plan
from shardwright.strategy.plan.plan import Plan

RISE = 1.012
"""From one limit to the next."""
WORTH = 0.995
"""Limits nearer to the best are not worth a look."""
LEVELS = 3
"""Limits at which compositions are looked for, from the first that has one."""
LANES = 2
"""Shapes of a composition at most."""
SINGLE = 16
"""Plans of one shape that are simulated at most."""
LOOSE = 1.25
"""Times a limit by which a lane may end under the terms of the plan's own frame."""


@dataclass(slots=True)
class Standing:
    """The best plan so far, and what was looked at.

    Args:
        seen: compositions and plans that were tried. ranked: (seconds, turn, plan, options) of all that were simulated and fit.
        limit: past it the best so far stands.
    """

    problem: Problem
    best_s: float = float("inf")
    best: Plan | None = None
    mixed: MixedPlan | None = None
    looked_at: int = 0
    simulated: int = 0
    bounded: int = 0
    infeasible: int = 0
    seen: set[object] = field(default_factory=set)
    ranked: list[tuple[float, int, MixedPlan, Options]] = field(default_factory=list)
    limit: Limit = field(default_factory=Limit)

    def ends(self) -> bool:
        """Look at the clock: whether no more plans are looked at. Raises as `search.limit.Limit.ends`."""
        return self.limit.ends(found=self.best is not None)

    def attempt(self, plan: Plan, mixed: MixedPlan | None) -> float:
        """Simulate a plan, and keep it if it fits and is faster. Its seconds; inf = it does not fit."""
        done = simulate_plan(self.problem, plan)
        if not done.fits:
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if mixed is not None:
            self.ranked.append((done.step_time_s, len(self.ranked), mixed, plan.options))
        if done.step_time_s < self.best_s:
            self.best_s, self.best, self.mixed = done.step_time_s, plan, mixed
        return done.step_time_s


def look_at_one_shape(standing: Standing, market: Market, options: Options) -> None:
    """Plans of one shape, whose replicas sum gradients stage by stage and wait for no others': of each number of replicas that shares the
    batch equally the shapes that end first.
    """
    shapes, batch = market.shapes, market.batch
    devices = np.array([pool.devices for pool in market.ground.table.pools])
    found: list[tuple[float, int, int]] = []
    for replicas in range(1, market.ground.most_replicas + 1):
        if batch % replicas or standing.ends():
            continue
        each = np.where(batch % (replicas * shapes.mbs) == 0, batch // (replicas * shapes.mbs), 0)
        room = (each > 0) & (replicas * shapes.use <= devices).all(axis=1)
        frame = Frame(replicas=(replicas, replicas), tp=market.ground.degrees[0], nodes=(0.0, market.ground.nodes))
        limit = standing.best_s * WORTH if isfinite(standing.best_s) else LONGEST_STEP_S
        values = market.by_work(frame, limit)
        which = np.flatnonzero(room & (values.microbatches >= each))
        if not len(which):
            continue
        values.microbatches = np.minimum(values.microbatches, each)
        market.refine(values, which, frame, limit, above=each[which] - 1)
        for shape in which[values.microbatches[which] == each[which]].tolist():
            rows, stages = shapes.rows[shape].tolist(), shapes.stages[shape].tolist()
            seconds, _ = best_cut(market.terms(frame), (*rows, *stages), microbatches=int(each[shape]), limit=limit)
            found.append((seconds, shape, replicas))
    for seconds, shape, replicas in sorted(found)[:SINGLE]:
        if standing.ends():
            return
        lanes = [(shape, replicas, batch // (replicas * int(shapes.mbs[shape])))]
        if (options, tuple(lanes)) not in standing.seen:
            standing.seen.add((options, tuple(lanes)))
            attempt(standing, market, lanes, seconds, options)


def look(standing: Standing, market: Market, options: Options) -> None:
    """Compositions of a market: of each range of replicas from the limit at which its bound allows the batch."""
    look_at_one_shape(standing, market, options)
    least = work_limit(market, standing.best_s)
    for frame in _frames(market):
        if standing.ends():
            return
        first = first_limit(market, frame, least=least, most=standing.best_s * WORTH)
        for level in range(LEVELS):
            limit = first * RISE**level
            if limit >= standing.best_s * WORTH or standing.ends():
                break
            dual, values = market.priced(frame, limit, thorough=True)
            if dual.samples >= market.batch:
                _compositions(standing, market, dual, values, options)


def _frames(market: Market) -> list[Frame]:
    """Frames that compositions are asked of: replicas from one power of two to the next, of any degree and without the smallest; those
    with about as many replicas as there are nodes first.
    """
    ground = market.ground
    most = ground.most_replicas
    ranges = [(2**i, min(2 ** (i + 1) - 1, most)) for i in range(most.bit_length())]
    ranges.sort(key=lambda some: abs(log2(some[0] / ground.nodes)))
    return [Frame(replicas=some, tp=tp, nodes=(ground.nodes / 2, ground.nodes)) for some in ranges for tp in ground.degrees[1::-1]]


def work_limit(market: Market, most: float) -> float:
    """The limit by which all devices do the batch by work alone, to one percent."""
    ground = market.ground
    frame = Frame(replicas=(1, ground.most_replicas), tp=ground.degrees[0], nodes=(ground.nodes / 2, ground.nodes))
    low, high = 0.0, min(most, 1e9)
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        if market.work_done(frame, middle) >= market.batch:
            high = middle
        else:
            low = middle
    return high


def first_limit(market: Market, frame: Frame, *, least: float, most: float) -> float:
    """The limit, to one percent, at which prices no longer close a frame; inf where they do at `most`."""
    if isfinite(most) and market.priced(frame, most)[0].samples < market.batch:
        return inf
    low, high = least * (1 - 0.01), most
    while not isfinite(high):
        least *= 2
        high = least if market.priced(frame, least)[0].samples >= market.batch or least > LONGEST_STEP_S else inf
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        if market.priced(frame, middle)[0].samples >= market.batch:
            high = middle
        else:
            low = middle
    return high


def _compositions(standing: Standing, market: Market, dual: Dual, values: Values, options: Options) -> None:
    """Compositions of a frame by a limit, each tried once."""
    node = max(pool.node for pool in market.ground.table.pools)
    replicas, grains = dual.frame.replicas, tuple(dict.fromkeys((node, 1)))
    found = filter(None, [compose(market, dual, values, replicas=replicas, lanes=LANES, grain=grain) for grain in grains])
    for composition in found:
        dealt_out = dealt(composition, market.shapes.mbs, batch=market.batch)
        key = (options, tuple(dealt_out))
        if dealt_out and key not in standing.seen:
            standing.seen.add(key)
            attempt(standing, market, dealt_out, dual.limit_s, options)


def attempt(standing: Standing, market: Market, lanes: list[tuple[int, int, int]], limit_s: float, options: Options) -> float:
    """Cut, place and simulate some lanes, unless they cannot be faster than the best."""
    total = sum(replicas for _, replicas, _ in lanes)
    tp = min(int(market.shapes.tp[shape]) for shape, _, _ in lanes)
    frame = Frame(replicas=(total, total), tp=tp, nodes=(0.0, market.ground.nodes))
    cut = cut_lanes(market.ground, market.terms(frame), market, lanes, limit_s=limit_s * LOOSE)
    standing.looked_at += 1
    if cut is None:
        standing.infeasible += 1
        return float("inf")
    plan, slowest = cut
    if slowest * market.ground.jitter(frame_of(market.ground.table, plan)) >= standing.best_s:
        standing.bounded += 1
        return float("inf")
    try:
        return standing.attempt(general_plan(market.ground, plan, options=options), plan)
    except ShardwrightError:
        standing.infeasible += 1
        return float("inf")
