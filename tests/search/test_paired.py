"""Orders that only general plans have: bounds hold for every member, the best is that of all of
them one by one, and none is lost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from shardwright.dtype import Dtype
from shardwright.program.training_problem import Problem
from shardwright.search.grid import search_overlapped_and_two_lane_schedules as overlapped_schedules
from shardwright.search.grid.bounds.member_price_tables import prepare
from shardwright.search.grid.bounds.preload_kernels_before_search import load_kernels
from shardwright.search.grid.find_best_grid import find
from shardwright.search.grid.members.enumerate_members import enumerate_members, member_grid
from shardwright.search.grid.members.grid_search_space import Space
from shardwright.search.grid.members.pinned_and_excluded_values import restricted
from shardwright.search.grid.members.standard_and_exhaustive_space import standard_space
from shardwright.search.grid.verify_certificate import recheck
from shardwright.search.search_time_limit import Limit
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.chunk_placement_by_schedule import grid_schedule
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.search.problems import facts_of, real_problem
from tests.tiers import in_both, in_proof

ORDERS = ("dualpipe", "dualpipe-v", "zb-h1", "zb-v", "v-min", "chimera")
CAPACITY = 80 * 2**30
FEW: dict[str, tuple[int | str, ...]] = {"pp": (4,), "mbs": (1,)}
"""Of a space whose members are simulated one by one, what is tested; a proof has more."""


def small(*, orders: tuple[str, ...], runtime: str, model: str = "deepseek-v2-lite") -> Problem:
    """DeepSeek-V2-Lite's layers, or another model's, on two nodes, under a runtime that has
    `orders`."""
    problem = real_problem(
        model, "h800-sxm:16", seq_len=2048, global_batch=96, runtime=runtime, precision="fp8"
    )
    return replace(problem, runtime=replace(problem.runtime, schedules=("1f1b", *orders)))


def narrow(problem: Problem) -> Space:
    """Few meshes: each order has some members, and some that it refuses."""
    space = standard_space(problem, facts_of(problem))
    only = {
        "tp": (1, 2),
        "cp": (1,),
        "pp": (2, 3, 4, 8),
        "ep": (1, 4),
        "mbs": (1, 2),
        "order": ("tp-cp-ep-dp-pp",),
        "ulysses": (1,),
    }
    return replace(
        space,
        values=tuple((axis, only.get(axis, values)) for axis, values in space.values),
        fewest=0,
    )


@in_both
@pytest.mark.parametrize(
    ("runtime", "model", "orders"),
    [
        ("deepseek-v3", "deepseek-v2-lite", ORDERS),
        pytest.param(
            "megatron-bridge dispatcher=alltoall",
            "deepseek-v2-lite",
            ORDERS,
            marks=pytest.mark.proof,
        ),
        ("torchtitan", "llama-3.2-1b", ("zb-v", "zb-h1", "v-min")),
    ],
)
def test_every_member_one_by_one(runtime: str, model: str, orders: tuple[str, ...]) -> None:
    problem = small(orders=orders, runtime=runtime, model=model)
    facts, space = facts_of(problem), narrow(problem)
    if not in_proof():
        few = FEW | ({"ep": (4,)} if model == "deepseek-v2-lite" else {})
        space = replace(
            space, values=tuple((axis, few.get(axis, values)) for axis, values in space.values)
        )
    assert space.paired == orders
    part = overlapped_schedules._overlapped_part(space)
    assert part is not None
    members = enumerate_members(problem, part, facts)
    prepared, counted = prepare(problem, members), overlapped_schedules.PairedSearch()
    fitting: dict[Grid, float] = {}
    looked, tight = 0, list[float]()
    for place in range(members.num_members):
        for name in orders:
            grid = replace(
                member_grid(members, place), schedule=name, vpp=grid_schedule(name).chunks
            )
            bound = overlapped_schedules._member_bound(
                problem, prepared, place, grid, facts, capacity=1e15, result=counted
            )
            if bound is None:
                continue
            looked += 1
            result = simulate_grid(problem, grid)
            assert bound <= result.step_time_s, grid
            tight.append(bound / result.step_time_s)
            if result.need <= CAPACITY:
                fitting[grid] = result.step_time_s
            rest = overlapped_schedules._member_bound(
                problem,
                prepared,
                place,
                grid,
                facts,
                capacity=result.need,
                result=overlapped_schedules.PairedSearch(),
            )
            assert rest is not None, grid
    # What is reduced behind the last action is in no bound, and is long here without ZeRO on two
    # nodes.
    assert sorted(tight)[len(tight) // 2] > 0.75
    assert looked + counted.illegal == members.num_members * len(orders)
    found = overlapped_schedules.search_paired(
        problem, space, facts, capacity=CAPACITY, top=3, until_s=float("inf"), limit=Limit()
    )
    assert found is not None
    assert [one.step_time_s for one in found.ranked] == sorted(fitting.values())[:3]
    assert fitting[found.ranked[0].grid] == found.ranked[0].step_time_s
    fates = found.illegal + found.infeasible + found.bounded_b0 + found.bounded_b1 + found.simulated
    assert found.enumerated == fates == members.num_members * len(orders)
    assert found.lower_bound_s >= found.ranked[-1].step_time_s


def test_an_answer_is_of_both_spaces_and_its_certificate_counts_both() -> None:
    load_kernels()
    problem = small(orders=("dualpipe", "dualpipe-v"), runtime="deepseek-v3")
    facts, space = facts_of(problem), narrow(problem)
    plain = replace(space, paired=())
    alone, both = (find(problem, one, facts, capacity=CAPACITY, top=2) for one in (plain, space))
    assert both.prediction.step_time_s <= alone.prediction.step_time_s
    assert both.certificate.optimal
    sums = [
        c.illegal + c.duplicates + c.infeasible + c.bounded_b0 + c.bounded_b1 + c.simulated
        for c in (alone.certificate, both.certificate)
    ]
    assert sums == [alone.certificate.enumerated, both.certificate.enumerated]
    assert sums[1] > sums[0]
    assert "dualpipe" in both.certificate.space
    assert problem.job.compute is Dtype.FP8


def test_where_there_are_none() -> None:
    problem = small(orders=("dualpipe",), runtime="deepseek-v3")
    space, facts = narrow(problem), facts_of(problem)
    for without in (
        replace(space, paired=()),
        replace(space, first=3),
        replace(
            space,
            values=tuple(
                (axis, ("full",) if axis == "recompute" else values)
                for axis, values in space.values
            ),
        ),
    ):
        assert (
            overlapped_schedules.search_paired(
                problem, without, facts, capacity=CAPACITY, top=1, until_s=1e9, limit=Limit()
            )
            is None
        )


def test_an_answer_with_such_an_order_is_checked_and_a_pinned_schedule_has_none() -> None:
    """What the search found holds when it is searched again; who pins 1F1B gets 1F1B."""
    problem = small(orders=("zb-v", "zb-h1"), runtime="torchtitan", model="llama-3.2-1b")
    facts = facts_of(problem)
    space = replace(
        narrow(problem),
        values=tuple((axis, FEW.get(axis, values)) for axis, values in narrow(problem).values),
    )
    answer = find(problem, space, facts, capacity=CAPACITY, top=2)
    assert grid_schedule(answer.grid.schedule).chunks == 2 or answer.grid.schedule == "zb-h1"
    assert (
        recheck(problem, space, facts, answer, capacity=CAPACITY, generator=Random(0)).drift < 1e-12
    )
    pinned = restricted(space, pins={"schedule": ("1f1b",)}, excludes={})
    assert find(problem, pinned, facts, capacity=CAPACITY, top=2).grid.schedule == "1f1b"
