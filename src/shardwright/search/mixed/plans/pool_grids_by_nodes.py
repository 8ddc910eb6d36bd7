"""Grids of a pool alone by how many of its nodes they use: fewer nodes take longer and are paid
less.

A grid that uses `fewest` to `devices` devices ends no sooner than the bound of all of them, and
pays for no fewer than `fewest`; so it costs no less than their product. Ranges whose product is
below what is to be shown are split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from math import inf, isfinite

from shardwright.lazy_dataclass import dataclass
from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.search.mixed.effort import Effort
from shardwright.search.mixed.plans.low_cost_plans import PlanRecord
from shardwright.search.mixed.plans.pool_grids import AloneSearch, PoolResult, placed, pool_alone
from shardwright.search.mixed.stages.device_pools import Pool
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed_certificate import PoolAlone
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_limit import Limit, Stops
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Grids on some numbers of a pool's devices.

    Args:
        fewest, devices: that they use at least and at most.
        found: their best and their bound.
    """

    pool: Pool
    fewest: int
    devices: int
    found: PoolResult

    def text(self) -> str:
        """The devices in words."""
        low = f"{self.fewest:,} to " if self.fewest < self.devices else ""
        return f"{low}{self.devices:,} {self.pool.name}"

    @property
    def for_certificate(self) -> PoolAlone:
        """The record of the range in a certificate."""
        return replace(self.found.for_certificate(None), devices=self.devices, fewest=self.fewest)


@dataclass(slots=True)
class OwnGrids:
    """The ranges of all pools.

    Args:
        ranges: that make up the space.
        searched: all that were, in order.
        seconds, memory: of a search of one.
    """

    record: PlanRecord
    engine: Engine
    choices: Choices
    seconds: float
    memory: int
    stops: Stops | None
    effort: Effort
    ranges: list[Range] = field(default_factory=list)
    searched: list[Range] = field(default_factory=list)

    def begin(self, pools: tuple[Pool, ...], done: Callable[[int], None]) -> None:
        """Search each pool from its half to all of its nodes, from a quarter to a half,
        and so on.
        """
        asked = [(pool, fewest, most) for pool in pools for fewest, most in self._halves(pool)]
        load_kernels()
        done(0)
        self._search(asked, done)

    def _most_nodes(self, pool: Pool) -> int:
        """Nodes that the budget pays for."""
        price = self.record.standing.problem.cluster.groups[pool.group].price * pool.node
        return (
            pool.nodes
            if not isfinite(self.record.budget)
            else min(pool.nodes, int(self.record.budget / price * (1 + 1e-12)))
        )

    def _halves(self, pool: Pool) -> list[tuple[int, int]]:
        """(fewest, most) devices of ranges of whole nodes, each of twice as many as the next. Of
        one node, where it is paid whole, any.
        """
        found, nodes = [], self._most_nodes(pool)
        while nodes > 1:
            found.append(((nodes // 2 + 1) * pool.node, nodes * pool.node))
            nodes //= 2
        whole = int(self.record.price_per_second.sizes[pool.group]) == 1
        return [*found, (pool.node if whole else 1, pool.node)] if nodes else found

    def _search(self, asked: list[tuple[Pool, int, int]], done: Callable[[int], None]) -> None:
        begun = len(self.searched)
        each = max(len(asked), 1)
        tasks = [
            AloneSearch(
                pool=pool,
                choices=self.choices,
                seconds=self.seconds,
                stop=self.stops.grids[begun + number] if self.stops else None,
                memory=self.memory // each,
                effort=self.effort,
                devices=most,
                fewest=fewest if fewest < most else 0,
            )
            for number, (pool, fewest, most) in enumerate(asked)
        ]
        found = self.engine.map(pool_alone, tasks, shared=self.record.standing.problem, done=done)
        for (pool, fewest, most), answer in zip(asked, found, strict=True):
            self.record.grid = "" if isinstance(answer, float) else print_grid(answer.grid)
            one = Range(
                pool=pool,
                fewest=fewest,
                devices=most,
                found=placed(self.record.standing, pool, answer),
            )
            self.ranges.append(one)
            self.searched.append(one)

    def refine(
        self, target: Callable[[float], float], clock: Limit, say: Callable[[str], None]
    ) -> None:
        """Split ranges as long as some may hold a grid below the target of its time, and there are
        not too many.
        """
        while len(self.searched) < self.effort.pool_grid_ranges and not clock.passed():
            weak = [
                one
                for one in self.ranges
                if _parts(one) and self.least(one) < target(one.found.lower_bound_s)
            ]
            if not weak:
                return
            worst = min(weak, key=lambda one: self.least(one) / target(one.found.lower_bound_s))
            say(f"plan {worst.pool.name} alone on {worst.fewest} to {worst.devices} devices")
            self.ranges.remove(worst)
            self._search([(worst.pool, *part) for part in _parts(worst)], lambda _: None)

    def least(self, one: Range) -> float:
        """Units that a grid of a range takes at least; inf = none fits, or none is paid by the
        budget.
        """
        used = [0] * len(self.record.price_per_second.sizes)
        used[one.pool.group] = one.fewest
        return (
            self.record.price_per_second.rate(used) * one.found.lower_bound_s
            if one.found.lower_bound_s < inf
            else inf
        )

    def bound(self, *, by: float = inf) -> float:
        """Units that a grid that ends by some seconds takes at least."""
        return min(
            (self.least(one) for one in self.ranges if one.found.lower_bound_s <= by), default=inf
        )

    @property
    def lower_bound_s(self) -> float:
        """Seconds that no grid ends before; inf where none fits."""
        return min((one.found.lower_bound_s for one in self.ranges), default=inf)


def _parts(one: Range) -> list[tuple[int, int]]:
    """A range of several numbers of nodes in two."""
    node = one.pool.node
    low, high = -(-one.fewest // node), one.devices // node
    if low >= high:
        return []
    middle = (low + high) // 2
    return [(one.fewest, middle * node), ((middle + 1) * node, one.devices)]
