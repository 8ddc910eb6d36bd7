"""Pipelines with stage costs: microbatches by a step-time limit, and dual prices of resources.

A subspace is priced by column generation: a linear program over the shapes whose microbatches are
known exactly. Shapes with more samples than their price join the program until there are none.
Parts of the subspace, and later limits, begin with the shapes of this program.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.kernel_compilation import compiled
from shardwright.search.mixed.pipelines.microbatches_and_layer_cut_by_deadline import (
    most_above,
    most_by_work,
)
from shardwright.search.mixed.pipelines.pipeline_shapes import (
    Shapes,
    group_by_device_use,
    shapes_of,
)
from shardwright.search.mixed.pipelines.resource_dual_prices import (
    Prices,
    ResourceLimits,
    best_prices,
)
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts, Terms
from shardwright.search.mixed_cluster_certificate import Dual, Subspace


@dataclass(slots=True)
class ShapeMicrobatches:
    """Most microbatches of each shape by a limit, inside a subspace.

    Args:
        microbatches: (shapes,) upper bound for one replica.
        exact: (shapes,) True where the stage inequalities give the bound.
        active: shapes of the linear program.
    """

    subspace: Subspace
    limit_s: float
    microbatches: IntArray
    exact: BoolArray
    active: IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedPipelines:
    """Pipeline shapes with the costs of their stages, and methods that price subspaces.

    Args:
        devices: (pools,) devices of each pool.
        use_of, first: see `pipeline_shapes.group_by_device_use`.
        is_whole: the shapes are all shapes of the space.
        kept: cache of the terms of subspaces.
        effort: limits on the work of the search.
    """

    stage_costs: MixedStageCosts
    shapes: Shapes
    devices: FloatArray
    use_of: IntArray
    first: IntArray
    is_whole: bool = True
    kept: dict[Subspace, Terms] = field(default_factory=dict)
    effort: Effort = USUAL

    @staticmethod
    def of(stage_costs: MixedStageCosts, *, effort: Effort = USUAL) -> PricedPipelines:
        """Create the pricing of all pipeline shapes that the stage costs allow."""
        shapes = shapes_of(stage_costs.table)
        use_of, first = group_by_device_use(shapes)
        devices = np.array([pool.devices for pool in stage_costs.table.pools], dtype=np.float64)
        return PricedPipelines(
            stage_costs=stage_costs,
            shapes=shapes,
            devices=devices,
            use_of=use_of,
            first=first,
            effort=effort,
        )

    def terms(self, subspace: Subspace) -> Terms:
        """Least seconds that stages of a subspace's plans take; cached."""
        key = replace(subspace, nodes=(0.0, 0.0))
        if key not in self.kept:
            self.kept[key] = self.stage_costs.terms(subspace)
        return self.kept[key]

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.stage_costs.problem.job.global_batch

    def values(
        self, subspace: Subspace, limit_s: float, start: ShapeMicrobatches | None = None
    ) -> ShapeMicrobatches:
        """Upper bounds on microbatches that a replica of each shape completes by a limit; 0 = none.

        From the work alone, or from `start`, if that is of a surrounding subspace and no earlier
        limit.
        """
        if start is not None and start.limit_s >= limit_s and _inside(subspace, start.subspace):
            upper = start.microbatches.copy()
        else:
            limit = limit_s / self.stage_costs.jitter(subspace)
            least = start.microbatches if start is not None else None
            upper = most_by_work(
                self.terms(subspace), self.shapes, batch=self.batch, limit=limit, least=least
            )
        upper[~self._in_subspace(subspace)] = 0
        active = start.active if start is not None else np.zeros(0, dtype=np.int64)
        return ShapeMicrobatches(
            subspace=subspace, limit_s=limit_s, microbatches=upper, exact=upper == 0, active=active
        )

    def _in_subspace(self, subspace: Subspace) -> BoolArray:
        """(shapes,) True for shapes that plans of the subspace may have."""
        shapes = self.shapes
        within = shapes.tp >= subspace.tp
        if shapes.sharded.any():
            low, high = subspace.replicas
            lanes = subspace.sharded & shapes.sharded & (shapes.least <= high)
            within &= lanes & (shapes.most >= low) if subspace.alone else lanes | ~shapes.sharded
        for pool_class in subspace.sole or ():
            pools = [
                place
                for place, number in enumerate(self.stage_costs.shared.classes)
                if number == pool_class
            ]
            within &= shapes.use[:, pools].any(axis=1)
        return within

    def refine(
        self, values: ShapeMicrobatches, shape_indices: IntArray, *, above: IntArray | None = None
    ) -> None:
        """Make microbatches of some shapes exact, in place, unless they are at most `above`.

        Args:
            shape_indices: the shapes.
            above: (which,) a shape with no more microbatches than this keeps an upper bound.
        """
        least = np.zeros(len(shape_indices), dtype=np.int64) if above is None else above
        limit = values.limit_s / self.stage_costs.jitter(values.subspace)
        microbatches = most_above(
            self.terms(values.subspace),
            self.shapes,
            upper=values.microbatches,
            shape_indices=shape_indices,
            lower=least,
            limit=limit,
        )
        values.exact[shape_indices] = (microbatches > least) | (least == 0)
        values.microbatches[shape_indices] = np.minimum(
            microbatches, values.microbatches[shape_indices]
        )

    def samples(self, values: ShapeMicrobatches) -> FloatArray:
        """(shapes,) upper bounds on the samples of a step of one replica of each shape."""
        return np.asarray(values.microbatches * self.shapes.mbs, dtype=np.float64)

    def priced(
        self,
        subspace: Subspace,
        limit_s: float,
        *,
        start: ShapeMicrobatches | None = None,
        thorough: bool = False,
    ) -> tuple[Dual, ShapeMicrobatches]:
        """Dual prices of a subspace at a limit, its shape values; lowest bound if `thorough`.

        The prices bound the samples of all plans as low as possible. Unless `thorough`, the first
        prices that close the subspace are returned, or the first under which plans may complete the
        batch.

        Args:
            start: values of a subspace or a limit near by.
        """
        values = self.values(subspace, limit_s, start)
        if not len(values.active):
            values.active = self._initial_shapes(values)
        self.refine(values, values.active[~values.exact[values.active]])
        while True:
            some = values.active
            worth = (values.microbatches[some] * self.shapes.mbs[some]).astype(np.float64)
            prices = self._prices(values, some, worth)
            dual = self._dual(subspace, limit_s, prices)
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
        return self.valid_dual(dual, self.samples(values)), values

    def _initial_shapes(self, values: ShapeMicrobatches) -> IntArray:
        """Indices of shapes that the linear program begins with: nearest to prices from work."""
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

    def underpriced(self, values: ShapeMicrobatches, prices: Prices) -> IntArray:
        """Indices of inactive shapes with more samples than their price, most excess first; or [].

        At most `Effort.columns_joined_at_once`; [] = there are none.
        """
        return self._underpriced_among(
            values,
            *_above(
                self.shapes.use, self.shapes.nodes, self.shapes.mbs, values.microbatches, *prices
            ),
        )

    def _underpriced_among(
        self, values: ShapeMicrobatches, shape_indices: IntArray, gains: FloatArray, floor: IntArray
    ) -> IntArray:
        """Indices of the underpriced among some shapes, without active shapes; [] = none.

        Args:
            shape_indices: the shapes.
            gains: samples above the price.
            floor: the most microbatches at which a shape is not underpriced.
        """
        mbs, is_active = self.shapes.mbs, np.zeros(len(self.shapes), dtype=np.bool_)
        is_active[values.active] = True
        new = np.flatnonzero(~is_active[shape_indices])
        ranked = new[np.argsort(-gains[new], kind="stable")]
        for begin in range(0, len(ranked), self.effort.shapes_refined_at_once):
            some = ranked[begin : begin + self.effort.shapes_refined_at_once]
            doubtful = some[~values.exact[shape_indices[some]]]
            self.refine(values, shape_indices[doubtful], above=floor[doubtful])
            underpriced = some[values.microbatches[shape_indices[some]] > floor[some]]
            if len(underpriced):
                worth = (
                    values.microbatches[shape_indices[underpriced]] - floor[underpriced]
                ) * mbs[shape_indices[underpriced]]
                return self._distinct_by_use(
                    shape_indices[underpriced[np.lexsort((shape_indices[underpriced], -worth))]]
                )
        return shape_indices[:0]

    def _distinct_by_use(self, ranked: IntArray) -> IntArray:
        """First ranked shape of each use of devices, up to `Effort.columns_joined_at_once`."""
        _, first = np.unique(self.use_of[ranked], return_index=True)
        return ranked[np.sort(first)[: self.effort.columns_joined_at_once]]

    def refine_near(self, values: ShapeMicrobatches, prices: Prices) -> None:
        """Make the microbatches of the shapes nearest to their price exact, in place.

        Compositions choose from them; lanes that shard and other lanes are treated separately.
        """
        open_to = ~values.exact & (values.microbatches > 0)
        gains = self.samples(values) - self.cost(prices)
        for which in (
            (~self.shapes.sharded, self.shapes.sharded)
            if values.subspace.sharded
            else (~self.shapes.sharded,)
        ):
            near = np.flatnonzero(open_to & which)
            most = min(self.effort.shapes_refined_near_prices, len(near))
            self.refine(
                values,
                np.sort(near[np.argpartition(-gains[near], most - 1)[:most]]) if most else near,
            )

    def cost(self, prices: Prices) -> FloatArray:
        """(shapes,) price in samples of one replica."""
        return np.asarray(
            self.shapes.use @ prices.devices + self.shapes.nodes * prices.nodes + prices.replicas
        )

    def _prices(self, values: ShapeMicrobatches, shapes: IntArray, worth: FloatArray) -> Prices:
        """Dual prices of the linear program over some shapes, without those of no microbatch."""
        alive = worth > 0
        columns = shapes[alive]
        if not len(columns):
            return Prices(
                devices=np.zeros(len(self.stage_costs.table.pools)), nodes=0.0, replicas=0.0
            )
        use, nodes = self.shapes.use[columns].astype(np.float64), self.shapes.nodes[columns]
        return best_prices(use, nodes, worth[alive], self.resource_limits(values.subspace))

    def resource_limits(self, subspace: Subspace) -> ResourceLimits:
        """Devices, nodes and replicas that plans of a subspace may use."""
        return ResourceLimits(
            devices=self.devices, nodes=subspace.nodes[1], replicas=subspace.replicas
        )

    def _dual(self, subspace: Subspace, limit_s: float, prices: Prices) -> Dual:
        """Dual prices with the samples that all resources of a subspace cost."""
        resource_limits = self.resource_limits(subspace)
        low, high = resource_limits.replicas
        whole = float(
            prices.devices @ resource_limits.devices + prices.nodes * resource_limits.nodes
        )
        return Dual(
            frame=subspace,
            limit_s=limit_s,
            devices=tuple(prices.devices.tolist()),
            nodes=prices.nodes,
            replicas=prices.replicas,
            samples=whole + prices.replicas * (high if prices.replicas > 0 else low),
        )

    def valid_dual(self, dual: Dual, worth: FloatArray) -> Dual:
        """The dual, its replica price raised until no shape's samples `worth` exceed its price."""
        return self._raised(
            dual, float((worth - self.cost(prices_of(dual)))[worth > 0].max(initial=0.0))
        )

    def _raised(self, dual: Dual, raise_by: float) -> Dual:
        """Dual prices with the replica price raised by `raise_by` samples."""
        prices = prices_of(dual)
        return self._dual(
            dual.frame, dual.limit_s, prices._replace(replicas=prices.replicas + max(raise_by, 0.0))
        )

    def within(self, pools: tuple[int, ...]) -> PricedPipelines:
        """The pipelines whose shapes use only the given pools."""
        other_pools = [
            pool for pool in range(len(self.stage_costs.table.pools)) if pool not in pools
        ]
        shapes = self.shapes.take(
            np.flatnonzero((self.shapes.use[:, other_pools] == 0).all(axis=1))
        )
        use_of, first = group_by_device_use(shapes)
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
    """Indices of possibly underpriced shapes, excess samples, most microbatches in the price."""
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
    """Dual prices of a certificate's entry as arrays."""
    return Prices(devices=np.array(dual.devices), nodes=dual.nodes, replicas=dual.replicas)


def _inside(subspace: Subspace, outer: Subspace) -> bool:
    """True where every plan of a subspace is in the other one."""
    within = (outer.replicas, subspace.replicas), (outer.nodes, subspace.nodes)
    alike = (subspace.sharded, subspace.alone) == (outer.sharded, outer.alone)
    alike &= outer.sole in (None, subspace.sole)
    return (
        alike and subspace.tp >= outer.tp and all(a[0] <= f[0] and f[1] <= a[1] for a, f in within)
    )
