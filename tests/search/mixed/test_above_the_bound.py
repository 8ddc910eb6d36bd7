"""Random members of the declared space of a mixed cluster against the certificate's bound:
pipelines over several pools with any recompute, and the grids of each pool alone.

Half of them are the most promising of several drawn: one that is chosen blindly is so much slower
than the bound that it says little.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import inf

import numpy as np
import pytest

from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.program.training_problem import Problem, under
from shardwright.search.grid.bounds.members_with_time_and_memory import Bounded, bound_space
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.grid.members.legal_degrees_and_axis_orders import full_meshes, idle_meshes
from shardwright.search.mixed.find_fastest import find_mixed
from shardwright.search.mixed.pipelines.price_subspaces_by_column_generation import PricedPipelines
from shardwright.search.mixed.plans.best_grid_on_each_pool_alone import (
    PoolGridSearch,
    pool_grid_space,
)
from shardwright.search.mixed.plans.mixed_plan_to_general_plan import (
    MixedLane,
    MixedPlan,
    general_plan,
)
from shardwright.search.mixed.plans.move_plan_to_pool_devices import move_to_pool
from shardwright.search.mixed.stages.device_pools import DevicePool, pools_of
from shardwright.search.mixed.stages.pinned_values import PinnedValues
from shardwright.search.mixed.stages.stage_cost_table import LAYER
from shardwright.search.mixed.stages.subspaces_and_stage_costs import MixedStageCosts
from shardwright.search.parallel.serial_engine import Serial
from shardwright.search.search_answer import GeneralAnswer
from shardwright.search.search_request import SEARCH_MEMORY
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.strategy.grid.grid_to_plan import FULL, plan_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy, Keep
from tests.search.mixed.members import CLUSTERS, mixed_problem, replicas_that_fit
from tests.search.small_mixed import drawn_mixed, with_one_card, zoned
from tests.tiers import many, random_of

BATCHES = (32, 48, 64)
CORE = "core"
DRAWN = 24
"""Members of which the most promising is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Members of one problem that fit, in seconds of a step over the certificate's bound.

    Args:
        pipelines: over pools.
        grids: of one pool.
        zones: of the cluster.
    """

    pipelines: list[float]
    grids: list[float]
    zones: int


def problem_of(number: int) -> Problem:
    """A dense model on one of the clusters, or on a smaller random one: also with its groups in
    zones, or with one card a node."""
    generator = random_of(f"members {number}")
    batch = generator.choice(BATCHES)
    which = number % (len(CLUSTERS) + 3)
    if which >= len(CLUSTERS):
        drawn = drawn_mixed(generator, most=16, layers=(4, 6, 8), batch=batch)
        return (drawn, zoned(drawn, generator), with_one_card(drawn))[which - len(CLUSTERS)]
    return replace(
        mixed_problem(generator, global_batch=batch), cluster=parse_cluster(CLUSTERS[which])
    )


def drawn_cut(layers: int, stages: int, generator: random.Random) -> tuple[int, ...]:
    """Layers of each stage, one at least: any, or as even as they can be."""
    if generator.random() < 0.5:
        return tuple(layers * (n + 1) // stages - layers * n // stages for n in range(stages))
    return tuple(
        b - a
        for a, b in pairwise((0, *sorted(generator.sample(range(1, layers), stages - 1)), layers))
    )


def drawn_member(pipelines: PricedPipelines, generator: random.Random) -> MixedPlan | None:
    """Up to three lanes of random shapes on random devices that share the batch; None where what
    was drawn does not do it."""
    table, shapes = pipelines.stage_costs.table, pipelines.shapes
    left, rest = np.array([pool.devices for pool in table.pools]), int(pipelines.batch)
    lanes: list[MixedLane] = []
    for more in reversed(range(generator.randint(1, 3))):
        room = np.minimum(replicas_that_fit(shapes, left), rest // shapes.mbs)
        fits = np.flatnonzero(room >= shapes.least)
        if generator.random() < 0.3 and shapes.sharded[fits].any():
            fits = fits[shapes.sharded[fits]]
        if not len(fits):
            return None
        shape = int(generator.choice(fits.tolist()))
        use, size, most = shapes.use[shape], int(shapes.mbs[shape]), int(room[shape])
        replicas = (
            most if generator.random() < 0.5 else generator.randint(int(shapes.least[shape]), most)
        )
        microbatches = (
            rest // (replicas * size)
            if not more
            else generator.randint(1, rest // (replicas * size))
        )
        runs = 2 if shapes.stages[shape, 1] else 1
        lanes.append(
            MixedLane(
                rows=tuple(shapes.rows[shape, :runs].tolist()),
                stages=tuple(shapes.stages[shape, :runs].tolist()),
                sizes=drawn_cut(table.layers, int(shapes.stages[shape].sum()), generator),
                replicas=replicas,
                microbatches=microbatches,
            )
        )
        left, rest = left - replicas * use, rest - replicas * microbatches * size
        if not rest:
            return MixedPlan(lanes=tuple(lanes))
    return None


def busiest_s(pipelines: PricedPipelines, plan: MixedPlan) -> float:
    """Seconds that the layers of some stage take at least."""
    each = pipelines.stage_costs.table.seconds[:, LAYER].sum(axis=1)
    pairs = (
        (lane, row, size)
        for lane in plan.lanes
        for row, size in zip(lane.stage_rows(), lane.sizes, strict=True)
    )
    return max(lane.microbatches * size * float(each[row]) for lane, row, size in pairs)


def with_any_recompute(plan: Plan, sizes: list[tuple[int, ...]], generator: random.Random) -> Plan:
    """The plan whose stages recompute any number of their first layers in full and of the next ones
    selectively."""

    def keeps(layers: int) -> tuple[Keep, ...]:
        full = generator.randint(0, layers)
        ends = accumulate((0, full, generator.randint(0, layers - full)))
        ranges = zip(pairwise(ends), (FULL, CORE), strict=True)
        return tuple(
            Keep(blocks=(a, b - 1), how=ActivationPolicy.RECOMPUTE, operators=(what,))
            for (a, b), what in ranges
            if a < b
        )

    lanes = tuple(
        replace(
            lane,
            stages=tuple(
                replace(stage, keeps=keeps(layers))
                for stage, layers in zip(lane.stages, cut, strict=True)
            ),
        )
        for lane, cut in zip(plan.lanes, sizes, strict=True)
    )
    return replace(plan, lanes=lanes)


def pipelines(
    problem: Problem, answer: GeneralAnswer[MixedPlan | None], generator: random.Random
) -> Iterator[Plan]:
    """Random plans of pipelines under the options of the space, without end."""
    assert answer.certificate.mixed is not None
    rows = [closed.options for closed in answer.certificate.mixed.closed]
    pipeline_sets = [
        (options, PricedPipelines.of(MixedStageCosts.of(under(problem, options))))
        for options in rows
    ]
    while True:
        options, pipelines = generator.choice(pipeline_sets)
        some = [
            plan
            for _ in range(generator.choice((1, DRAWN)))
            if (plan := drawn_member(pipelines, generator)) is not None
        ]
        if not some:
            continue
        drawn = min(some, key=lambda plan: busiest_s(pipelines, plan))
        plan = general_plan(pipelines.stage_costs, drawn, options=options)
        yield (
            plan
            if generator.random() < 0.7
            else with_any_recompute(plan, [lane.sizes for lane in drawn.lanes], generator)
        )


def grids_of(problem: Problem, pool: DevicePool) -> list[Bounded]:
    """The grids of a pool alone with their own bounds: on all of its nodes and on fewer, under each
    set of options."""
    task = PoolGridSearch(
        pool=pool, choices=PinnedValues(), seconds=inf, stop=None, memory=SEARCH_MEMORY
    )
    own, space, facts = pool_grid_space(problem, task)
    capacity = own.cluster.node.accelerator.memory_bytes
    found = []
    for row in space.option_parts():
        for meshes in (full_meshes(row, facts), idle_meshes(row, facts)):
            found.append(
                bound_space(under(own, row.chosen), row, facts, capacity=capacity, meshes=meshes)
            )
    return [one for one in found if len(one.seconds)]


def grids(problem: Problem, generator: random.Random) -> Iterator[Plan]:
    """Random grids of random pools alone, where these lie in the cluster, without end."""
    pools = [(pool, grids_of(problem, pool)) for pool in pools_of(problem.cluster)]
    while True:
        pool, parts = generator.choice(pools)
        part = generator.choice(parts)
        some = [generator.randrange(len(part.seconds)) for _ in range(generator.choice((1, DRAWN)))]
        grid = member_grid(part.members, min(some, key=lambda place: float(part.seconds[place])))
        yield move_to_pool(
            plan_of(grid, model=problem.model, global_batch=problem.job.global_batch), problem, pool
        )


def simulated(number: int, *, each: int) -> Simulated:
    """Seconds over the bound of `each` random pipelines, and of half as many grids, that fit."""
    problem, generator = problem_of(number), random_of(f"plans {number}")
    try:
        answer = find_mixed(problem, engine=Serial())
    except InfeasibleError:
        return Simulated(pipelines=[], grids=[], zones=0)
    lower_s = answer.certificate.lower_bound_s

    def ratios(plans: Iterator[Plan], count: int) -> list[float]:
        steps = (simulate_plan(problem, next(plans)) for _ in range(count))
        return [done.step_time_s / lower_s for done in steps if done.fits]

    return Simulated(
        pipelines=ratios(pipelines(problem, answer, generator), each),
        grids=ratios(grids(problem, generator), each // 2),
        zones=len(problem.cluster.zones),
    )


def told(found: Simulated) -> str:
    """The least of each in a line."""
    some = (
        f"{len(each)} from {min(each):.4f}" if each else "none"
        for each in (found.pipelines, found.grids)
    )
    return "{} of pipelines, {} of grids".format(*some)


@pytest.mark.parametrize("number", [0, pytest.param(5, marks=pytest.mark.proof)])
def test_members_of_the_declared_space_simulate_above_the_bound(number: int) -> None:
    found = simulated(number, each=many(12, 30))
    assert len(found.pipelines) >= 5
    assert len(found.grids) >= 5
    assert min(found.pipelines + found.grids) >= 1.0


@pytest.mark.proof
def test_a_thousand_members_of_the_declared_space_simulate_above_the_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    every = Simulated(pipelines=[], grids=[], zones=0)
    zones, number = 0, 0
    while min(len(every.pipelines), len(every.grids)) < 1000:
        found = simulated(number, each=100)
        with capsys.disabled():
            sys.stdout.write(f"\n{number}: {found.zones} zones, {told(found)}")
        every.pipelines.extend(found.pipelines)
        every.grids.extend(found.grids)
        zones += len(found.pipelines) if found.zones > 1 else 0
        number += 1
    with capsys.disabled():
        sys.stdout.write(f"\nall: {told(every)}; {zones} pipelines of clusters with zones")
    assert zones >= 100
    assert min(every.pipelines + every.grids) >= 1.0
    # A bound of nothing would be below all of them, too.
    assert min(every.pipelines) <= 1.1
