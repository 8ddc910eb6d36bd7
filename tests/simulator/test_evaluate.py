"""A step as a whole: it rescales with time, its breakdown adds up, and its Program does not grow
with the replicas."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.bounds.longest_path import microbatches_of
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.kernels.accelerator_rates import OPERATOR_S
from shardwright.cost.part_phase_recompute_keys import PARTS, TP
from shardwright.cost.step.stage_action_seconds import update_seconds
from shardwright.cost.step.strategy_task_seconds import PART_NAMES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.dtype import Dtype
from shardwright.hardware.cluster import Cluster, FabricTier
from shardwright.hardware.link_and_network_tier import Link
from shardwright.hardware.slowdown_scenarios import slower_device
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import TpOverlap
from shardwright.simulator.predict_plan import predict
from shardwright.simulator.simulate_plan import SimulatedPlan, lower, plan_of_grid, simulate_grid
from shardwright.simulator.step_breakdown import UNEVEN, breakdown, critical_class
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.cost.prices import rows_of
from tests.program.small import RUNTIME, cluster_of, is_legal, problem_of, random_grid
from tests.simulator.general import simulate_with
from tests.strategies import dense_model, expert_model
from tests.tiers import in_both, many, random_of

NARROW, WIDE = dense_model(layers=12), dense_model(layers=12, heads=64, ffn=16384, vocab=50000)
SPARSE = expert_model(dense=1, sparse=11, experts=8)
ANY = replace(
    RUNTIME,
    name="any",
    schedules=("gpipe", "1f1b", "interleaved-1f1b"),
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    optimizer_offload=True,
)
BLOCKING = replace(
    ANY, name="blocking", overlap_p2p=False, overlap_grad_reduce=False, overlap_param_gather=False
)


def slower_link(link: Link, k: float) -> Link:
    return replace(
        link,
        latency_s=link.latency_s * k,
        bandwidth=link.bandwidth / k,
        reverse_bandwidth=link.reverse_bandwidth / k,
    )


def slower(cluster: Cluster, k: float) -> Cluster:
    """Everything of `cluster` takes `k` times as long."""
    kind = cluster.node
    host = replace(
        kind.host,
        pcie=slower_link(kind.host.pcie, k),
        memory_bandwidth=kind.host.memory_bandwidth / k,
    )
    slow = replace(
        kind,
        accelerator=slower_device(kind.accelerator, k),
        scale_up=slower_link(kind.scale_up, k),
        nic=slower_link(kind.nic, k),
        host=host,
    )
    fabric = tuple(replace(t, latency_s=t.latency_s * k) for t in cluster.fabric)
    return replace(
        cluster, groups=tuple(replace(g, kind=slow) for g in cluster.groups), fabric=fabric
    )


def drawn(draw: random.Random) -> tuple[Problem, Grid]:
    while True:
        experts = draw.random() < 0.4
        grid = random_grid(draw, experts=experts, schedules=("1f1b", "gpipe"))
        grid = replace(grid, offload=draw.choice((0, 0, 50)))
        node = draw.choice((4, 8, 12))
        if grid.devices % node:
            continue
        leaf = FabricTier(name="leaf", num_devices=2 * node)
        spine = FabricTier(name="spine", num_devices=0, oversubscription=4.0, latency_s=2e-6)
        problem = problem_of(
            SPARSE if experts else draw.choice((NARROW, WIDE)),
            cluster_of(
                grid.devices,
                node=node,
                fabric=draw.choice(((), (leaf, spine))),
                accelerator=draw.choice(("h100-sxm", "l40s")),
            ),
            runtime=draw.choice((ANY, BLOCKING)),
            global_batch=grid.dp * grid.microbatch * draw.choice((1, 2, 6)),
            seq_len=draw.choice((256, 4096)),
        )
        if is_legal(problem, grid):
            return problem, grid


@in_both
def test_time_rescales() -> None:
    draw = random_of(3)
    for _ in range(many(12, 300)):
        problem, grid = drawn(draw)
        k = draw.choice((0.25, 2.0, 8.0))
        once = simulate_grid(problem, grid).step_time_s
        constants = problem.constants
        slow = replace(
            constants,
            host_launch=k * constants.host_launch,
            collective_wait_s=k * constants.collective_wait_s,
        )
        with pytest.MonkeyPatch.context() as patch:
            for module in (
                "gradients.layer_reduce_gather_seconds_and_link_shares",
                "kernels.launch_overhead",
                "tables.sharding_copies_and_overlap_slowdown",
            ):
                patch.setattr(f"shardwright.cost.{module}.OPERATOR_S", k * OPERATOR_S)
            again = simulate_grid(
                replace(problem, cluster=slower(problem.cluster, k), constants=slow), grid
            ).step_time_s
        # Clocks are whole picoseconds; nothing is shorter than a microsecond.
        assert again == pytest.approx(k * once, rel=1e-6), grid


@pytest.mark.parametrize(
    "grid",
    [
        Grid(tp=4),
        Grid(tp=2, sp=True, pp=2),
        Grid(dp=8, zero=1),
        Grid(cp=4, gather=True, dp=2, zero=3),
    ],
    ids=str,
)
def test_communication_rescales_with_bytes(grid: Grid) -> None:
    """Twice the bytes an element over twice the bandwidth take the same seconds: of a layer, a
    border and the end of the step."""
    runtime = replace(
        ANY, tp_overlap=TpOverlap.NONE, gradient_dtype=Dtype.BF16, bucket_bytes=1 << 20
    )
    problem = problem_of(WIDE, cluster_of(16, node=4), runtime=runtime)
    kind = problem.cluster.node
    fast = replace(
        kind,
        scale_up=replace(
            kind.scale_up,
            bandwidth=2 * kind.scale_up.bandwidth,
            reverse_bandwidth=2 * kind.scale_up.reverse_bandwidth,
        ),
        nic=replace(
            kind.nic,
            bandwidth=2 * kind.nic.bandwidth,
            reverse_bandwidth=2 * kind.nic.reverse_bandwidth,
        ),
    )
    double = Problem(
        model=problem.model,
        cluster=replace(problem.cluster, groups=(replace(problem.cluster.groups[0], kind=fast),)),
        job=replace(problem.job, parameter=Dtype.FP32, activation=Dtype.FP32),
        runtime=replace(
            runtime, name="any-double", gradient_dtype=Dtype.FP32, bucket_bytes=2 << 20
        ),
    )
    rows, shard = rows_of([grid]), np.array([grid.dp * grid.cp])
    one, two = layer_table(problem, rows), layer_table(double, rows)
    # Statistics of the loss are fp32 in both, so the head is left out.
    assert two.seconds[:2, :, TP] == pytest.approx(one.seconds[:2, :, TP], rel=1e-9)
    assert two.border == pytest.approx(one.border, rel=1e-9)
    ends = mesh_table(problem, rows, shard).sync, mesh_table(double, rows, shard).sync
    for name in ("all_reduce", "reduce", "gather"):
        assert getattr(ends[1], name) == pytest.approx(getattr(ends[0], name), rel=1e-9)
    assert ends[0].all_reduce.max() > 0.0 or grid.dp * grid.cp == 1


def critical(done: SimulatedPlan) -> int:
    """The class that computes longest."""
    program = done.program
    kinds = program.templates.kind[program.instances.template]
    actions = (program.instances.stream == 0) & (kinds <= int(TaskKind.R))
    spent = done.timeline.finish - done.timeline.start
    busy = [
        int(spent[actions & (program.instances.klass == k)].sum())
        for k in range(len(program.classes))
    ]
    return busy.index(max(busy))


@in_both
def test_breakdown_adds_up() -> None:
    draw = random_of(4)
    for _ in range(many(15, 400)):
        problem, grid = drawn(draw)
        done = simulate_grid(problem, grid)
        listed = breakdown(done)
        parts = dict(listed)
        assert len(parts) == len(listed)
        assert sum(parts.values()) == pytest.approx(done.step_time_s, rel=1e-12)
        assert all(value >= 0.0 for value in parts.values()), (grid, parts)
        # Each kernel family is what the chunks of the critical rank spend on it; nothing is swept
        # into the largest part.
        klass = critical(done)
        assert critical_class(done) == klass
        chunks = [done.costs.step(*place) for place in done.program.classes[klass].families]
        assert len(chunks) == grid.vpp
        for index, name in enumerate(PART_NAMES):
            expected = microbatches_of(problem, grid) * sum(
                float(step.parts[:, 0, index].sum()) for step in chunks
            )
            if name == "sharding":
                assert parts.get(name, 0.0) >= expected - 1e-8
            else:
                assert parts.get(name, 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-8), (
                    name,
                    grid,
                )
        assert parts["optimizer"] >= max(float(step.update_s[0]) for step in chunks) - 1e-9
        assert parts.get("jitter", 0.0) == pytest.approx(
            done.step_time_s * (1 - 1 / jitter_factor(problem, grid.devices)), abs=1e-8
        )
        assert set(parts) <= {
            *PARTS,
            "recompute",
            "sharding",
            "slowdown",
            "optimizer",
            "bubble",
            "jitter",
            "scales",
            "host",
            UNEVEN,
        }


def test_one_device_has_no_bubble_and_no_communication() -> None:
    problem = problem_of(NARROW, cluster_of(1, node=1), runtime=ANY)
    parts = dict(breakdown(simulate_grid(problem, Grid())))
    assert parts.pop("bubble") == pytest.approx(0.0, abs=1e-9)
    assert set(parts) == {"gemm", "attention", "element", "launch", "optimizer"}
    quick = replace(problem, constants=replace(problem.constants, host_launch=0.0))
    assert set(dict(breakdown(simulate_grid(quick, Grid())))) == {
        "gemm",
        "attention",
        "element",
        "bubble",
        "optimizer",
    }


def test_bubble_of_a_balanced_pipeline() -> None:
    """(pp - 1) / m of the work where chunks are equal and sends are free: GPipe, and 1F1B with the
    same; interleaved / vpp."""
    cluster = cluster_of(4, node=4)
    kind = cluster.node
    fast = replace(
        kind, scale_up=replace(kind.scale_up, latency_s=0.0, bandwidth=1e18, reverse_bandwidth=1e18)
    )
    cluster = replace(cluster, groups=(replace(cluster.groups[0], kind=fast),))
    model = dense_model(layers=16, vocab=8)
    for schedule, vpp in (("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 4)):
        grid = Grid(pp=4, vpp=vpp, schedule=schedule)
        problem = problem_of(model, cluster, runtime=ANY, global_batch=8)
        equal = {
            "forward_s": np.full(1, 0.001),
            "backward_s": np.full(1, 0.002),
            "reduce_s": np.zeros(1),
        }
        done = simulate_with(problem, grid, lambda step, equal=equal: replace(step, **equal))
        update = max(update_seconds(done.costs, one) for one in done.program.classes)
        assert done.timeline.seconds - update == pytest.approx(
            0.003 * vpp * 8 + 0.003 * 3, rel=1e-6
        )


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("model", [NARROW, SPARSE], ids=["dense", "sparse"])
def test_program_does_not_grow_with_replicas(model: object, schedule: str) -> None:
    """512 and 16,384 devices: as many instances, templates and classes when tp, pp and a replica's
    microbatches are the same."""
    counts = []
    for devices in (512, 16384):
        grid = Grid(
            tp=8,
            sp=True,
            pp=4,
            vpp=3 if schedule == "interleaved-1f1b" else 1,
            dp=devices // 32,
            ep=8 if model is SPARSE else 1,
            zero=1,
            schedule=schedule,
        )
        problem = problem_of(
            model, cluster_of(devices, node=8), runtime=ANY, global_batch=grid.dp * 8
        )  # type: ignore[arg-type]
        assert is_legal(problem, grid)
        program, _ = lower(problem, plan_of_grid(problem, grid))
        assert sum(len(c.devices) for c in program.classes) == devices
        counts.append((len(program.instances), len(program.templates), len(program.classes)))
    assert counts[0] == counts[1]
    assert counts[0][2] == 4


def test_prediction_is_what_was_simulated() -> None:
    problem = problem_of(WIDE, cluster_of(16, node=8), runtime=ANY, global_batch=32, seq_len=2048)
    grid = Grid(tp=2, sp=True, pp=2, dp=4, zero=1, recompute=Recompute.SELECTIVE)
    prediction = predict(problem, grid)
    assert prediction.step_time_s == simulate_grid(problem, grid).step_time_s
    assert prediction.tokens_per_s * prediction.step_time_s == pytest.approx(32 * 2048)
    assert prediction.tokens_per_s == pytest.approx(16 * prediction.tokens_per_s_per_device)
    assert 0.0 < prediction.mfu_causal < prediction.mfu_full < 1.0
    low, high = prediction.interval_s
    assert low < prediction.step_time_s < high
    assert prediction.allocated_bytes == max(s.allocated for s in prediction.stages)
    assert prediction.reserved_bytes == max(s.reserved for s in prediction.stages)
