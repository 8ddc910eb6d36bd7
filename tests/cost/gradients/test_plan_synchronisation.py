"""Parameters that more devices sum than the matrices beside them: whose bucket they are in, and
what is summed beyond it."""

from __future__ import annotations

import random
from math import prod

import pytest

from shardwright.cost.gradients.reduction_groups_of_plan_gradient_buckets import (
    corresponding_members,
    placed_in_buckets,
)
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.stages.held_parameters import Holdings, plan_holdings
from shardwright.program.zero_sharding import shard_rules
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.plan import Cadence
from shardwright.strategy.text.parse_plan import parse_plan
from tests.program.small import cluster_of, problem_of
from tests.strategies import dense_model
from tests.tiers import in_both, many, random_of


def parts_of(draw: random.Random) -> tuple[tuple[int, ...], list[tuple[int, ...]], bool]:
    """Devices of a mesh of three axes, its parts along one or two of them, and whether the axes
    between parts are neighbours."""
    sizes = [draw.choice((1, 2, 3, 4)) for _ in range(3)]
    inside = draw.sample(range(3), draw.choice((1, 2)))
    stride = [prod(sizes[:axis]) for axis in range(3)]
    base, step = draw.choice((0, 5)), draw.choice((1, 3))
    parts: dict[tuple[int, ...], list[int]] = {}
    for number in range(prod(sizes)):
        place = [number // stride[axis] % sizes[axis] for axis in range(3)]
        parts.setdefault(tuple(p for axis, p in enumerate(place) if axis not in inside), []).append(
            base + step * number
        )
    between = [axis for axis in range(3) if axis not in inside and sizes[axis] > 1]
    single = len(between) < 2 or not any(
        sizes[axis] > 1 for axis in range(between[0] + 1, between[-1])
    )
    return (
        tuple(base + step * number for number in range(prod(sizes))),
        [tuple(part) for part in parts.values()],
        single,
    )


@in_both
def test_members_across_are_one_of_each_part() -> None:
    draw, meshes = random_of("corresponding_members"), 0
    for _ in range(many(300)):
        group, parts, single = parts_of(draw)
        part = draw.choice(parts)
        found = corresponding_members(DeviceList.of(group), DeviceList.of(part))
        assert found or not single, (group, part)
        if found:
            assert part[0] in found
            assert sorted(sum(d in other for d in found) for other in parts) == [1] * len(parts), (
                group,
                part,
                found,
            )
            meshes += len(parts) > 1
            each = [
                tuple(
                    corresponding_members(DeviceList.of(group), DeviceList.of(part), device=device)
                )
                for device in part
            ]
            assert each[0] == tuple(found)
            assert all(device in members for device, members in zip(part, each, strict=True))
            assert sorted(device for members in each for device in members) == list(group)
    assert meshes > 100


def test_parts_that_are_no_mesh_have_none_across() -> None:
    assert not corresponding_members(DeviceList.run(0, 3), DeviceList.run(0, 2))
    assert not corresponding_members(DeviceList.run(0, 6), DeviceList.of((0, 1, 3)))
    assert not corresponding_members(DeviceList.run(0, 6), DeviceList.of((3, 6, 9))), (
        "some of the part is not of the group"
    )


def holdings_of(grid: Grid) -> tuple[Holdings, int]:
    """Of a small dense model, with the layers of its middle segment."""
    problem = problem_of(dense_model(layers=6), cluster_of(grid.devices, node=2), global_batch=8)
    stages = simulate_grid(problem, grid).program.stages
    layers = stages[0][0].segments[1].count
    return plan_holdings(
        stages,
        model=problem.model,
        length=problem.job.sequence_length,
        islands=equal_units((2,))[0],
    ), layers


@pytest.mark.parametrize("dp", [1, 4])
def test_gains_are_in_the_matrices_bucket_and_summed_over_tp_once(dp: int) -> None:
    holdings, layers = holdings_of(Grid(tp=2, sp=True, dp=dp))
    held = [holdings[0, 0, segment, 0] for segment in range(3)]
    matrices = DeviceList.mesh(0, ((dp, 2),))
    gains = [h for h in held[1] if len(h.group) == 2 * dp]
    assert gains
    assert all(h.group == matrices for h in held[1] if h not in gains)
    placed, beyond = placed_in_buckets(held, layers=(1, layers, 1))
    assert (
        {h.group for items in placed for h in items}
        == {h.near for items in placed for h in items}
        == {matrices}
    )
    elements = [sum(h.elements * h.layers for h in items) for items in held]
    assert [sum(h.elements * h.layers for h in items) for items in placed] == elements
    (middle,) = (one for one in beyond if one.segment == 1)
    assert tuple(middle.members) == (0, 1)
    assert middle.elements * layers == sum(h.elements * h.layers for h in gains)
    assert (
        sum(one.elements * count for one, count in zip(beyond, (layers, 1), strict=True))
        == middle.total
    )


def test_without_copies_all_stays() -> None:
    holdings, layers = holdings_of(Grid(dp=4))
    held = [holdings[0, 0, segment, 0] for segment in range(3)]
    assert placed_in_buckets(held, layers=(1, layers, 1)) == (held, [])


def test_a_cut_base_says_the_stage_and_its_adapters_where_states_are() -> None:
    """A frozen base has nothing but its last degree; what is trained beside it has the optimizer's
    states."""
    text = "zero base: 1/1/all gather=use\nzero lora: all/1/1 host=opt:50 reduce=microbatch\n"
    body = "lane main samples 8 in 2\n  stages embed+2+head on 0\n    all = b4\norder 1f1b(main)\n"
    (rule,) = shard_rules(parse_plan(f"plan small devices 4\n{text}{body}")).lanes
    assert (rule.zero, rule.offload, rule.gather, rule.reduce) == (
        3,
        50,
        Cadence.USE,
        Cadence.MICROBATCH,
    )
    assert (rule.degrees[ParameterClass.BASE], rule.degrees[ParameterClass.LORA]) == (
        (1, 1, 0),
        (0, 1, 1),
    )
