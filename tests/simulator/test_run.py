"""The Program on streams and links: order, exclusiveness, sharing, and what nothing shared would take."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from shardwright.program.fold import unfolded
from shardwright.simulator.evaluate import links_of, lower_grid, simulate_grid
from shardwright.simulator.run import Links, run, template_work

from shardwright.cost.member import price_grid, step_costs
from shardwright.hardware.cluster import FabricTier
from shardwright.program.instances import Stream, TaskKind
from shardwright.program.problem import Problem
from shardwright.simulator.kernel.longest_path import longest_path
from shardwright.strategy.grid import Grid
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.strategies import dense_model, expert_model

DENSE, SPARSE = dense_model(layers=12), expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME, name="any", schedules=("gpipe", "1f1b", "interleaved-1f1b"), zero_stages=(0, 1, 2, 3), zero_with_pipeline=3, bucket_bytes=0
)
BLOCKING = replace(ANY, name="blocking", overlap_p2p=False)


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    while True:
        experts = draw.random() < 0.4
        grid = random_grid(draw, experts=experts)
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        fabric = draw.choice(
            ((), (FabricTier(name="leaf", num_devices=2 * node), FabricTier(name="spine", num_devices=0, oversubscription=3.0)))
        )
        problem = problem_of(
            SPARSE if experts else DENSE,
            cluster_of(grid.devices, node=node, fabric=fabric),
            runtime=draw.choice((ANY, BLOCKING)),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 4, 6)),
            seq_len=4096,
        )
        if is_legal(problem, grid):
            return problem, grid


def test_tasks_wait_for_their_predecessors_and_streams_run_one_at_a_time() -> None:
    draw = random.Random(31)
    for _ in range(60):
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
                assert (timeline.start[order[1:]] >= timeline.finish[order[:-1]]).all(), (grid, stream)
        # Every task follows from another, or from nothing, without waiting for no reason.
        ready = np.zeros(len(tasks), dtype=np.int64)
        np.maximum.at(ready, tasks.successor, timeline.finish[before])
        assert (timeline.start == ready).all()


def test_every_chunk_runs_every_microbatch_once_on_every_class() -> None:
    draw = random.Random(32)
    for _ in range(40):
        problem, grid = drawn(draw)
        costs = step_costs(problem, grid, price_grid(problem, grid))
        program = lower_grid(problem, grid, costs)
        tasks, columns = program.instances, program.columns
        kind, chunk = columns.kind[tasks.template], columns.chunk[tasks.template]
        first = columns.piece[tasks.template] == 0
        microbatches = program.shape.microbatches
        for klass in range(len(program.classes)):
            stage = int(program.classes.stage[klass])
            for c in range(grid.pp * grid.vpp):
                for k in (TaskKind.F, TaskKind.B):
                    done = tasks.microbatch[(tasks.klass == klass) & (kind == k) & (chunk == c) & first]
                    assert sorted(done.tolist()) == (list(range(microbatches)) if c % grid.pp == stage else [])
            sends = {k: int(((tasks.klass == klass) & (kind == k)).sum()) for k in (TaskKind.SEND_F, TaskKind.SEND_B)}
            # The last chunk's output and the first chunk's input gradient go nowhere.
            outward = grid.vpp - (stage == grid.pp - 1), grid.vpp - (stage == 0)
            expected = (0, 0) if grid.pp == 1 else outward
            assert tuple(sends.values()) == tuple(n * microbatches for n in expected)


def test_pieces_make_up_the_whole() -> None:
    problem = problem_of(DENSE, cluster_of(8, node=8), runtime=ANY)
    grid = Grid(pp=2, dp=4, zero=1)
    costs = step_costs(problem, grid, price_grid(problem, grid))
    program = lower_grid(problem, grid, costs)
    work, columns = template_work(program, costs), program.columns
    for kind, seconds in ((TaskKind.B, costs.backward_s), (TaskKind.REDUCE, costs.reduce_s)):
        for chunk in range(2):
            cut = (columns.kind == kind) & (columns.chunk == chunk) & (columns.pieces > 1)
            assert cut.sum() == costs.pieces[chunk] > 1
            assert int(work[cut].sum()) == round(seconds[chunk] * 1e12)


def test_nothing_shared_takes_the_longest_path() -> None:
    """Without slowdown beside collectives and with links of its own for everything, S is the longest path."""
    draw = random.Random(33)
    slower = 0
    for _ in range(40):
        problem, grid = drawn(draw)
        costs = step_costs(problem, grid, price_grid(problem, grid))
        program = lower_grid(problem, grid, costs)
        links = links_of(problem, grid)
        free = Links(tiers=links.tiers[:2], slowdown=1.0, sync_share=(0.0,) * 2)
        tasks = program.instances
        work = template_work(program, costs)[tasks.template]
        start, finish = longest_path(work, tasks.indegree, tasks.successor_start, tasks.successor)
        # Pools stand between islands and tiers above the second: sends within two tiers have links of their own.
        lower = replace(
            program,
            classes=replace(
                program.classes,
                following_tier=np.minimum(program.classes.following_tier, 1),
                preceding_tier=np.minimum(program.classes.preceding_tier, 1),
            ),
        )
        border = replace(costs, border_s=np.resize(costs.border_s[:1], costs.border_s.shape))
        timeline = run(lower, costs=border, links=free)
        flat = template_work(lower, border)[tasks.template]
        assert (timeline.finish == longest_path(flat, tasks.indegree, tasks.successor_start, tasks.successor)[1]).all(), grid
        slower += int(run(program, costs=costs, links=links).finish.max()) > int(finish.max())
        assert (start >= 0).all()
    assert slower > 10


def test_compute_beside_a_reduction_is_slower() -> None:
    """A last backward of two seconds in four pieces beside reductions: overlapped time passes at 1 / slowdown."""
    problem = problem_of(DENSE, cluster_of(8, node=8), runtime=ANY, global_batch=8)
    grid = Grid(dp=8)
    costs = step_costs(problem, grid, price_grid(problem, grid))
    costs = replace(costs, forward_s=np.ones(1), backward_s=np.full(1, 2.0), reduce_s=np.full(1, 0.4), pieces=np.full(1, 4))
    program = lower_grid(problem, grid, costs)
    links = replace(links_of(problem, grid), slowdown=1.25)
    done = run(program, costs=costs, links=links)
    kind = program.columns.kind[program.instances.template]
    spent = (done.finish - done.start)[kind == TaskKind.B] / 1e12
    # Pieces of 0.5 s; each but the first meets one reduction of 0.1 s, and both pass at 1 / 1.25 while they run together.
    assert spent.tolist() == pytest.approx([0.5, 0.525, 0.525, 0.525], rel=1e-6)
    reductions = (done.finish - done.start)[kind == TaskKind.REDUCE] / 1e12
    assert reductions.tolist() == pytest.approx([0.125, 0.125, 0.125, 0.1], rel=1e-6)


def test_equal_sends_over_an_oversubscribed_uplink_hold_their_share() -> None:
    """All ranks below a leaf send at once across the spine: each has the share that its duration assumes."""
    leaf = FabricTier(name="leaf", num_devices=8)
    spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0)
    cluster = cluster_of(16, node=4, fabric=(leaf, spine))
    problem = problem_of(DENSE, cluster, runtime=ANY, global_batch=32, seq_len=4096)
    grid = Grid(pp=2, dp=8)
    every = simulate_grid(problem, grid, classes=unfolded(grid, cluster.tiers()))
    assert set(every.program.classes.following_tier.tolist()) == {2}
    kind = every.program.columns.kind[every.program.instances.template]
    sends = kind == TaskKind.SEND_F
    spent = (every.timeline.finish - every.timeline.start)[sends]
    # A border's bandwidth is the share of one device where all send: alone among equals nobody waits.
    assert (spent == every.timeline.work[sends]).all()


def test_a_reduction_that_fills_the_uplink_slows_sends_across_it() -> None:
    """Gradients reduced across nodes while a border is crossed: both take their share of the same card."""
    problem = problem_of(DENSE, cluster_of(16, node=4), runtime=ANY, global_batch=64, seq_len=4096)
    grid = Grid(pp=2, dp=8, zero=0)
    costs = step_costs(problem, grid, price_grid(problem, grid))
    # The first rank's last backward waits for a send of one second; the second rank reduces for two seconds meanwhile.
    costs = replace(costs, border_s=np.ones_like(costs.border_s), reduce_s=np.full(2, 2.0), pieces=np.ones(2, dtype=np.int64))
    program = lower_grid(problem, grid, costs)
    links = replace(links_of(problem, grid), slowdown=1.0)
    # A ring of eight fills the card but for its latency.
    assert 0.9 < links.sync_share[-1] < 1.0
    done = run(program, costs=costs, links=links)
    kind = program.columns.kind[program.instances.template]
    last = np.flatnonzero(kind == TaskKind.SEND_B)[-1]
    assert done.work[last] == 10**12
    assert done.finish[last] - done.start[last] > 1.4 * 10**12
    alone = run(program, costs=costs, links=replace(links, sync_share=(0.0,) * len(links.tiers)))
    assert alone.finish[last] - alone.start[last] == 10**12
