"""What runs beside what inside a layer, and the traffic that a runtime adds to it, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.api.request_to_problem import problem_of as api_problem
from shardwright.cost.bounds.longest_path import microbatches_of, path_seconds
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.cost.network.disable_fused_overlap_beyond_nvlink import without_fused_overlap
from shardwright.cost.network.exposed_and_hidden_seconds_of_block_collective import (
    gemms_yield_multiprocessors,
)
from shardwright.cost.part_phase_recompute_keys import ELEMENT, GEMM, PHASES, TP
from shardwright.cost.step.strategy_task_seconds import step_costs
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.block.block_program import Phase
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels, TpOverlap
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import parse_grid
from tests.cost.prices import price_grid, rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.program.structures import structure_of
from tests.strategies import dense_model

MODEL = dense_model(layers=4)
LAYER = next(i for i, b in enumerate(MODEL.blocks) if b.name == "layer")
HEAD = next(i for i, b in enumerate(MODEL.blocks) if b.name == "head")
F, I, W = (PHASES.index(p) for p in "FIW")  # noqa: E741 - PyTorch's letter


def problem(runtime: Runtime, *, device: str = "a100-sxm-80gb", wait_s: float = 0.0) -> Problem:
    cluster = cluster_of(8, node=8)
    cluster = replace(
        cluster, groups=(replace(cluster.groups[0], kind=default_node(accelerator(device))),)
    )
    made = problem_of(MODEL, cluster, runtime=runtime, seq_len=1024)
    # Blocks are so small that launches and kernels beside collectives would hide what is tested.
    return replace(
        made,
        constants=replace(
            made.constants, collective_wait_s=wait_s, host_launch=0.0, overlap_slowdown=1.0
        ),
    )


def seconds(
    runtime: Runtime,
    grid: Grid,
    *,
    block: int = LAYER,
    device: str = "a100-sxm-80gb",
    wait_s: float = 0.0,
) -> np.ndarray:
    """(phases, parts) of one block."""
    return layer_table(problem(runtime, device=device, wait_s=wait_s), rows_of([grid])).seconds[
        block, :, :, 0
    ]


def plain(**changes: object) -> Runtime:
    base = {"tp_overlap": TpOverlap.NONE, "fused_weight_gradient": False, "tp_input_regather": True}
    return replace(RUNTIME, name="plain", **(base | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("dtype", "width"), [(Dtype.BF16, 2), (Dtype.FP32, 4)])
@pytest.mark.parametrize("kernels", [ElementKernels.FUSED, ElementKernels.EAGER])
def test_a_kernel_adds_gradients(dtype: Dtype, width: int, kernels: ElementKernels) -> None:
    kept = seconds(plain(gradient_dtype=dtype, element_kernels=kernels), Grid())
    added = seconds(
        plain(gradient_dtype=dtype, element_kernels=kernels, adds_gradients=True), Grid()
    )
    device = accelerator("a100-sxm-80gb")
    weights = sum(
        np.prod([e.size for e in p.extents])
        for o in MODEL.blocks[LAYER].operators
        for p in o.parameters
        if len(p.extents) == 2
    )
    # Read the new and the old gradient, write the sum, whatever the other kernels are; a launch a
    # weight matrix.
    moved = weights * (2 * width + 2) / (device.element_efficiency * device.memory_bandwidth)
    more = added[W, ELEMENT] - kept[W, ELEMENT]
    assert more == pytest.approx(moved, abs=8 * device.launch_s)
    assert more > moved
    assert np.array_equal(np.delete(added, ELEMENT, axis=1), np.delete(kept, ELEMENT, axis=1))
    assert np.array_equal(added[[F, I]], kept[[F, I]])


@pytest.mark.parametrize("loss_bytes", [10, 36, 52])
@pytest.mark.parametrize("kernels", [ElementKernels.FUSED, ElementKernels.EAGER])
def test_traffic_of_the_loss_is_exact(loss_bytes: int, kernels: ElementKernels) -> None:
    none = seconds(plain(element_kernels=kernels, loss_bytes=4), Grid(), block=HEAD)
    some = seconds(plain(element_kernels=kernels, loss_bytes=4 + loss_bytes), Grid(), block=HEAD)
    device = accelerator("a100-sxm-80gb")
    expected = (
        loss_bytes * 1024 * MODEL.vocab / (device.element_efficiency * device.memory_bandwidth)
    )
    assert (some - none)[:, ELEMENT][: W + 1].sum() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("sp", [False, True])
def test_a_collective_waits_for_every_doubling(sp: bool) -> None:
    runtime = plain(tp_input_regather=False)
    waits = []
    for t in (1, 2, 4, 8):
        idle, held = (seconds(runtime, Grid(tp=t, sp=sp and t > 1), wait_s=w) for w in (0.0, 1e-5))
        assert np.array_equal(np.delete(held, TP, axis=1), np.delete(idle, TP, axis=1))
        waits.append(float((held - idle)[: W + 1, TP].sum()))
    moves = 8 if sp else 4
    assert waits == pytest.approx([moves * 1e-5 * doublings for doublings in range(4)])


def test_fused_collectives_do_not_wait() -> None:
    runtime = plain(tp_overlap=TpOverlap.FUSED)
    idle, held = (seconds(runtime, Grid(tp=8, sp=True), wait_s=w) for w in (0.0, 1e-3))
    assert (held - idle)[: W + 1, TP].sum() < 1e-3


def test_products_yield_up_to_ampere() -> None:
    assert all(
        gemms_yield_multiprocessors(name)
        for name in ("a100-sxm-80gb", "v100-sxm-32gb", "t4", "mi300x")
    )
    assert not any(
        gemms_yield_multiprocessors(name) for name in ("h100-sxm", "b200-sxm", "gb300-nvl72")
    )


@pytest.mark.parametrize(
    ("device", "hides"), [("a100-sxm-80gb", True), ("h100-sxm", False), ("b200-sxm", False)]
)
def test_backward_collectives_hide_behind_products_that_yield(device: str, hides: bool) -> None:
    grid = Grid(tp=8, sp=True)
    none, dgrad = (
        seconds(plain(tp_overlap=o), grid, device=device) for o in (TpOverlap.NONE, TpOverlap.DGRAD)
    )
    assert dgrad[F, TP] == none[F, TP]
    if hides:
        # The gathered input runs beside the input gradient and its reduction beside the weight
        # gradient: what they exceed them by stays.
        assert dgrad[[I, W], TP].sum() < none[[I, W], TP].sum()
        assert dgrad[W, TP] >= none[W, TP] - none[I, GEMM]
    else:
        assert np.allclose(dgrad[:, TP], none[:, TP], rtol=1e-12)


@pytest.mark.parametrize("vpp", [1, 2])
def test_reductions_that_nothing_overlaps_come_last(vpp: int) -> None:
    grid = Grid(dp=4, pp=2, vpp=vpp, schedule="interleaved-1f1b" if vpp > 1 else "1f1b")
    over, last = (
        problem(replace(RUNTIME, name=f"r{o}", overlap_grad_reduce=o)) for o in (True, False)
    )
    early, late = simulate_grid(over, grid), simulate_grid(last, grid)
    assert late.step_time_s > early.step_time_s
    # Rank 0 computes last: its whole buffer follows.
    first = [late.costs.step(*place) for place in late.program.classes[0].families]
    assert len(first) == vpp
    busy = sum(float(s.forward_s[0] + s.backward_s[0]) for s in first) * microbatches_of(last, grid)
    assert late.step_time_s > busy + sum(float(s.reduce_s[0]) for s in first)
    assert path_seconds(
        last, grid, step_costs(last, grid, price_grid(last, grid))
    ) <= late.step_time_s * (1 + 1e-9)


@pytest.mark.parametrize("t", [2, 4, 8])
def test_pieces_of_products_hide_their_collectives(t: int) -> None:
    grid = Grid(tp=t, sp=True)
    whole, fused = (
        seconds(plain(tp_overlap=o), grid, device="h100-sxm")
        for o in (TpOverlap.NONE, TpOverlap.FUSED)
    )
    rates = next(g for g in accelerator("h100-sxm").gemm if g.dtype is Dtype.BF16)
    for phase, cut in ((F, 4), (I, 2)):
        # Four products of a layer meet a gather or a reduction in forward, two a gather in
        # backward; smaller products are no faster.
        assert fused[phase, GEMM] - whole[phase, GEMM] >= cut * (t - 1) * rates.overhead_s * (
            1 - 1e-9
        )
    assert fused[W, GEMM] == whole[W, GEMM]
    assert fused[: W + 1, TP].sum() < whole[: W + 1, TP].sum()


def test_a_gathered_tensor_is_wanted_and_a_reduced_one_made_by_a_product() -> None:
    program = next(
        p
        for p in programs_of(problem(plain()), structure_of(sp=True, gather=False, tp=4))
        if p.block == "layer"
    )
    kinds = {o.name: o.kind for o in program.operators}
    met = [m for m in program.moves if m.axes == ("tp",) and m.phase is not Phase.W]
    assert len(met) == 8
    assert {kinds[m.beside or m.operator] for m in met} == {OperatorKind.LINEAR}


@pytest.mark.parametrize(
    ("text", "within"),
    [("tp8 sp dp4", True), ("tp16 sp dp2", False), ("tp2 sp dp16 order=dp-tp-cp-ep-pp", False)],
)
def test_fused_overlap_ends_at_the_nvlink_domain(text: str, within: bool) -> None:
    """Userbuffers need NVLink between all members: over nodes a step is that of Megatron's own
    overlap, and inside a node it is faster."""
    asked = Request(model="llama-3.1-8b", cluster="h100-sxm:32", seq_len=8192, global_batch=32)
    problem = api_problem(asked)
    assert problem.runtime.tp_overlap is TpOverlap.FUSED
    grid = parse_grid(f"{text} mbs1 zero1")
    fused, plain = (simulate_grid(p, grid) for p in (problem, without_fused_overlap(problem)))
    assert (fused.step_time_s == plain.step_time_s) == (not within)
    assert (fused.need == plain.need) == (not within)
    assert fused.step_time_s <= plain.step_time_s
