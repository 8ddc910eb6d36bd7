"""Search the parallelism grids of each pool of a mixed cluster alone.

These grids belong to the mixed space, and are the first plans to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite

from shardwright.errors import InfeasibleError, OutOfTimeError
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.hardware.scale_network_limit_devices_reserve_memory import limit_devices
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.strategy_rule_violations import facts_of
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.pinned_and_excluded_values import requested
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.mixed.plans.move_plan_to_pool_devices import move_to_pool
from shardwright.search.mixed.plans.plan_search_state import SearchState
from shardwright.search.mixed.search_effort_limits import USUAL, Effort
from shardwright.search.mixed.stages.device_pools import DevicePool, cluster_of_pool
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed_cluster_certificate import GIVEN_UP, PoolAlone
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import Answer
from shardwright.search.search_time_limit import Stops, out_of_time
from shardwright.search.universal_time_bound import universal_seconds
from shardwright.simulator.simulate_plan import plan_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """A pool with its best grid, if any grid fits.

    Args:
        answer: answer of the search; None = no grid was found.
        step_time_s: seconds of the grid's step, where its devices lie in the cluster; inf = the
            plan does not fit there, or there is no grid.
        lower_bound_s: lower bound in seconds on the step of every grid of the pool, inf = no grid
            fits.
        stopped_at: as of `mixed_cluster_certificate.PoolAlone`.
    """

    pool: DevicePool
    answer: Answer | None
    step_time_s: float
    lower_bound_s: float
    stopped_at: int = 0

    def for_certificate(self, worth_s: float | None) -> PoolAlone:
        """The entry of the pool in a certificate; `worth_s` = seconds one device more saves."""
        return PoolAlone(
            name=self.pool.name,
            devices=self.pool.devices,
            strategy=print_grid(self.answer.grid) if self.answer else "",
            step_time_s=self.step_time_s if isfinite(self.step_time_s) else None,
            lower_bound_s=self.lower_bound_s if isfinite(self.lower_bound_s) else None,
            stopped_at=self.stopped_at,
            worth_s=worth_s,
        )


GridAnswerCache = dict[tuple[NodeKind, int], Answer | float]
"""Results of grid searches by node kind and number of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolGridSearch:
    """A task: search the grids of one pool.

    Args:
        choices: pinned values.
        seconds: time limit.
        stop: see `search.search_time_limit.limit_of`, or `GIVEN_UP`.
        memory: bytes for the members of the space.
        devices: number of the pool's first devices to use; 0 = all devices.
        fewest: fewest devices that a grid uses; None = 1.
    """

    pool: DevicePool
    choices: PinnedValues
    seconds: float
    stop: int | None
    memory: int
    devices: int = 0
    fewest: int | None = None
    effort: Effort = USUAL


def search_each_pool(
    state: SearchState,
    pools: tuple[DevicePool, ...],
    engine: Engine,
    *,
    choices: PinnedValues,
    seconds: float,
    stops: Stops | None,
    memory: int,
    answer_cache: GridAnswerCache,
    effort: Effort,
    done: Callable[[int], None],
) -> list[PoolResult]:
    """Search the grids of each pool, and simulate the best one in the whole cluster.

    Args:
        seconds: time limit for all pools together.
        stops: stops of the search that is repeated.
        answer_cache: results of searches on other numbers of nodes; new results are added.
        done: called with the number of pools that are finished.
    """
    cluster = state.problem.cluster
    seconds_per_pool, memory_per_pool = seconds / len(pools), memory // len(pools)
    new = [
        (number, pool)
        for number, pool in enumerate(pools)
        if _cache_key(cluster, pool) not in answer_cache
    ]
    tasks = [
        PoolGridSearch(
            pool=pool,
            choices=choices,
            seconds=seconds_per_pool,
            stop=stops.grids[number] if stops else None,
            memory=memory_per_pool,
            effort=effort,
        )
        for number, pool in new
    ]
    # Forked processes share the loaded kernels.
    load_kernels()
    done(0)
    answers = engine.map(best_pool_grid, tasks, shared=state.problem, done=done)
    answer_cache |= {
        _cache_key(cluster, pool): answer for (_, pool), answer in zip(new, answers, strict=True)
    }
    return [
        simulate_in_cluster(state, pool, answer_cache[_cache_key(cluster, pool)]) for pool in pools
    ]


def _cache_key(cluster: Cluster, pool: DevicePool) -> tuple[NodeKind, int]:
    """Key of a pool in `GridAnswerCache`."""
    return cluster.groups[pool.group].kind, pool.devices


def pool_grid_space(problem: Problem, task: PoolGridSearch) -> tuple[Problem, Space, GridFacts]:
    """The problem of one pool alone, its grids in the mixed space, and facts for their rules."""
    cluster, devices = (
        cluster_of_pool(problem.cluster, task.pool),
        task.devices or task.pool.devices,
    )
    pool_problem = replace(
        problem, cluster=limit_devices(cluster, num_devices=devices) if task.devices else cluster
    )
    facts = replace(facts_of(problem), devices=devices)
    # From one device on, so that the grids of fewer nodes are among those of more nodes.
    space = replace(
        standard_space(pool_problem, facts), fewest=1 if task.fewest is None else task.fewest
    )
    choices = task.choices
    return (
        pool_problem,
        requested(
            space,
            pool_problem,
            said=choices.said,
            pins=dict(choices.pins),
            excludes=dict(choices.excludes),
        ),
        facts,
    )


def best_pool_grid(problem: Problem, task: PoolGridSearch) -> Answer | float:
    """Best grid of one pool; without one, a lower bound in seconds on a step (inf = no grid fits).

    Inf = no grid fits.
    """
    pool_problem, space, facts = pool_grid_space(problem, task)
    capacity = pool_problem.cluster.node.accelerator.memory_bytes
    try:
        if task.stop == GIVEN_UP:
            raise out_of_time()
        return find(
            pool_problem,
            space,
            facts,
            capacity=capacity,
            top=1,
            time_limit_s=task.seconds,
            most_looks=task.effort.pool_grid_clock_checks,
            stop_at=task.stop,
            memory=task.memory,
            hints=False,
        )
    except InfeasibleError:
        return inf
    except OutOfTimeError:
        return universal_seconds(pool_problem)


def simulate_in_cluster(state: SearchState, pool: DevicePool, answer: Answer | float) -> PoolResult:
    """Simulate a pool's best grid on its devices in the whole cluster; return the result."""
    if isinstance(answer, float):
        return PoolResult(
            pool=pool,
            answer=None,
            step_time_s=inf,
            lower_bound_s=answer,
            stopped_at=GIVEN_UP if isfinite(answer) else 0,
        )
    problem, certificate = state.problem, answer.certificate
    plan = move_to_pool(plan_of_grid(problem, answer.grid), problem, pool)
    seconds = state.simulate(plan, None)
    return PoolResult(
        pool=pool,
        answer=answer,
        step_time_s=seconds,
        lower_bound_s=certificate.lower_bound_s,
        stopped_at=certificate.stopped_at,
    )


def option_rows(singles: list[PoolResult], choices: PinnedValues) -> tuple[Options, ...]:
    """Distinct runtime options of the pools' best grids; the pinned options where no grid fits."""
    rows = [one.answer.grid.options for one in singles if one.answer is not None]
    return tuple(dict.fromkeys(rows)) or (in_vocabulary_order(choices.options),)
