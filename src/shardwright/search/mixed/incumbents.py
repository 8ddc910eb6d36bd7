"""Plans to compare with: compositions at limits a little above the bound, cut, and the most promising ones placed and simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice, pairwise
from math import inf, isfinite

import numpy as np

from shardwright.cost.model_flops import LONGEST_STEP_S
from shardwright.errors import ShardwrightError
from shardwright.program.problem import Problem
from shardwright.runtime.runtime import Options
from shardwright.search.frames import Frame
from shardwright.search.limit import Limit
from shardwright.search.mixed.compose import compositions, cut_lanes, dealt
from shardwright.search.mixed.likely import likely_later
from shardwright.search.mixed.market import Market, Values
from shardwright.search.mixed.place import MixedPlan, frame_of, general_plan
from shardwright.search.mixed.terms import replica_edges
from shardwright.simulator.simulate import SimulatedPlan, simulate_plan
from shardwright.strategy.plan.plan import Plan

RISE, COARSEST = 0.01, 0.04
"""Share of a limit by which the next is later; at most, where frames stay closed."""
WORTH = 0.995
"""Limits nearer to the best are not worth a look."""
LEVELS = 3
"""Limits at which compositions of a frame are looked for, from the first that leaves any."""
NEARLY = 0.01
"""Share of a limit to which that one is found."""
PAIRS = 60
"""Compositions of a frame by a limit."""
FEW = 150_000
"""Shapes of which as many limits are looked at as are asked for; of twice as many half."""
LANES = 2
"""Shapes of a composition at most on two pools; one more for each further pool."""
SINGLE = 400
"""Shapes of which each number of replicas that shares the batch equally is tried alone."""
LOOSE = 1.25
"""Times a limit by which a lane may end under the terms of the plan's own frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCandidate:
    """A plan that was not simulated yet.

    Args:
        seconds: that its stages leave at least. likely_s: the same with sums as slow as the slowest lane's; by these it waits its
            turn. kinds: the rows of its lanes, which are tried in turn.
    """

    seconds: float
    likely_s: float
    plan: MixedPlan
    options: Options

    @property
    def kinds(self) -> tuple[tuple[int, ...], ...]:
        """Rows of the stages of each lane, which say what its gradient sums are like."""
        return tuple(sorted({lane.rows for lane in self.plan.lanes}))


