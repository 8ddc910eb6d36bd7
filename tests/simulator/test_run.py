"""The Program on streams and links: order, exclusiveness, sharing, and what nothing shared would
take."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.bounds.longest_path import microbatches_of
from shardwright.hardware.cluster import FabricTier
from shardwright.program.task_kind_stream_and_dependency_arrays import Stream, TaskKind
from shardwright.program.training_problem import Problem
from shardwright.simulator.event_simulation_inputs import plan_kernel_tasks
from shardwright.simulator.kernel.event_kernel import SCALE
from shardwright.simulator.simulate_plan import (
    SimulatedPlan,
    plan_of_grid,
    simulate_grid,
    simulate_plan,
)
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.simulator.general import simulate_with
from tests.simulator.paths import longest_path, path_seconds_of
from tests.strategies import dense_model, expert_model
from tests.tiers import in_both, many, random_of

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
BESIDE = replace(ANY, name="beside", plain_p2p_blocks=False)


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    while True:
        experts = draw.random() < 0.4
        grid = random_grid(draw, experts=experts)
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        fabric = draw.choice(
            (
                (),
                (
                    FabricTier(name="leaf", num_devices=2 * node),
                    FabricTier(name="spine", num_devices=0, oversubscription=3.0),
                ),
            )
        )
        problem = problem_of(
            SPARSE if experts else DENSE,
            cluster_of(grid.devices, node=node, fabric=fabric),
            runtime=draw.choice((ANY, BLOCKING, BESIDE)),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 4, 6)),
            seq_len=4096,
        )
        if is_legal(problem, grid):
            return problem, grid


@in_both
def test_sends_hold_up_ranks_of_one_chunk_only() -> None:
    grids = [
        parse_grid(f"pp4 dp2 mbs1 {words}", devices=8)
        for words in ("schedule=1f1b", "vpp2 schedule=interleaved-1f1b")
    ]
    plain, interleaved = (
        [
            simulate_grid(
                problem_of(
                    dense_model(layers=16),
                    cluster_of(8, node=2),
                    runtime=runtime,
                    global_batch=16,
                    seq_len=4096,
                ),
                grid,
            ).step_time_s
            for runtime in (BESIDE, ANY, BLOCKING)
        ]
        for grid in grids
    )
    assert plain[0] < plain[1] == plain[2]
    assert interleaved[0] == interleaved[1] < interleaved[2]


@in_both
def test_tasks_wait_for_their_predecessors_and_streams_run_one_at_a_time() -> None:
    draw = random_of(31)
    for _ in range(many(10, 300)):
        problem, grid = drawn(draw)
        done = simulate_grid(problem, grid)
        tasks, timeline = done.program.instances, done.timeline
        before = np.repeat(np.arange(len(tasks)), np.diff(tasks.successor_start))
        assert (timeline.start[tasks.successor] >= timeline.finish[before]).all()
        assert (timeline.finish - timeline.start >= timeline.work).all()
        for klass in range(len(done.program.classes)):
            for stream in Stream:
                mine = np.flatnonzero((tasks.klass == klass) & (tasks.stream == stream))
                order = mine[np.lexsort((timeline.finish[mine], timeline.start[mine]))]
                assert (timeline.start[order[1:]] >= timeline.finish[order[:-1]]).all(), (
                    grid,
                    stream,
                )
        # Every task follows from another, or from nothing, without waiting for no reason.
        ready = np.zeros(len(tasks), dtype=np.int64)
        np.maximum.at(ready, tasks.successor, timeline.finish[before])
        assert (timeline.start == ready).all()


def kinds_of(done: SimulatedPlan) -> np.ndarray:
    """(tasks,) kind of each."""
    return done.program.templates.kind[done.program.instances.template]


@in_both
def test_every_chunk_runs_every_microbatch_once_on_every_class() -> None:
    draw = random_of(32)
    for _ in range(many(10, 200)):
        problem, grid = drawn(draw)
        done = simulate_grid(problem, grid)
        tasks, templates = done.program.instances, done.program.templates
        kind, chunk = kinds_of(done), templates.chunk[tasks.template]
        first = templates.piece[tasks.template] == 0
        microbatches = microbatches_of(problem, grid)
        for klass, one in enumerate(done.program.classes):
            stage = one.families[0][1] % grid.pp
            assert [c for _, c, _ in one.families] == list(
                range(stage, grid.pp * grid.vpp, grid.pp)
            )
            for c in range(grid.pp * grid.vpp):
                for k in (TaskKind.F, TaskKind.B):
                    ran = tasks.microbatch[
                        (tasks.klass == klass) & (kind == k) & (chunk == c) & first
                    ]
                    assert sorted(ran.tolist()) == (
                        list(range(microbatches)) if c % grid.pp == stage else []
                    )
            sends = {
                k: int(((tasks.klass == klass) & (kind == k)).sum())
                for k in (TaskKind.SEND_F, TaskKind.SEND_B)
            }
            # The last chunk's output and the first chunk's input gradient go nowhere.
            outward = grid.vpp - (stage == grid.pp - 1), grid.vpp - (stage == 0)
            expected = (0, 0) if grid.pp == 1 else outward
            assert tuple(sends.values()) == tuple(n * microbatches for n in expected)


def test_pieces_make_up_the_whole() -> None:
    problem = problem_of(DENSE, cluster_of(8, node=8), runtime=ANY)
    done = simulate_grid(problem, Grid(pp=2, dp=4, zero=1))
    tasks, templates = done.program.instances, done.program.templates
    for kind, name in ((TaskKind.B, "backward_s"), (TaskKind.REDUCE, "reduce_s")):
        for chunk in range(2):
            step = done.costs.step(0, chunk, 0)
            cut = (
                (kinds_of(done) == kind)
                & (templates.chunk[tasks.template] == chunk)
                & (templates.pieces[tasks.template] > 1)
            )
            assert cut.sum() == step.pieces[0] > 1
            assert int(done.timeline.work[cut].sum()) == round(float(getattr(step, name)[0]) * 1e12)


def overloaded(
    done: SimulatedPlan, problem: Problem, start: np.ndarray, finish: np.ndarray
) -> bool:
    """Whether some resource has more to do than it can, if every task runs from `start` to
    `finish`."""
    use_start, resource, weight = plan_kernel_tasks(problem, done.program, done.costs)[4:7]
    task = np.repeat(np.arange(len(start)), np.diff(use_start))
    instant, change = np.concatenate([start[task], finish[task]]), np.concatenate([weight, -weight])
    where = np.tile(resource, 2)
    order = np.lexsort((change, instant, where))
    # All that a resource is given it gives back, so the sum starts at 0 at each.
    return bool((np.cumsum(change[order]) > SCALE).any())


@in_both
def test_nothing_shared_takes_the_longest_path() -> None:
    """Without slowdown beside collectives, and where no link has two things to do, S is the longest
    path."""
    draw = random_of(33)
    slower, shared, cases = 0, 0, many(8, 200)
    for _ in range(cases):
        problem, grid = drawn(draw)
        # Pools stand between islands and tiers above the second: sends within two tiers have links
        # of their own.
        flat = replace(problem, cluster=replace(problem.cluster, fabric=()))
        free = simulate_with(
            flat, grid, lambda step: replace(step, slowdown=1.0, shares=np.zeros_like(step.shares))
        )
        tasks = free.program.instances
        start, path = longest_path(
            free.timeline.work, tasks.indegree, tasks.successor_start, tasks.successor
        )
        # A device may send to both neighbours at once.
        if overloaded(free, flat, start, path):
            shared += 1
            assert (free.timeline.finish >= path).all(), grid
        else:
            assert (free.timeline.finish == path).all(), grid
        done = simulate_grid(problem, grid)
        slower += done.step_time_s > path_seconds_of(done)
    assert slower > cases // 4
    assert shared < cases // 4


def test_compute_beside_a_reduction_is_slower() -> None:
    """A last backward of two seconds in four pieces beside reductions: overlapped time passes at 1
    / slowdown."""
    problem = problem_of(DENSE, cluster_of(8, node=8), runtime=ANY, global_batch=8)
    prices = {
        "forward_s": np.ones(1),
        "backward_s": np.full(1, 2.0),
        "reduce_s": np.full(1, 0.4),
        "pieces": np.full(1, 4),
        "slowdown": 1.25,
    }
    done = simulate_with(problem, Grid(dp=8), lambda step: replace(step, **prices))
    spent = (done.timeline.finish - done.timeline.start)[kinds_of(done) == TaskKind.B] / 1e12
    # Pieces of 0.5 s; each but the first meets one reduction of 0.1 s, and both pass at 1 / 1.25
    # while they run together.
    assert spent.tolist() == pytest.approx([0.5, 0.525, 0.525, 0.525], rel=1e-6)
    reductions = (done.timeline.finish - done.timeline.start)[
        kinds_of(done) == TaskKind.REDUCE
    ] / 1e12
    assert reductions.tolist() == pytest.approx([0.125, 0.125, 0.125, 0.1], rel=1e-6)


def test_equal_sends_over_an_oversubscribed_uplink_hold_their_share() -> None:
    """All ranks below a leaf send at once across the spine: each has the share that its duration
    assumes."""
    leaf = FabricTier(name="leaf", num_devices=8)
    spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0)
    cluster = cluster_of(16, node=4, fabric=(leaf, spine))
    problem = problem_of(DENSE, cluster, runtime=ANY, global_batch=32, seq_len=4096)
    every = simulate_plan(problem, plan_of_grid(problem, Grid(pp=2, dp=8)), unfolded=True)
    (edge,) = every.program.edges
    sends_across = edge.forward.sends[:, :2] + edge.forward.base
    assert (sends_across // leaf.num_devices == [0, 1]).all()
    sends = kinds_of(every) == TaskKind.SEND_F
    spent = (every.timeline.finish - every.timeline.start)[sends]
    # A border's bandwidth is the share of one device where all send: alone among equals nobody
    # waits.
    assert (spent == every.timeline.work[sends]).all()


def test_a_reduction_that_fills_the_uplink_slows_sends_across_it() -> None:
    """Gradients reduced across nodes while a border is crossed: both take their share of the same
    card."""
    problem = problem_of(DENSE, cluster_of(16, node=4), runtime=ANY, global_batch=64, seq_len=4096)
    grid = Grid(pp=2, dp=8, zero=0)
    shares = simulate_grid(problem, grid).costs.families[0, 0, 0].slices[0].shares
    # A ring of eight fills the card but for its latency.
    assert 0.9 < shares[-1] < 1.0
    # The first rank's last backward waits for a send of one second; the second rank reduces for two
    # seconds meanwhile.
    kind = problem.cluster.node
    slow = replace(kind, nic=replace(kind.nic, latency_s=1.0))
    late = replace(
        problem,
        cluster=replace(problem.cluster, groups=(replace(problem.cluster.groups[0], kind=slow),)),
    )
    prices = {"reduce_s": np.full(1, 2.0), "pieces": np.ones(1, dtype=np.int64), "slowdown": 1.0}
    done = simulate_with(late, grid, lambda step: replace(step, **prices, shares=shares))
    last = np.flatnonzero(kinds_of(done) == TaskKind.SEND_B)[-1]
    assert done.timeline.work[last] >= 10**12
    assert done.timeline.finish[last] - done.timeline.start[last] > 1.4 * 10**12
    alone = simulate_with(
        late, grid, lambda step: replace(step, **prices, shares=np.zeros_like(shares))
    )
    assert alone.timeline.finish[last] - alone.timeline.start[last] == alone.timeline.work[last]
