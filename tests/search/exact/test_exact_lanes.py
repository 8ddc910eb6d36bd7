"""The exact space of several lanes against brute force, and what it promises beside the best plan.

300 instances are a proof (about ten minutes on one core).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shardwright.errors import InfeasibleError
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.ir.tensor_dims import Dim
from shardwright.search.exact.enumerate_forward_backward_orders import pipeline_orders
from shardwright.search.exact.enumerate_lane_distributions import (
    lane_distributions,
    num_members,
)
from shardwright.search.exact.enumerate_tensor_split_trees import TreeSpace
from shardwright.search.exact.exact_space import ExactSpace
from shardwright.search.exact.find_exact import find_exact
from shardwright.search.exact.find_exact_multi_lane import plan_of_lanes, rooms
from shardwright.search.exact.lane_shapes_without_order_and_bounds import LanePrices
from shardwright.search.exact.stage_of_block_range import chain_blocks
from shardwright.search.search_time_limit import Stops
from shardwright.simulator.simulate_plan import lower, simulate_plan
from shardwright.strategy.plan.plan import ALL, Shards
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from shardwright.units import PICOSECONDS_PER_SECOND
from tests.search.exact.brute_exact import cluster_of
from tests.search.exact.brute_lanes import LanesInstance, draw_lanes, simulate_all
from tests.search.exact.test_exact_space import accounted, small_problem
from tests.search.small_mixed import with_one_card
from tests.tiers import in_both, in_proof, many, numbers, random_of, seeds

SINGLE = TreeSpace(dims=(), weights=(1,), depth=0)
"""Every stage is one device."""


@pytest.mark.parametrize("number", seeds(1, 300, first=18))
def test_equals_brute_force(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    equals_brute_force(draw_lanes(number, least=many(20, 30), most=many(80, 150)), number, capsys)


@pytest.mark.parametrize("number", seeds(1, 100, first=40))
def test_equals_brute_force_where_devices_share_a_card(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lane alone in its node has the card; beside another one it has a part of it."""
    instance = draw_lanes(number, least=many(20, 30), most=many(80, 150))
    equals_brute_force(replace(instance, problem=with_one_card(instance.problem)), number, capsys)


@in_both
def test_nobody_waits_for_the_slower_of_two_copies(capsys: pytest.CaptureFixture[str]) -> None:
    """The head on two devices that both compute all of it: the layers' backward follows the faster
    one. Outside a proof of a chain of two stages, cut by heads alone."""
    instance = draw_lanes(685305, least=30, most=150)
    space = instance.space
    if not in_proof():
        space = replace(space, max_stages=2, trees=replace(space.trees, dims=(Dim.HEADS,)))
    equals_brute_force(replace(instance, space=space), 685305, capsys)


