"""The linear program over replicas of shapes, and the prices that show how many samples all replicas together can do by a limit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import linprog

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.search.frames import Dual, Frame
from shardwright.search.mixed.shapes import Shapes, alike_use, shapes_of
from shardwright.search.mixed.terms import Ground, Terms
from shardwright.search.mixed.values import most_by_work, most_microbatches

_AT_ONCE = 2048
"""Shapes whose values are made exact in one round."""
_SLACK = 1e-9


@dataclass(slots=True)
class Values:
    """Samples that a replica of each shape does by a limit: bounds by work, made exact where it matters.

    Args:
        microbatches: (shapes,) at most. exact: (shapes,) whether they are those of the stage inequalities.
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

    def values(self, frame: Frame, limit_s: float) -> Values:
        """Bounds by work of the frame's shapes; none of others."""
        upper = most_by_work(self.terms(frame), self.shapes, batch=self.batch, limit=limit_s / self.ground.jitter(frame))
        upper[self.shapes.tp < frame.tp] = 0
        return Values(microbatches=upper, exact=upper == 0)

    def refine(self, values: Values, which: IntArray, frame: Frame, limit_s: float) -> None:
        """Make the values of some shapes exact."""
        limit = limit_s / self.ground.jitter(frame)
        values.microbatches[which] = most_microbatches(self.terms(frame), self.shapes, upper=values.microbatches, which=which, limit=limit)
        values.exact[which] = True

    def samples(self, values: Values) -> FloatArray:
        """(shapes,) samples that a replica does at most."""
        return np.asarray(values.microbatches * self.shapes.mbs, dtype=np.float64)

    def by_work(self, frame: Frame, limit_s: float) -> Dual:
        """A bound of what plans of a frame do by a limit, by work alone."""
        values = self.values(frame, limit_s)
        return self._solved(frame, limit_s, self.samples(values))

    def priced(self, frame: Frame, limit_s: float) -> tuple[Dual, Values]:
        """The least bound of what plans of a frame do by a limit; or the first that is below the batch."""
        values = self.values(frame, limit_s)
        while True:
            done = self.samples(values)
            dual = self._solved(frame, limit_s, done)
            if dual.samples < self.batch:
                return dual, values
            gains = done - self.cost(dual)
            open_ones = np.flatnonzero(~values.exact & (gains > -_SLACK * self.batch))
            if not len(open_ones):
                return dual, values
            near = np.flatnonzero(~values.exact & (done > 0))
            chosen = near[np.argsort(-gains[near], kind="stable")[:_AT_ONCE]]
            self.refine(values, np.sort(chosen), frame, limit_s)

    def enough(self, dual: Dual, values: Values, replicas: tuple[int, int]) -> bool:
        """Whether so many replicas may do the batch by the prices' limit, in parts if need be."""
        done = self.samples(values)
        return self._solved(replace(dual.frame, replicas=replicas), dual.limit_s, done).samples >= self.batch

    def cost(self, dual: Dual) -> FloatArray:
        """(shapes,) what a replica of each costs under prices."""
        return np.asarray(self.shapes.use @ np.array(dual.devices) + self.shapes.nodes * dual.nodes + dual.replicas)

    def _solved(self, frame: Frame, limit_s: float, done: FloatArray) -> Dual:
        best = np.zeros(len(self.first))
        np.maximum.at(best, self.use_of, done)
        some = np.flatnonzero(best > 0)
        devices = np.array([pool.devices for pool in self.ground.table.pools], dtype=np.float64)
        low, high = frame.replicas
        if not len(some):
            return Dual(frame=frame, limit_s=limit_s, devices=tuple(0.0 * devices), nodes=0.0, replicas=0.0, samples=0.0)
        columns = self.first[some]
        ones = np.ones(len(some))
        rows = np.concatenate([self.shapes.use[columns].T, [self.shapes.nodes[columns], ones, -ones]])
        room = np.array([*devices, frame.nodes[1], high, -low], dtype=np.float64)
        found = linprog(-best[some], A_ub=rows, b_ub=room, method="highs")
        if found.x is None:
            # Not even the least number of replicas finds devices.
            return Dual(frame=frame, limit_s=limit_s, devices=tuple(0.0 * devices), nodes=0.0, replicas=0.0, samples=0.0)
        prices = np.maximum(-found.ineqlin.marginals, 0.0)
        dual = Dual(
            frame=frame,
            limit_s=limit_s,
            devices=tuple(prices[: len(devices)].tolist()),
            nodes=float(prices[-3]),
            replicas=float(prices[-2] - prices[-1]),
            samples=0.0,
        )
        return self.repriced(dual, done)

    def repriced(self, dual: Dual, done: FloatArray) -> Dual:
        """The prices with a replica's raised until they cover every shape's samples, and what they say then."""
        worse = max(float((done - self.cost(dual))[done > 0].max(initial=0.0)), 0.0)
        replicas = dual.replicas + worse
        devices = [pool.devices for pool in self.ground.table.pools]
        low, high = dual.frame.replicas
        whole = sum(n * price for n, price in zip(devices, dual.devices, strict=True)) + dual.frame.nodes[1] * dual.nodes
        return replace(dual, replicas=replicas, samples=whole + replicas * (high if replicas > 0 else low))
