"""Pipelines with their costs: the microbatches that a replica of each shape completes by a
step-time limit, and dual prices that bound the samples of all replicas together.

A frame is priced by column generation: a linear program over the shapes whose microbatches are
known exactly, which other shapes join whose samples exceed their cost, until there are none.
Its parts, and later limits, begin with the shapes of this program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.compiled import compiled
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.pipelines.device_prices import Prices, Room, best_prices
from shardwright.search.mixed.pipelines.pipeline_shapes import Shapes, alike_use, shapes_of
from shardwright.search.mixed.pipelines.pipeline_throughput import most_above, most_by_work
from shardwright.search.mixed.stages.frame_terms import StageCosts, Terms
from shardwright.search.mixed_certificate import Dual, Frame


@dataclass(slots=True)
class Values:
    """Microbatches of each shape by a limit inside a frame.

    Args:
        microbatches: (shapes,) that a replica does at most.
        exact: that many are what the stage inequalities leave.
        active: shapes that prices were made of.
    """

    frame: Frame
    limit_s: float
    microbatches: IntArray
    exact: BoolArray
    active: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedPipelines:
    """Shapes of pipelines with the costs of their stages.

    Args:
        devices: (pools,) that there are.
        use_of, first: see `shapes.alike_use`.
        is_whole: the shapes are all of them.
        kept: terms of frames, as they were asked for.
        effort: limits on the work of the search.
    """

    stage_costs: StageCosts
    shapes: Shapes
    devices: FloatArray
    use_of: IntArray
    first: IntArray
    is_whole: bool = True
    kept: dict[Frame, Terms] = field(default_factory=dict)
    effort: Effort = USUAL

    @staticmethod
    def of(stage_costs: StageCosts, *, effort: Effort = USUAL) -> PricedPipelines:
        """All shapes of the stage costs."""
        shapes = shapes_of(stage_costs.table)
        use_of, first = alike_use(shapes)
        devices = np.array([pool.devices for pool in stage_costs.table.pools], dtype=np.float64)
        return PricedPipelines(
            stage_costs=stage_costs,
            shapes=shapes,
            devices=devices,
            use_of=use_of,
            first=first,
            effort=effort,
        )

    def terms(self, frame: Frame) -> Terms:
        """Least seconds that stages of a frame take."""
        key = replace(frame, nodes=(0.0, 0.0))
        if key not in self.kept:
            self.kept[key] = self.stage_costs.terms(frame)
        return self.kept[key]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.stage_costs.problem.job.global_batch

    def values(self, frame: Frame, limit_s: float, start: Values | None = None) -> Values:
        """Upper bounds of the frame's shapes, none of them exact: by work, or what `start` found at
        no earlier a limit of a frame around it.
        """
        if start is not None and start.limit_s >= limit_s and _inside(frame, start.frame):
            upper = start.microbatches.copy()
        else:
            limit = limit_s / self.stage_costs.jitter(frame)
            least = start.microbatches if start is not None else None
            upper = most_by_work(
                self.terms(frame), self.shapes, batch=self.batch, limit=limit, least=least
            )
        upper[~self._in_frame(frame)] = 0
        active = start.active if start is not None else np.zeros(0, dtype=np.int64)
        return Values(
            frame=frame, limit_s=limit_s, microbatches=upper, exact=upper == 0, active=active
        )

    def _in_frame(self, frame: Frame) -> BoolArray:
        """(shapes,) those that plans of the frame may have."""
        shapes = self.shapes
        within = shapes.tp >= frame.tp
        if shapes.sharded.any():
            low, high = frame.replicas
            lanes = frame.sharded & shapes.sharded & (shapes.least <= high)
            within &= lanes & (shapes.most >= low) if frame.alone else lanes | ~shapes.sharded
        for one in frame.sole or ():
            pools = [
                place
                for place, number in enumerate(self.stage_costs.shared.classes)
                if number == one
            ]
            within &= shapes.use[:, pools].any(axis=1)
        return within

    def refine(self, values: Values, which: IntArray, *, above: IntArray | None = None) -> None:
        """Make the values of some shapes exact; of those that do no more microbatches than `above`
        (per shape) that is all that is found out.
        """
        least = np.zeros(len(which), dtype=np.int64) if above is None else above
        limit = values.limit_s / self.stage_costs.jitter(values.frame)
        found = most_above(
            self.terms(values.frame),
            self.shapes,
            upper=values.microbatches,
            which=which,
            least=least,
            limit=limit,
        )
        values.exact[which] = (found > least) | (least == 0)
        values.microbatches[which] = np.minimum(found, values.microbatches[which])

    def samples(self, values: Values) -> FloatArray:
        """(shapes,) samples that a replica does at most."""
        return np.asarray(values.microbatches * self.shapes.mbs, dtype=np.float64)

    def priced(
        self, frame: Frame, limit_s: float, *, start: Values | None = None, thorough: bool = False
    ) -> tuple[Dual, Values]:
        """Prices that no shape of the frame is worth more than, as low as can be; or, unless
        `thorough`, the first that close the frame, or under which shapes that can be had do the
        batch.

        Args:
            start: of a frame or a limit near by.
        """
        values = self.values(frame, limit_s, start)
        if not len(values.active):
            values.active = self._first(values)
        self.refine(values, values.active[~values.exact[values.active]])
        while True:
            some = values.active
            worth = (values.microbatches[some] * self.shapes.mbs[some]).astype(np.float64)
            prices = self._prices(values, some, worth)
            dual = self._dual(frame, limit_s, prices)
            if dual.samples >= self.batch and not thorough:
                return dual, values
            above = _above(
                self.shapes.use, self.shapes.nodes, self.shapes.mbs, values.microbatches, *prices
            )
            raised = self._raised(dual, float(above[1].max(initial=0.0)))
            if not thorough and raised.samples < self.batch:
                return raised, values
            underpriced = self._underpriced_among(values, *above)
            if not len(underpriced):
                break
            values.active = np.concatenate([some, underpriced])
        if thorough:
            self.refine_near(values, prices)
        return self.repriced(dual, self.samples(values)), values

    def _first(self, values: Values) -> IntArray:
        """Shapes that a linear program begins with: those nearest to the prices of what work alone
        leaves.
        """
        alive = np.flatnonzero(values.microbatches > 0)
        worth = self.samples(values)
        best = np.full(len(self.first), -1.0)
        np.maximum.at(best, self.use_of[alive], worth[alive])
        some = np.flatnonzero(best >= 0)
        prices = self._prices(values, self.first[some], best[some])
        gains = (worth - self.cost(prices))[alive]
        most = min(self.effort.shapes_refined_at_once, len(alive))
        near = np.argpartition(-gains, most - 1)[:most] if most else alive
        return self._distinct_by_use(alive[near[np.lexsort((near, -gains[near]))]])

    def underpriced(self, values: Values, prices: Prices) -> IntArray:
        """Shapes that are worth more than they cost and not yet among the active ones, some of the
        dearest; [] = there are none.
        """
        return self._underpriced_among(
            values,
            *_above(
                self.shapes.use, self.shapes.nodes, self.shapes.mbs, values.microbatches, *prices
            ),
        )

    def _underpriced_among(
        self, values: Values, which: IntArray, gains: FloatArray, floor: IntArray
    ) -> IntArray:
        """Of shapes that may be worth more than they cost some of the dearest that are, and not yet
        among the active ones; [] = there are none.

        Args:
            which, gains, floor: shapes, by how much, and the most microbatches that they would not
                be for.
        """
        mbs, known = self.shapes.mbs, np.zeros(len(self.shapes), dtype=np.bool_)
        known[values.active] = True
        new = np.flatnonzero(~known[which])
        ranked = new[np.argsort(-gains[new], kind="stable")]
        for begin in range(0, len(ranked), self.effort.shapes_refined_at_once):
            some = ranked[begin : begin + self.effort.shapes_refined_at_once]
            doubtful = some[~values.exact[which[some]]]
            self.refine(values, which[doubtful], above=floor[doubtful])
            underpriced = some[values.microbatches[which[some]] > floor[some]]
            if len(underpriced):
                worth = (values.microbatches[which[underpriced]] - floor[underpriced]) * mbs[
                    which[underpriced]
                ]
                return self._distinct_by_use(
                    which[underpriced[np.lexsort((which[underpriced], -worth))]]
                )
        return which[:0]

    def _distinct_by_use(self, ranked: IntArray) -> IntArray:
        """The first of some shapes, one of those that use as many devices."""
        _, first = np.unique(self.use_of[ranked], return_index=True)
        return ranked[np.sort(first)[: self.effort.columns_joined_at_once]]

    def refine_near(self, values: Values, prices: Prices) -> None:
        """Make the values of shapes that are nearest to their price exact, of lanes that shard and
        of others: those that compositions choose from.
        """
        open_to = ~values.exact & (values.microbatches > 0)
        gains = self.samples(values) - self.cost(prices)
        for which in (
            (~self.shapes.sharded, self.shapes.sharded)
            if values.frame.sharded
            else (~self.shapes.sharded,)
        ):
            near = np.flatnonzero(open_to & which)
            most = min(self.effort.shapes_refined_near_prices, len(near))
            self.refine(
                values,
                np.sort(near[np.argpartition(-gains[near], most - 1)[:most]]) if most else near,
            )

    def cost(self, prices: Prices) -> FloatArray:
        """(shapes,) what a replica of each costs."""
        return np.asarray(
            self.shapes.use @ prices.devices + self.shapes.nodes * prices.nodes + prices.replicas
        )

    def _prices(self, values: Values, some: IntArray, worth: FloatArray) -> Prices:
        """Prices of some shapes, of those that do any microbatch."""
        alive = worth > 0
        columns = some[alive]
        if not len(columns):
            return Prices(
                devices=np.zeros(len(self.stage_costs.table.pools)), nodes=0.0, replicas=0.0
            )
        use, nodes = self.shapes.use[columns].astype(np.float64), self.shapes.nodes[columns]
        return best_prices(use, nodes, worth[alive], self.room(values.frame))

    def room(self, frame: Frame) -> Room:
        """Devices, nodes and replicas that plans of a frame may use."""
        return Room(devices=self.devices, nodes=frame.nodes[1], replicas=frame.replicas)

    def _dual(self, frame: Frame, limit_s: float, prices: Prices) -> Dual:
        room = self.room(frame)
        low, high = room.replicas
        whole = float(prices.devices @ room.devices + prices.nodes * room.nodes)
        return Dual(
            frame=frame,
            limit_s=limit_s,
            devices=tuple(prices.devices.tolist()),
            nodes=prices.nodes,
            replicas=prices.replicas,
            samples=whole + prices.replicas * (high if prices.replicas > 0 else low),
        )

    def repriced(self, dual: Dual, worth: FloatArray) -> Dual:
        """The prices with a replica's raised until they cover what every shape is worth, and what
        all costs then.
        """
        return self._raised(
            dual, float((worth - self.cost(prices_of(dual)))[worth > 0].max(initial=0.0))
        )

    def _raised(self, dual: Dual, more: float) -> Dual:
        """The prices with a replica's raised, and what all costs then."""
        prices = prices_of(dual)
        return self._dual(
            dual.frame, dual.limit_s, prices._replace(replicas=prices.replicas + max(more, 0.0))
        )

    def within(self, pools: tuple[int, ...]) -> PricedPipelines:
        """The shapes that lie on some of the pools."""
        others = [pool for pool in range(len(self.stage_costs.table.pools)) if pool not in pools]
        shapes = self.shapes.take(np.flatnonzero((self.shapes.use[:, others] == 0).all(axis=1)))
        use_of, first = alike_use(shapes)
        return replace(self, shapes=shapes, use_of=use_of, first=first, is_whole=False)