def equals_brute_force(
    instance: LanesInstance, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulate_all(instance)
    try:
        answer = find_exact(instance.problem, instance.space)
    except InfeasibleError:
        assert found.best is None
        return
    certificate = answer.certificate
    assert answer.step_time_s == found.best
    assert simulate_plan(instance.problem, answer.plan).step_time_s == answer.step_time_s
    assert accounted(certificate) == certificate.enumerated == found.members
    assert certificate.illegal <= found.illegal <= certificate.illegal + certificate.duplicates
    assert certificate.infeasible <= found.too_large
    assert certificate.lower_bound_s == certificate.best_s == found.best
    line = (
        f"{number}: {instance.problem.cluster.expression}, {found.members} members, best of"
        f" {found.lanes} lanes"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{line}; the search simulates {certificate.simulated}")


@in_both
def test_bounds_of_shapes_are_below_the_paths_of_all_orders_and_those_below_the_steps() -> None:
    """Random shapes of random deals; with states sharded over all lanes too."""
    looked = 0
    for number in numbers(3, 30):
        instance = draw_lanes(number)
        shards = (Shards(optimizer=ALL),) if number % 2 else ()
        problem, space, generator = (
            instance.problem,
            replace(instance.space, shards=shards),
            random_of(number),
        )
        prices = LanePrices(problem=problem, space=space, blocks=instance.blocks)
        every = list(lane_distributions(problem, space))
        for deal in generator.sample(every, min(4, len(every))):
            lanes = [
                prices.of(d, microbatches=k.microbatches, samples=deal.samples)
                for k, d in zip(deal.kinds, deal.devices, strict=True)
            ]
            if not all(len(lane.bounds) for lane in lanes):
                continue
            chosen = [generator.randrange(len(lane.bounds)) for lane in lanes]
            shapes = tuple(lane.shape(n) for lane, n in zip(lanes, chosen, strict=True))
            orders = [
                generator.choice(list(pipeline_orders(len(s.options), s.microbatches)[0]))
                for s in shapes
            ]
            wide = np.full((sum(map(len, orders)), max(o.shape[1] for o in orders)), -1)
            for place, row in enumerate(row for order in orders for row in order):
                wide[place, : len(row)] = row
            plan = plan_of_lanes(problem, space, shapes, samples=deal.samples, order=wide)
            done = simulate_plan(problem, plan)
            bound = max(int(lane.bounds[n]) for lane, n in zip(lanes, chosen, strict=True))
            assert bound <= done.timeline.seconds * PICOSECONDS_PER_SECOND + 2
            looked += 1
    assert looked > 10


def test_a_stage_has_room_for_as_many_microbatches_as_its_peak_says() -> None:
    """Of plans of one or two lanes on devices of less and less memory."""
    for memory, fits in ((1.0, True), (0.02, False)):
        problem = small_problem("a100-sxm-80gb:2+v100-sxm-32gb:2", memory=memory, batch=4)
        space = ExactSpace(trees=SINGLE, microbatches=(2,), lanes=2)
        prices = LanePrices(problem=problem, space=space, blocks=3)
        lanes = tuple(
            prices.of(d, microbatches=2, samples=1).shape(0) for d in (((0,), (2,)), ((1,), (3,)))
        )
        plan = plan_of_lanes(problem, space, lanes, samples=1)
        found = rooms(problem, *lower(problem, plan))
        assert (found > 0).all() == fits


def test_unequal_shares_win_on_unlike_devices() -> None:
    """A device of twice the speed takes two microbatches of three."""
    problem = small_problem(batch=24)
    problem = replace(problem, cluster=cluster_of("h100-sxm:1+a100-sxm-80gb:1", network=8.0))
    answer = find_exact(problem, ExactSpace(trees=SINGLE, microbatches=(1, 2), lanes=2))
    assert sorted((lane.samples, lane.microbatches) for lane in answer.plan.lanes) == [
        (8, 1),
        (16, 2),
    ]
    assert not verify(answer.plan, model=problem.model, global_batch=24, seq_len=2048)
    assert parse_plan(print_plan(answer.plan)) == answer.plan


@in_both
def test_more_lanes_are_no_slower_and_zones_that_are_far_apart_are_left_alone() -> None:
    near, far = (
        replace(
            small_problem(batch=many(4, 12)),
            cluster=parse_cluster(
                f"a100-sxm-80gb:2@east+a100-sxm-80gb:{many(1, 2)}@west,east~west={link}"
            ),
        )
        for link in ("3200gbps/0.001ms", "1gbps/1000ms")
    )
    space = ExactSpace(trees=SINGLE, microbatches=(1, 2), max_stages=2)
    steps = [
        find_exact(near, replace(space, lanes=lanes)).step_time_s
        for lanes in range(1, 1 + many(2, 3))
    ]
    assert all(more <= fewer for fewer, more in pairwise(steps))
    answer = find_exact(far, replace(space, lanes=many(2, 3)))
    used = {
        device for lane in answer.plan.lanes for stage in lane.stages for device in (stage.base,)
    }
    assert used <= {0, 1} or used <= {2, 3}


@in_both
def test_time_limit_gives_a_plan_and_a_bound() -> None:
    problem = small_problem("h100-sxm:1+a100-sxm-80gb:1", batch=12)
    space = ExactSpace(
        trees=TreeSpace(dims=(Dim.BATCH,), weights=(1,), depth=1), microbatches=(1, 2), lanes=2
    )
    whole = find_exact(problem, space)
    for stop in range(1, 40, many(13, 3)):
        cut = find_exact(problem, space, stops=Stops(search=stop))
        assert (
            accounted(cut.certificate) == cut.certificate.enumerated == whole.certificate.enumerated
        )
        assert cut.certificate.lower_bound_s <= whole.step_time_s <= cut.step_time_s


def test_deals_by_hand() -> None:
    problem = small_problem("h100-sxm:2", batch=12)
    space = ExactSpace(trees=SINGLE, microbatches=(1, 2), lanes=3)
    # Two lanes of a device each, which nothing tells apart: 1 + 1, 1 + 2 and 2 + 2 microbatches.
    assert [
        (d.samples, [k.microbatches for k in d.kinds]) for d in lane_distributions(problem, space)
    ] == [
        (3, [2, 2]),
        (4, [2, 1]),
        (6, [1, 1]),
    ]
    # Of 2 + 2 any two of the two orders, of 2 + 1 either order.
    assert num_members(problem, space, blocks=chain_blocks(problem)) == 3 + 2 + 1
    unlike = small_problem("h100-sxm:1+a100-sxm-80gb:1", batch=12)
    assert num_members(unlike, space, blocks=chain_blocks(unlike)) == 4 + 2 + 2 + 1
