"""Folding is exact: one class for many ranks gives the times that every rank alone gives."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.hardware.cluster import FabricTier
from shardwright.hardware.device_partition_by_network_level import equal_units
from shardwright.model.ir.model_graph import Model
from shardwright.program.device_classes_with_equal_actions import class_numbers
from shardwright.program.stages.held_parameters import plan_holdings
from shardwright.program.stages.stage_segments import plan_stages
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.simulator.simulate_plan import (
    SimulatedPlan,
    plan_of_grid,
    simulate_grid,
    simulate_plan,
)
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.strategies import dense_model, expert_model
from tests.tiers import in_both, many, seeds

EACH = many(4, 90)
DENSE, SPARSE = dense_model(layers=12), expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME,
    name="any",
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    bucket_bytes=0,
)
BLOCKING = replace(ANY, name="blocking", overlap_p2p=False)
PLAIN = replace(ANY, name="plain", overlap_grad_reduce=False, overlap_param_gather=False)


def fabric_of(draw: random.Random, *, node: int) -> tuple[FabricTier, ...]:
    if draw.random() < 0.4:
        return ()
    leaf = FabricTier(
        name="leaf",
        num_devices=draw.choice((2, 3)) * node,
        oversubscription=draw.choice((1.0, 2.0, 3.0)),
    )
    spine = FabricTier(
        name="spine",
        num_devices=0,
        oversubscription=draw.choice((1.0, 4.0)),
        latency_s=draw.choice((0.0, 3e-6)),
    )
    return (leaf, spine)


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    """A legal grid on nodes of 4, 8 or 12, half of the time one whose axes do not line up with
    them."""
    while True:
        experts = draw.random() < 0.4
        model: Model = SPARSE if experts else DENSE
        grid = random_grid(draw, experts=experts)
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        problem = problem_of(
            model,
            cluster_of(
                grid.devices,
                node=node,
                fabric=fabric_of(draw, node=node),
                accelerator=draw.choice(("h100-sxm", "a100-pcie-40gb")),
            ),
            runtime=draw.choice((ANY, ANY, BLOCKING, PLAIN)),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 4, 6)),
            seq_len=draw.choice((256, 4096)),
        )
        if is_legal(problem, grid) and (draw.random() < 0.3 or not is_aligned(problem, grid)):
            return problem, grid


def is_aligned(problem: Problem, grid: Grid) -> bool:
    """Nodes cut no axis: a class a pipeline rank."""
    size = 1
    for axis in (a for a in grid.order if a in ("tp", "cp", "dp", "pp")):
        size *= getattr(grid, axis)
        if any(
            size % tier.num_devices and tier.num_devices % size for tier in problem.cluster.tiers()
        ):
            return False
    return True


def finishes(done: SimulatedPlan, klass: int) -> list[tuple[int, int]]:
    """(kind of task, finish) of a class, in order of time."""
    program = done.program
    mine = program.instances.klass == klass
    kinds = program.templates.kind[program.instances.template[mine]]
    return sorted(zip(done.timeline.finish[mine].tolist(), kinds.tolist(), strict=True))


def both(problem: Problem, grid: Grid) -> tuple[SimulatedPlan, SimulatedPlan]:
    return simulate_grid(problem, grid), simulate_plan(
        problem, plan_of_grid(problem, grid), unfolded=True
    )


@pytest.mark.parametrize("block", seeds(2, 24))
def test_folded_equals_unfolded(block: int) -> None:
    """Every device alone finishes every task when its class does, and holds as much."""
    draw = random.Random(block)
    shared = unaligned = smaller = 0
    for _ in range(EACH):
        problem, grid = drawn(draw)
        folded, every = both(problem, grid)
        classes = folded.program.classes
        assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12), grid
        assert sum(len(c.devices) for c in classes) == grid.devices == len(every.program.classes)
        number = class_numbers(every.program.classes)
        for klass, one in enumerate(classes):
            expected, items = finishes(folded, klass), folded.memory[klass].items
            for device in one.devices:
                assert finishes(every, int(number[device])) == expected, (grid, klass, device)
                assert every.memory[int(number[device])].items == items, (grid, klass, device)
        # What makes the comparison worth something: links are shared, nodes cut replicas, and
        # classes hold several ranks.
        sends = np.isin(
            every.program.templates.kind[every.program.instances.template],
            (TaskKind.SEND_F, TaskKind.SEND_B),
        )
        spent = every.timeline.finish - every.timeline.start
        shared += bool((spent[sends] > every.timeline.work[sends]).any())
        unaligned += not is_aligned(problem, grid)
        smaller += len(classes) < grid.devices
    assert shared >= EACH // 10
    assert unaligned >= EACH // 3
    assert smaller >= EACH // 3


def test_equal_tasks_on_a_link_end_together() -> None:
    """Sends and reductions of twelve devices under one leaf, whose rates change by a few in ten
    millions as others end."""
    fabric = (
        FabricTier(name="leaf", num_devices=12, oversubscription=3.0),
        FabricTier(name="spine", num_devices=0),
    )
    grid = Grid(
        cp=4,
        ulysses=2,
        gather=True,
        dp=8,
        pp=2,
        vpp=2,
        recompute=Recompute.SELECTIVE,
        schedule="interleaved-1f1b",
    )
    problem = problem_of(
        DENSE, cluster_of(64, node=4, fabric=fabric), runtime=ANY, global_batch=48, seq_len=4096
    )
    folded, every = both(problem, grid)
    number = class_numbers(every.program.classes)
    for klass, one in enumerate(folded.program.classes):
        for device in one.devices:
            assert finishes(every, int(number[device])) == finishes(folded, klass), (klass, device)


@pytest.mark.parametrize(
    ("grid", "node", "sizes"),
    [
        # Replicas of 12 devices on nodes of 8 alternate in where node borders fall.
        (Grid(tp=4, sp=True, pp=3, dp=4, order=("tp", "pp", "cp", "ep", "dp")), 8, [8] * 6),
        # The same with replicas that line up: a class a pipeline rank.
        (Grid(tp=4, sp=True, pp=4, dp=3, order=("tp", "pp", "cp", "ep", "dp")), 8, [12] * 4),
        (Grid(tp=4, sp=True, pp=3, dp=4), 8, [16] * 3),
        # One stage: all ranks are alike.
        (Grid(tp=8, sp=True, dp=2), 8, [16]),
        (Grid(cp=4, tp=2, sp=True, dp=2), 8, [16]),
        (Grid(tp=8, sp=True, pp=4, dp=2), 8, [16] * 4),
    ],
)
def test_number_of_classes(grid: Grid, node: int, sizes: list[int]) -> None:
    problem = problem_of(
        DENSE, cluster_of(grid.devices, node=node), runtime=ANY, global_batch=grid.dp * 4
    )
    assert [len(c.devices) for c in simulate_grid(problem, grid).program.classes] == sizes


@in_both
def test_classes_are_an_equitable_partition() -> None:
    """Any two devices of a class send as much to each class over as near a tier, sum with as many,
    and share uplinks with as many of each.

    Uplinks are those of the units between nodes and the whole: a node's devices have cards of their
    own.
    """
    draw = random.Random(5)
    for _ in range(many(12, 200)):
        problem, grid = drawn(draw)
        program = simulate_grid(problem, grid).program
        tiers, label = problem.cluster.tiers(), class_numbers(program.classes)
        assert sorted(d for c in program.classes for d in c.devices) == list(range(grid.devices))
        holdings = plan_holdings(
            plan_stages(program.plan, model=problem.model, unfolded=True),
            model=problem.model,
            length=problem.job.sequence_length,
            islands=equal_units((tiers[0].num_devices,))[0],
        )
        seen: dict[int, list[object]] = {device: [] for device in range(grid.devices)}
        for number, edge in enumerate(program.edges):
            for way, messages in (("forward", edge.forward), ("backward", edge.backward)):
                for source, target, elements in (
                    messages.sends + np.array([messages.base, messages.base, 0])
                ).tolist():
                    tier = next(
                        i
                        for i, t in enumerate(tiers)
                        if source // t.num_devices == target // t.num_devices
                    )
                    seen[source].append((number, way, "to", int(label[target]), tier, elements))
                    seen[target].append((number, way, "from", int(label[source]), tier, elements))
        for (lane, chunk, segment, device), items in holdings.items():
            for held in items:
                group = tuple(sorted(int(label[d]) for d in held.group))
                seen[device].append((lane, chunk, segment, held.klass.value, held.elements, group))
        for device in range(grid.devices):
            for tier in tiers[1:-1]:
                unit = np.flatnonzero(
                    np.arange(grid.devices) // tier.num_devices == device // tier.num_devices
                )
                seen[device].append(tuple(sorted(label[unit].tolist())))
        for one in program.classes:
            assert len({tuple(sorted(map(repr, seen[device]))) for device in one.devices}) == 1, (
                grid
            )