@dataclass(slots=True)
class Standing:
    """The best plan so far, and what was looked at.

    Args:
        seen: plans that were looked at. ranked: (seconds, turn, plan, options) of all that were simulated and fit. waiting: candidates.
        behind: those that cannot be the best. limit: past it the best so far stands. after: called with every plan that was simulated and
        fits.
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
    waiting: list[MixedCandidate] = field(default_factory=list)
    behind: list[MixedCandidate] = field(default_factory=list)
    limit: Limit = field(default_factory=Limit)
    after: Callable[[Plan, MixedPlan | None, SimulatedPlan], None] | None = None

    def ends(self) -> bool:
        """Look at the clock: whether no more plans are looked at. Raises as `search.limit.Limit.ends`."""
        return self.limit.ends(found=self.best is not None)

    def attempt(self, plan: Plan, mixed: MixedPlan | None) -> float:
        """Simulate a plan, and keep it if it fits and is faster. Its seconds; inf = it does not fit, or says what lowering leaves out."""
        self.looked_at += 1
        try:
            done = simulate_plan(self.problem, plan)
        except ShardwrightError:
            self.infeasible += 1
            return inf
        if not done.fits:
            self.infeasible += 1
            return inf
        self.simulated += 1
        if mixed is not None:
            self.ranked.append((done.step_time_s, len(self.ranked), mixed, plan.options))
        if self.after is not None:
            self.after(plan, mixed, done)
        if done.step_time_s < self.best_s:
            self.best_s, self.best, self.mixed = done.step_time_s, plan, mixed
        return done.step_time_s

    def set_aside(self) -> None:
        """Plans that cannot be faster than the best wait no longer."""
        slower = [one for one in self.waiting if one.seconds >= self.best_s]
        self.waiting = [one for one in self.waiting if one.seconds < self.best_s]
        self.behind += slower
        self.bounded += len(slower)
        self.looked_at += len(slower)

    def consider(self, market: Market, lanes: list[tuple[int, int, int]], limit_s: float, options: Options) -> None:
        """Cut some lanes as well as can be, and let the plan wait for its simulation."""
        key = (options, tuple(sorted(lanes)))
        if not lanes or key in self.seen:
            return
        self.seen.add(key)
        total = sum(replicas for _, replicas, _ in lanes)
        tp = min(int(market.shapes.tp[shape]) for shape, _, _ in lanes)
        frame = Frame(replicas=(total, total), tp=tp, nodes=(0.0, market.ground.nodes))
        cut = cut_lanes(market.ground, market.terms(frame), market, lanes, limit_s=limit_s * LOOSE)
        if cut is None:
            self.looked_at += 1
            self.infeasible += 1
            return
        plan, slowest = cut
        seconds = slowest * market.ground.jitter(frame_of(market.ground.table, plan))
        likely = seconds + likely_later(market, plan)
        self.waiting.append(MixedCandidate(seconds=seconds, likely_s=likely, plan=plan, options=options))


@dataclass(slots=True)
class Composing:
    """Compositions of a market that are still to be looked for, frame by frame.

    Args:
        waiting: (limit, turn, frame, step, levels left, what is known of its shapes), the smallest limit first. A frame that prices close
            at a limit waits for one that is later by `step`, twice as far each time; one that they do not is looked at, and waits for
            the next level.
    """

    market: Market
    options: Options
    waiting: list[tuple[float, int, Frame, float, int, Values]]

    @staticmethod
    def of(standing: Standing, market: Market, options: Options) -> Composing:
        """Every frame, from the limit on at which prices no longer close them all together."""
        first, values = first_limit(market, whole_frame(market), most=min(standing.best_s * WORTH, LONGEST_STEP_S))
        frames = composed_frames(market) if values is not None else []
        waiting = [(first, turn, frame, RISE, LEVELS, values) for turn, frame in enumerate(frames) if values is not None]
        return Composing(market=market, options=options, waiting=waiting)

    def look(self, standing: Standing, *, most: int) -> None:
        """Let compositions wait for their simulation, at so many limits at most, the smallest first."""
        most = max(most * FEW // max(len(self.market.shapes), FEW), 1)
        while most and self.waiting and self.waiting[0][0] < standing.best_s * WORTH and not standing.ends():
            limit, turn, frame, step, left, values = heappop(self.waiting)
            dual, values = self.market.priced(frame, limit, start=values)
            if dual.samples < self.market.batch:
                heappush(self.waiting, (limit * (1 + step), turn, frame, min(2 * step, COARSEST), left, values))
                continue
            most -= 1
            values = _compositions(standing, self.market, frame, limit, values, self.options)
            if left > 1:
                heappush(self.waiting, (limit * (1 + RISE), turn, frame, step, left - 1, values))


def parts_of(market: Market) -> tuple[Market, ...]:
    """The market of all pools, before it those of the fastest pools, from two on, and of each zone: what helps on paper may lie behind a
    slow link, or be so slow that it only makes sums longer.
    """
    ground = market.ground
    fastest = np.argsort(-_weights(market), kind="stable").tolist()
    groups = ground.problem.cluster.groups
    zones = [[pool.group for pool in ground.table.pools if groups[pool.group].zone == zone] for zone in ground.problem.cluster.zones]
    some = [*(fastest[:many] for many in range(2, len(fastest))), *(zone for zone in zones if len(zone) > 1)]
    named = dict.fromkeys(tuple(sorted(pools)) for pools in some if len(pools) < len(fastest))
    return (*(market.within(pools) for pools in named), market)


def simulate_best(standing: Standing, markets: dict[Options, Market], *, most: int) -> None:
    """Simulate the most promising of the waiting plans, at most so many: the best of each kind in turn, as long as it may be the best."""
    tried = 0
    while standing.waiting and tried < most and not standing.ends():
        standing.set_aside()
        turn = list(islice(_in_turn(standing), most - tried))
        for one in turn:
            if one.seconds < standing.best_s and not standing.ends():
                ground = markets[one.options].ground
                standing.attempt(general_plan(ground, one.plan, options=one.options), one.plan)
                standing.waiting.remove(one)
                tried += 1


def _in_turn(standing: Standing) -> Iterator[MixedCandidate]:
    """The best waiting plan of each kind: kinds of which a plan was simulated by their fastest, others by the least that theirs take."""
    done: dict[object, float] = {}
    for seconds, _, plan, options in standing.ranked:
        kinds = MixedCandidate(seconds=seconds, likely_s=seconds, plan=plan, options=options).kinds
        done[kinds] = min(done.get(kinds, inf), seconds)
    best: dict[object, MixedCandidate] = {}
    for one in sorted(standing.waiting, key=lambda one: one.likely_s):
        best.setdefault(one.kinds, one)
    return iter(sorted(best.values(), key=lambda one: done.get(one.kinds, one.likely_s)))


def look_at_one_shape(standing: Standing, market: Market, options: Options) -> None:
    """Plans of one shape, whose replicas sum gradients stage by stage and wait for no others': of each number of replicas that shares the
    batch equally the shapes that end first.
    """
    shapes, batch = market.shapes, market.batch
    devices = np.array([pool.devices for pool in market.ground.table.pools])
    limit = standing.best_s * WORTH if isfinite(standing.best_s) else LONGEST_STEP_S
    whole = market.values(
        Frame(replicas=(1, market.ground.most_replicas), tp=market.ground.least_tp, nodes=(0.0, market.ground.nodes)), limit
    )
    for replicas in range(1, market.ground.most_replicas + 1):
        if batch % replicas or standing.ends():
            continue
        each = np.where(batch % (replicas * shapes.mbs) == 0, batch // (replicas * shapes.mbs), 0)
        room = (each > 0) & (replicas * shapes.use <= devices).all(axis=1) & (whole.microbatches >= each)
        which = np.flatnonzero(room)
        if not len(which):
            continue
        frame = Frame(replicas=(replicas, replicas), tp=market.ground.least_tp, nodes=(0.0, market.ground.nodes))
        values = market.values(frame, limit, whole)
        values.microbatches = np.minimum(values.microbatches, each)
        # Those that fill most of the cluster first: few others can be best.
        which = which[np.argsort(-(shapes.use[which] @ _weights(market)), kind="stable")[:SINGLE]]
        market.refine(values, which, above=each[which] - 1)
        for shape in which[values.microbatches[which] == each[which]].tolist():
            standing.consider(market, [(shape, replicas, int(each[shape]))], limit / LOOSE, options)


def _weights(market: Market) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """(pools,) layers a second of a device of each pool, by its fastest row."""
    table = market.ground.table
    rate = table.mbs / (table.seconds[:, 0].sum(axis=1) * table.size)
    return np.array([rate[table.pool == pool].max() for pool in range(len(table.pools))])


def composed_frames(market: Market) -> list[Frame]:
    """Frames that compositions are asked of: replicas from one power of two to the next, in halves."""
    ground = market.ground
    edges = [*(edge for edge in replica_edges(ground.most_replicas) if edge <= ground.most_replicas), ground.most_replicas + 1]
    ranges = [(low, high - 1) for low, high in pairwise(edges)]
    return [Frame(replicas=some, tp=ground.least_tp, nodes=(0.0, ground.nodes)) for some in ranges]


def whole_frame(market: Market) -> Frame:
    """The frame of any number of replicas."""
    ground = market.ground
    return Frame(replicas=(1, ground.most_replicas), tp=ground.least_tp, nodes=(0.0, ground.nodes))


def first_limit(market: Market, frame: Frame, *, most: float) -> tuple[float, Values | None]:
    """The limit, to a percent, at which prices no longer close a frame, and what is known of its shapes there.

    Args:
        most: where they close it there too, it is inf and nothing is known.
    """
    dual, values = market.priced(frame, most)
    if dual.samples < market.batch:
        return inf, None
    low, high = 0.0, most
    while high - low > NEARLY * high:
        # From above by halves, then by the middle.
        middle = (low + high) / 2 if low else high / 2
        dual, found = market.priced(frame, middle, start=values)
        if dual.samples >= market.batch:
            high, values = middle, found
        else:
            low = middle
    return high, values


def _compositions(standing: Standing, market: Market, frame: Frame, limit_s: float, start: Values | None, options: Options) -> Values:
    """Let compositions of a frame by a limit wait; what is known of its shapes there."""
    dual, values = market.priced(frame, limit_s, start=start, thorough=True)
    pools = market.ground.table.pools
    lanes = max(LANES, len(pools))
    for grain in dict.fromkeys((max(pool.node for pool in pools), 1)):
        for one in compositions(market, dual, values, replicas=frame.replicas, lanes=lanes, grain=grain, most=PAIRS):
            standing.consider(market, dealt(one, market.shapes.mbs, batch=market.batch), limit_s, options)
    return values
