"""Folding is exact: one class for many ranks gives the times that every rank alone gives."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from shardwright.program.fold import RankClasses, fold, is_aligned, unfolded
from shardwright.simulator.evaluate import simulate_grid

from shardwright.cost.member import StepCosts, price_grid, step_costs
from shardwright.hardware.cluster import FabricTier
from shardwright.model.graph import Model
from shardwright.program.instances import TaskKind
from shardwright.program.problem import Problem
from shardwright.simulator.breakdown import Simulated
from shardwright.strategy.grid import Grid
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.strategies import dense_model, expert_model

BLOCKS, EACH = 6, 90
DENSE, SPARSE = dense_model(layers=12), expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME, name="any", schedules=("gpipe", "1f1b", "interleaved-1f1b"), zero_stages=(0, 1, 2, 3), zero_with_pipeline=3, bucket_bytes=0
)
BLOCKING = replace(ANY, name="blocking", overlap_p2p=False)
PLAIN = replace(ANY, name="plain", overlap_grad_reduce=False, overlap_param_gather=False)


def fabric_of(draw: random.Random, *, node: int) -> tuple[FabricTier, ...]:
    if draw.random() < 0.4:
        return ()
    leaf = FabricTier(name="leaf", num_devices=draw.choice((2, 3)) * node, oversubscription=draw.choice((1.0, 2.0, 3.0)))
    spine = FabricTier(name="spine", num_devices=0, oversubscription=draw.choice((1.0, 4.0)), latency_s=draw.choice((0.0, 3e-6)))
    return (leaf, spine)


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    """A legal grid on nodes of 4, 8 or 12, half of the time one whose axes do not line up with them."""
    while True:
        experts = draw.random() < 0.4
        model: Model = SPARSE if experts else DENSE
        grid = random_grid(draw, experts=experts)
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        problem = problem_of(
            model,
            cluster_of(grid.devices, node=node, fabric=fabric_of(draw, node=node), accelerator=draw.choice(("h100-sxm", "a100-pcie-40gb"))),
            runtime=draw.choice((ANY, ANY, BLOCKING, PLAIN)),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 4, 6)),
            seq_len=draw.choice((256, 4096)),
        )
        if is_legal(problem, grid) and (draw.random() < 0.3 or not is_aligned(grid, problem.cluster.tiers())):
            return problem, grid


def finishes(simulated: Simulated, klass: int) -> list[tuple[int, int]]:
    """(kind of task, finish) of a class, in order of time."""
    program = simulated.program
    mine = program.instances.klass == klass
    kinds = program.columns.kind[program.instances.template[mine]]
    return sorted(zip(simulated.timeline.finish[mine].tolist(), kinds.tolist(), strict=True))


def both(problem: Problem, grid: Grid) -> tuple[Simulated, Simulated, RankClasses, StepCosts]:
    tiers = problem.cluster.tiers()
    costs = step_costs(problem, grid, price_grid(problem, grid))
    classes = fold(grid, tiers)
    folded = simulate_grid(problem, grid, costs=costs, classes=classes)
    return folded, simulate_grid(problem, grid, costs=costs, classes=unfolded(grid, tiers)), classes, costs


@pytest.mark.parametrize("block", range(BLOCKS))
def test_folded_equals_unfolded(block: int) -> None:
    draw = random.Random(block)
    shared = unaligned = smaller = 0
    for _ in range(EACH):
        problem, grid = drawn(draw)
        folded, every, classes, _ = both(problem, grid)
        assert folded.step_time_s == pytest.approx(every.step_time_s, rel=1e-12), grid
        assert int(classes.size.sum()) == grid.devices
        for klass in range(len(classes)):
            alone = finishes(every, int(classes.device[klass]))
            assert finishes(folded, klass) == alone, (grid, klass)
        # What makes the comparison worth something: links are shared, nodes cut replicas, and classes hold several ranks.
        sends = np.isin(every.program.columns.kind[every.program.instances.template], (TaskKind.SEND_F, TaskKind.SEND_B))
        spent = every.timeline.finish - every.timeline.start
        shared += bool((spent[sends] > every.timeline.work[sends]).any())
        unaligned += not is_aligned(grid, problem.cluster.tiers())
        smaller += len(classes) < grid.devices
    assert shared >= EACH // 10
    assert unaligned >= EACH // 2
    assert smaller >= EACH // 3


def test_every_rank_of_a_class_finishes_with_it() -> None:
    """Not only the lowest device: the unfolded times of all ranks of a class are the same."""
    draw = random.Random(77)
    for _ in range(20):
        problem, grid = drawn(draw)
        _, every, classes, _ = both(problem, grid)
        times = [tuple(finishes(every, rank)) for rank in range(grid.devices)]
        by_time: dict[tuple[tuple[int, int], ...], int] = {}
        for klass in range(len(classes)):
            alike = times[int(classes.device[klass])]
            by_time[alike] = by_time.get(alike, 0) + int(classes.size[klass])
        for alike, size in by_time.items():
            assert times.count(alike) == size, grid


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
    classes = fold(grid, cluster_of(grid.devices, node=node).tiers())
    assert classes.size.tolist() == sizes


def test_classes_are_an_equitable_partition() -> None:
    """Any two ranks of a class see the same class next in the pipeline, over the same tier, and as many of each class in their node."""
    draw = random.Random(5)
    for _ in range(200):
        problem, grid = drawn(draw)
        tiers = problem.cluster.tiers()
        classes = fold(grid, tiers)
        every = unfolded(grid, tiers)
        labels = labels_of(grid, classes, every)
        for klass in range(len(classes)):
            members = np.flatnonzero(labels == klass)
            assert len(members) == classes.size[klass]
            assert set(labels[every.following[members]].tolist()) == {int(classes.following[klass])}
            assert set(labels[every.preceding[members]].tolist()) == {int(classes.preceding[klass])}
            assert set(every.following_tier[members].tolist()) == {int(classes.following_tier[klass])}
            for rank in members.tolist():
                assert {int(labels[p]) for p in every.peers[rank]} == set(classes.peers[klass])
                assert {int(labels[h]) for h in every.holders[rank]} == set(classes.holders[klass])
                for index, tier in enumerate(tiers):
                    unit = np.flatnonzero(np.arange(grid.devices) // tier.num_devices == rank // tier.num_devices)
                    ranks, devices = classes.load[index, klass].tolist()
                    assert int((labels[unit] == klass).sum()) * devices == ranks * len(unit)


def labels_of(grid: Grid, classes: RankClasses, every: RankClasses) -> np.ndarray:
    """The class of every rank, by slow colour refinement over the unfolded ranks, numbered as `classes` are."""
    colour = [(int(s),) for s in every.stage]
    tiers = every.unit.shape[0]
    while True:
        seen = []
        for rank in range(grid.devices):
            units = tuple(
                tuple(sorted(colour[r] for r in range(grid.devices) if every.unit[t, r] == every.unit[t, rank])) for t in range(tiers)
            )
            seen.append(
                (
                    colour[rank],
                    colour[int(every.following[rank])],
                    colour[int(every.preceding[rank])],
                    int(every.following_tier[rank]),
                    int(every.preceding_tier[rank]),
                    tuple(sorted(colour[p] for p in every.peers[rank])),
                    tuple(sorted(colour[h] for h in every.holders[rank])),
                    units,
                )
            )
        names = {value: i for i, value in enumerate(sorted(set(seen)))}
        refined = [(names[value],) for value in seen]
        if len(set(refined)) == len(set(colour)):
            break
        colour = refined
    known = {colour[int(device)]: klass for klass, device in enumerate(classes.device)}
    assert len(known) == len(classes)
    assert set(known) == set(colour)
    return np.array([known[c] for c in colour])