@compiled
def _above(
    use: IntArray,
    nodes: FloatArray,
    mbs: IntArray,
    upper: IntArray,
    devices: FloatArray,
    node: float,
    replica: float,
) -> tuple[IntArray, FloatArray, IntArray]:
    """Shapes that may be worth more than they cost, by how much, and the most microbatches that
    they would not be for.
    """
    count = 0
    which = np.zeros(len(mbs), dtype=np.int64)
    gains = np.zeros(len(mbs), dtype=np.float64)
    floors = np.zeros(len(mbs), dtype=np.int64)
    for s in range(len(mbs)):
        if upper[s]:
            cost = nodes[s] * node + replica
            for k in range(use.shape[1]):
                cost += use[s, k] * devices[k]
            floor = int(max(cost, 0.0) / mbs[s] + 1e-9)
            if upper[s] > floor:
                which[count], gains[count], floors[count] = s, upper[s] * mbs[s] - cost, floor
                count += 1
    return which[:count].copy(), gains[:count].copy(), floors[:count].copy()


def prices_of(dual: Dual) -> Prices:
    """The prices that a certificate keeps."""
    return Prices(devices=np.array(dual.devices), nodes=dual.nodes, replicas=dual.replicas)


def _inside(frame: Frame, around: Frame) -> bool:
    """Every plan of a frame is one of the other."""
    within = (around.replicas, frame.replicas), (around.nodes, frame.nodes)
    alike = (frame.sharded, frame.alone) == (around.sharded, around.alone)
    alike &= around.sole in (None, frame.sole)
    return alike and frame.tp >= around.tp and all(a[0] <= f[0] and f[1] <= a[1] for a, f in within)
