"""Search the grids of a pool by ranges of node counts, for cost and energy goals.

Fewer nodes take longer and cost less a second. A grid that uses `fewest` to `devices` devices ends
no sooner than the bound of all of them, and pays for at least `fewest` devices; so it costs at
least their product. Ranges whose product is below the value to prove are split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from math import inf, isfinite

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    PoolGridSearch,
    PoolResult,
    best_pool_grid,
    simulate_in_cluster,
)
from shardwright.search.mixed.plans.low_cost_plans import PlanRecord
from shardwright.search.mixed.search_effort_limits import Effort
from shardwright.search.mixed.stages.device_pools import DevicePool
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed_cluster_certificate import PoolAlone
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_time_limit import Limit, Stops
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRange:
    """Grids that use a range of numbers of a pool's devices.

    Args:
        fewest, devices: fewest and most devices of a grid.
        found: the best grid and the bound of all grids.
    """

    pool: DevicePool
    fewest: int
    devices: int
    found: PoolResult

    def text(self) -> str:
        """Describe the devices in words, such as ``9 to 16 h100-sxm``."""
        low = f"{self.fewest:,} to " if self.fewest < self.devices else ""
        return f"{low}{self.devices:,} {self.pool.name}"

    @property
    def for_certificate(self) -> PoolAlone:
        """The entry of the range in a certificate."""
        return replace(self.found.for_certificate(None), devices=self.devices, fewest=self.fewest)


@dataclass(slots=True)
class PoolGrids:
    """Grids of all pools, as ranges of device counts with their search results.

    Args:
        ranges: ranges that cover the space.
        searched: all ranges that were searched, in order.
        seconds, memory: time limit and bytes of the search of one range.
    """

    record: PlanRecord
    engine: Engine
    choices: PinnedValues
    seconds: float
    memory: int
    stops: Stops | None
    effort: Effort
    ranges: list[DeviceRange] = field(default_factory=list)
    searched: list[DeviceRange] = field(default_factory=list)

    def search_halves(self, pools: tuple[DevicePool, ...], done: Callable[[int], None]) -> None:
        """Search each pool's grids on half to all of its nodes, a quarter to half, and so on."""
        asked = [(pool, fewest, most) for pool in pools for fewest, most in self._halves(pool)]
        load_kernels()
        done(0)
        self._search(asked, done)

    def _most_nodes(self, pool: DevicePool) -> int:
        """Most nodes of a pool that the budget pays for; all of them without a budget."""
        price = self.record.state.problem.cluster.groups[pool.group].price * pool.node
        return (
            pool.nodes
            if not isfinite(self.record.budget)
            else min(pool.nodes, int(self.record.budget / price * (1 + 1e-12)))
        )

    def _halves(self, pool: DevicePool) -> list[tuple[int, int]]:
        """(fewest, most) devices of ranges of whole nodes: half to all, quarter to half, and so on.

        The last range is one node; it begins at one device where nodes are paid whole.
        """
        found, nodes = [], self._most_nodes(pool)
        while nodes > 1:
            found.append(((nodes // 2 + 1) * pool.node, nodes * pool.node))
            nodes //= 2
        whole = int(self.record.price_per_second.sizes[pool.group]) == 1
        return [*found, (pool.node if whole else 1, pool.node)] if nodes else found

    def _search(
        self, device_ranges: list[tuple[DevicePool, int, int]], done: Callable[[int], None]
    ) -> None:
        """Search the grids of some device ranges on the engine, and keep their results."""
        begun = len(self.searched)
        each = max(len(device_ranges), 1)
        tasks = [
            PoolGridSearch(
                pool=pool,
                choices=self.choices,
                seconds=self.seconds,
                stop=self.stops.grids[begun + number] if self.stops else None,
                memory=self.memory // each,
                effort=self.effort,
                devices=most,
                fewest=fewest if fewest < most else 0,
            )
            for number, (pool, fewest, most) in enumerate(device_ranges)
        ]
        answers = self.engine.map(
            best_pool_grid, tasks, shared=self.record.state.problem, done=done
        )
        for (pool, fewest, most), answer in zip(device_ranges, answers, strict=True):
            self.record.grid = "" if isinstance(answer, float) else print_grid(answer.grid)
            device_range = DeviceRange(
                pool=pool,
                fewest=fewest,
                devices=most,
                found=simulate_in_cluster(self.record.state, pool, answer),
            )
            self.ranges.append(device_range)
            self.searched.append(device_range)

    def split_weak_device_ranges(
        self, target: Callable[[float], float], clock: Limit, say: Callable[[str], None]
    ) -> None:
        """Split and search anew weak ranges of device counts until all reach `target` or time ends.

        Args:
            target: value to prove for plans that end by a time in seconds.
        """
        while len(self.searched) < self.effort.pool_grid_ranges and not clock.passed():
            weak = [
                device_range
                for device_range in self.ranges
                if _split_range(device_range)
                and self.least_value(device_range) < target(device_range.found.lower_bound_s)
            ]
            if not weak:
                return
            worst = min(
                weak,
                key=lambda device_range: (
                    self.least_value(device_range) / target(device_range.found.lower_bound_s)
                ),
            )
            say(f"plan {worst.pool.name} alone on {worst.fewest} to {worst.devices} devices")
            self.ranges.remove(worst)
            self._search([(worst.pool, *part) for part in _split_range(worst)], lambda _: None)

    def least_value(self, device_range: DeviceRange) -> float:
        """Lower bound in dollars or joules a step on a range's grids; inf = no grid fits."""
        used = [0] * len(self.record.price_per_second.sizes)
        used[device_range.pool.group] = device_range.fewest
        return (
            self.record.price_per_second.rate(used) * device_range.found.lower_bound_s
            if device_range.found.lower_bound_s < inf
            else inf
        )

    def value_bound(self, *, limit_s: float = inf) -> float:
        """Lower bound in dollars or joules a step on grids that end by `limit_s`; inf = no grid."""
        return min(
            (
                self.least_value(device_range)
                for device_range in self.ranges
                if device_range.found.lower_bound_s <= limit_s
            ),
            default=inf,
        )

    @property
    def lower_bound_s(self) -> float:
        """Lower bound in seconds on the step of every grid; inf where no grid fits."""
        return min((one.found.lower_bound_s for one in self.ranges), default=inf)


def _split_range(device_range: DeviceRange) -> list[tuple[int, int]]:
    """(fewest, most) devices of both halves of a range, cut between nodes; [] for a single node."""
    node = device_range.pool.node
    low, high = -(-device_range.fewest // node), device_range.devices // node
    if low >= high:
        return []
    middle = (low + high) // 2
    return [(device_range.fewest, middle * node), ((middle + 1) * node, device_range.devices)]
