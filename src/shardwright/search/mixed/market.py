"""Shapes on their ground: what a replica of each does by a limit, and prices that bound what all replicas together do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.search.frames import Dual, Frame
from shardwright.search.mixed.prices import Prices, Room, best_prices
from shardwright.search.mixed.shapes import Shapes, alike_use, shapes_of
from shardwright.search.mixed.terms import Ground, Terms
from shardwright.search.mixed.values import most_above, most_by_work

_BEGIN = 512
"""Shapes that are looked at first: those nearest to what work alone leaves."""
_NEAR = 1536
"""Shapes nearest to the prices that compositions choose from."""


@dataclass(slots=True)
class Values:
    """Microbatches that a replica of each shape does by a limit: (shapes,) at most, and whether that many are what the stage inequalities
    leave.
    """

    microbatches: IntArray
    exact: BoolArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Market:
    """Shapes on their ground.

    Args:
        use_of, first: see `shapes.alike_use`. kept: terms of frames, as they were asked for.
    """

    ground: Ground
    shapes: Shapes
    use_of: IntArray
    first: IntArray
    kept: dict[Frame, Terms] = field(default_factory=dict)

    @staticmethod
    def of(ground: Ground) -> Market:
        """All shapes on their ground."""
        shapes = shapes_of(ground.table)
        use_of, first = alike_use(shapes)
        return Market(ground=ground, shapes=shapes, use_of=use_of, first=first)

    def terms(self, frame: Frame) -> Terms:
        """What stages of a frame take."""
        key = replace(frame, nodes=(0.0, 0.0))
        if key not in self.kept:
            self.kept[key] = self.ground.terms(frame)
        return self.kept[key]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.ground.problem.job.global_batch

    def by_work(self, frame: Frame, limit_s: float) -> Values:
        """Bounds by work of the frame's shapes; none of others."""
        upper = most_by_work(self.terms(frame), self.shapes, batch=self.batch, limit=limit_s / self.ground.jitter(frame))
        upper[self.shapes.tp < frame.tp] = 0
        return Values(microbatches=upper, exact=upper == 0)

    def work_done(self, frame: Frame, limit_s: float) -> float:
        """Samples that plans of a frame do by a limit at most, by work alone."""
        values = self.by_work(frame, limit_s)
        return self._dual(frame, limit_s, self._prices(frame, self.samples(values), values.microbatches > 0)).samples

    def refine(self, values: Values, which: IntArray, frame: Frame, limit_s: float, *, above: IntArray | None = None) -> None:
        """Make the values of some shapes exact; of those that do no more microbatches than `above` (per shape) that is all that is found
        out.
        """
        limit = limit_s / self.ground.jitter(frame)
        least = np.zeros(len(which), dtype=np.int64) if above is None else above
        found = most_above(self.terms(frame), self.shapes, upper=values.microbatches, which=which, least=least, limit=limit)
        values.microbatches[which] = found
        values.exact[which] = (found > least) | (least == 0)

    def samples(self, values: Values) -> FloatArray:
        """(shapes,) samples that a replica does at most."""
        return np.asarray(values.microbatches * self.shapes.mbs, dtype=np.float64)

    def priced(self, frame: Frame, limit_s: float, *, thorough: bool = False) -> tuple[Dual, Values]:
        """Prices that no shape of the frame is worth more than, as low as can be; or, unless `thorough`, the first under which shapes that
        can be had do the batch.

        Shapes that are worth more than prices of the exact ones let them cost are looked at, until there are none.
        """
        values = self.by_work(frame, limit_s)
        begin = self._prices(frame, self.samples(values), values.microbatches > 0)
        self._look_near(values, frame, limit_s, begin, count=_BEGIN)
        while True:
            known = np.where(values.exact, self.samples(values), 0.0)
            prices = self._prices(frame, known, values.microbatches > 0)
            dual = self._dual(frame, limit_s, prices)
            if dual.samples >= self.batch and not thorough:
                return dual, values
            floor = np.floor(np.maximum(self.cost(prices), 0.0) / self.shapes.mbs + 1e-9).astype(np.int64)
            which = np.flatnonzero(~values.exact & (values.microbatches > floor))
            if not len(which):
                break
            self.refine(values, which, frame, limit_s, above=floor[which])
        if thorough:
            self._look_near(values, frame, limit_s, prices, count=_NEAR)
        return self.repriced(dual, self.samples(values)), values

    def _look_near(self, values: Values, frame: Frame, limit_s: float, prices: Prices, *, count: int) -> None:
        near = np.flatnonzero(~values.exact & (values.microbatches > 0))
        gains = (self.samples(values) - self.cost(prices))[near]
        self.refine(values, np.sort(near[np.argsort(-gains, kind="stable")[:count]]), frame, limit_s)

    def cost(self, prices: Prices) -> FloatArray:
        """(shapes,) what a replica of each costs."""
        return np.asarray(self.shapes.use @ prices.devices + self.shapes.nodes * prices.nodes + prices.replicas)

    def _prices(self, frame: Frame, worth: FloatArray, alive: BoolArray) -> Prices:
        """Prices of the shapes that are alive, of those that use as much the one that is worth most."""
        best = np.full(len(self.first), -1.0)
        np.maximum.at(best, self.use_of[alive], worth[alive])
        some = np.flatnonzero(best >= 0)
        pools = self.ground.table.pools
        if not len(some):
            return Prices(devices=np.zeros(len(pools)), nodes=0.0, replicas=0.0)
        columns = self.first[some]
        return best_prices(self.shapes.use[columns].astype(np.float64), self.shapes.nodes[columns], best[some], self._room(frame))

    def _room(self, frame: Frame) -> Room:
        devices = np.array([pool.devices for pool in self.ground.table.pools], dtype=np.float64)
        return Room(devices=devices, nodes=frame.nodes[1], replicas=frame.replicas)

    def _dual(self, frame: Frame, limit_s: float, prices: Prices) -> Dual:
        room = self._room(frame)
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
        """The prices with a replica's raised until they cover what every shape is worth, and what all costs then."""
        prices = prices_of(dual)
        worse = float((worth - self.cost(prices))[worth > 0].max(initial=0.0))
        return self._dual(dual.frame, dual.limit_s, prices._replace(replicas=prices.replicas + max(worse, 0.0)))


def prices_of(dual: Dual) -> Prices:
    """The prices that a certificate keeps."""
    return Prices(devices=np.array(dual.devices), nodes=dual.nodes, replicas=dual.replicas)
