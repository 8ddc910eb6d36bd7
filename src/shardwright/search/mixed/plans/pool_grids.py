"""The grids of each pool of a mixed cluster alone: they belong to the space, and are the first
plans to compare with.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite

from shardwright.errors import InfeasibleError, OutOfTimeError
from shardwright.hardware.changed_cluster import limit_devices
from shardwright.hardware.cluster import Cluster, NodeKind
from shardwright.lazy_dataclass import dataclass
from shardwright.program.problem import Problem
from shardwright.program.rule_violations import facts_of
from shardwright.search.grid.bounds.load_kernels import load_kernels
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.declared_space import Space, requested, standard_space
from shardwright.search.mixed.effort import USUAL, Effort
from shardwright.search.mixed.plans.simulated_plans import Standing
from shardwright.search.mixed.plans.write_plan import moved
from shardwright.search.mixed.stages.device_pools import Pool, alone
from shardwright.search.mixed.stages.pinned_values import Choices
from shardwright.search.mixed_certificate import GIVEN_UP, PoolAlone
from shardwright.search.parallel.engine_protocol import Engine
from shardwright.search.search_answer import Answer
from shardwright.search.search_limit import Stops, out_of_time
from shardwright.search.universal_bound import universal_seconds
from shardwright.simulator.plan_simulation import plan_of_grid
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.text.grid_notation import print_grid


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    """A pool with its best grid, if any fits.

    Args:
        step_time_s: of it, where its devices lie in the cluster; inf = it does not fit there, or
            there is none.
        lower_bound_s: of all its grids, inf = none fits.
        stopped_at: as of `frames.PoolAlone`.
    """

    pool: Pool
    answer: Answer | None
    step_time_s: float
    lower_bound_s: float
    stopped_at: int = 0

    def for_certificate(self, worth_s: float | None) -> PoolAlone:
        """The record of the pool in a certificate."""
        return PoolAlone(
            name=self.pool.name,
            devices=self.pool.devices,
            strategy=print_grid(self.answer.grid) if self.answer else "",
            step_time_s=self.step_time_s if isfinite(self.step_time_s) else None,
            lower_bound_s=self.lower_bound_s if isfinite(self.lower_bound_s) else None,
            stopped_at=self.stopped_at,
            worth_s=worth_s,
        )


Known = dict[tuple[NodeKind, int], Answer | float]
"""What was found by the kind of the pool's nodes and its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AloneSearch:
    """A pool whose grids are to be searched.

    Args:
        choices: what is pinned.
        seconds: at most.
        stop: see `search.limit.limit_of`, or `GIVEN_UP`.
        memory: bytes for members.
        devices: how many of the pool, of its first nodes; 0 = all.
        fewest: that a grid uses at least; None = as the standard space.
    """

    pool: Pool
    choices: Choices
    seconds: float
    stop: int | None
    memory: int
    devices: int = 0
    fewest: int | None = None
    effort: Effort = USUAL


def search_each_pool(
    standing: Standing,
    pools: tuple[Pool, ...],
    engine: Engine,
    *,
    choices: Choices,
    seconds: float,
    stops: Stops | None,
    memory: int,
    known: Known,
    effort: Effort,
    done: Callable[[int], None],
) -> list[PoolResult]:
    """The best grid of each pool's devices, simulated where they lie in the cluster.

    Args:
        seconds: for all pools.
        stops: of a search that is repeated.
        known: of a search on other numbers of nodes; what is found is added.
        done: called with how many pools are.
    """
    cluster = standing.problem.cluster
    each, room = seconds / len(pools), memory // len(pools)
    new = [(number, pool) for number, pool in enumerate(pools) if _key(cluster, pool) not in known]
    tasks = [
        AloneSearch(
            pool=pool,
            choices=choices,
            seconds=each,
            stop=stops.grids[number] if stops else None,
            memory=room,
            effort=effort,
        )
        for number, pool in new
    ]
    # Processes that are forked share what is loaded.
    load_kernels()
    done(0)
    found = engine.map(pool_alone, tasks, shared=standing.problem, done=done)
    known |= {_key(cluster, pool): answer for (_, pool), answer in zip(new, found, strict=True)}
    return [placed(standing, pool, known[_key(cluster, pool)]) for pool in pools]


def _key(cluster: Cluster, pool: Pool) -> tuple[NodeKind, int]:
    return cluster.groups[pool.group].kind, pool.devices


def space_alone(problem: Problem, task: AloneSearch) -> tuple[Problem, Space, GridFacts]:
    """The problem of one pool's devices alone, the grids of it that belong to a mixed space, and
    what their rules need to know.
    """
    cluster, devices = alone(problem.cluster, task.pool), task.devices or task.pool.devices
    own = replace(
        problem, cluster=limit_devices(cluster, num_devices=devices) if task.devices else cluster
    )
    facts = replace(facts_of(problem), devices=devices)
    # From one device on unless said, so that the grids of fewer nodes are among those of more.
    nested = replace(standard_space(own, facts), fewest=1 if task.fewest is None else task.fewest)
    choices = task.choices
    return (
        own,
        requested(
            nested, own, said=choices.said, pins=dict(choices.pins), excludes=dict(choices.excludes)
        ),
        facts,
    )


def pool_alone(problem: Problem, task: AloneSearch) -> Answer | float:
    """The best grid of one pool's devices; where there is none the seconds that none is under, inf
    = nothing fits.
    """
    own, space, facts = space_alone(problem, task)
    capacity = own.cluster.node.accelerator.memory_bytes
    try:
        if task.stop == GIVEN_UP:
            raise out_of_time()
        return find(
            own,
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
        return universal_seconds(own)


def placed(standing: Standing, pool: Pool, answer: Answer | float) -> PoolResult:
    """The result of a pool's grids, the best one simulated where its devices lie in the cluster."""
    if isinstance(answer, float):
        return PoolResult(
            pool=pool,
            answer=None,
            step_time_s=inf,
            lower_bound_s=answer,
            stopped_at=GIVEN_UP if isfinite(answer) else 0,
        )
    problem, found = standing.problem, answer.certificate
    plan = moved(plan_of_grid(problem, answer.grid), problem, pool)
    seconds = standing.attempt(plan, None)
    return PoolResult(
        pool=pool,
        answer=answer,
        step_time_s=seconds,
        lower_bound_s=found.lower_bound_s,
        stopped_at=found.stopped_at,
    )
