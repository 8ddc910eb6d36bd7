"""Plans to compare with: compositions at limits a little above the bound by work, cut, placed and simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from shardwright.errors import ShardwrightError
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.frames import Dual, Frame
from shardwright.search.mixed.compose import alone_compositions, compose, cut_lanes, dealt
from shardwright.search.mixed.market import Market, Values
from shardwright.search.mixed.place import MixedPlan, frame_of, general_plan
from shardwright.simulator.simulate import simulate_plan
from shardwright.strategy.plan.plan import Plan

RISE = 1.01
"""From one limit to the next."""
LEVELS = 5
"""Limits at which compositions are looked for, from the first that has one."""
LANES = 2
"""Shapes of a composition at most."""
LOOSE = 1.25
"""Times a limit by which a lane may end under the terms of the plan's own frame."""


@dataclass(slots=True)
class Standing:
    """The best plan so far, and what was looked at."""

    problem: Problem
    best_s: float = float("inf")
    best: Plan | None = None
    mixed: MixedPlan | None = None
    looked_at: int = 0
    simulated: int = 0
    bounded: int = 0
    infeasible: int = 0
    seen: set[object] = field(default_factory=set)

    def attempt(self, plan: Plan, mixed: MixedPlan | None) -> float:
        """Simulate a plan, and keep it if it fits and is faster. Its seconds; inf = it does not fit."""
        done = simulate_plan(self.problem, plan)
        if not done.fits:
            self.infeasible += 1
            return float("inf")
        self.simulated += 1
        if done.step_time_s < self.best_s:
            self.best_s, self.best, self.mixed = done.step_time_s, plan, mixed
        return done.step_time_s


def look(standing: Standing, market: Market, options: Options) -> None:
    """Compositions of a market at rising limits."""
    limit, found = work_limit(market, standing.best_s), 0
    frames = [_whole(market, tp) for tp in market.ground.degrees[:2]]
    while limit < standing.best_s and found < LEVELS:
        some = False
        for frame in frames:
            dual, values = market.priced(frame, limit, thorough=True)
            if dual.samples >= market.batch:
                some = True
                _compositions(standing, market, dual, values, options)
        found += some
        limit *= RISE


def _whole(market: Market, tp: int) -> Frame:
    ground = market.ground
    return Frame(replicas=(1, ground.most_replicas), tp=tp, nodes=(ground.nodes / 2, ground.nodes))


def work_limit(market: Market, most: float) -> float:
    """The limit by which all devices do the batch by work alone, to one percent."""
    frame = _whole(market, market.ground.degrees[0])
    low, high = 0.0, min(most, 1e9)
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        if market.work_done(frame, middle) >= market.batch:
            high = middle
        else:
            low = middle
    return high


def replica_ranges(market: Market) -> list[tuple[int, int]]:
    """Ranges of replicas that compositions are asked for: from one power of two to the next."""
    most = market.ground.most_replicas
    return [(2**i, min(2 ** (i + 1) - 1, most)) for i in range(most.bit_length())]


def _compositions(standing: Standing, market: Market, dual: Dual, values: Values, options: Options) -> None:
    node = max(pool.node for pool in market.ground.table.pools)
    found = alone_compositions(market, values, grains=(node, 1))
    for replicas, grain in product(replica_ranges(market), dict.fromkeys((node, 1))):
        if market.enough(dual, values, replicas):
            found += filter(None, [compose(market, dual, values, replicas=replicas, lanes=LANES, grain=grain)])
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
