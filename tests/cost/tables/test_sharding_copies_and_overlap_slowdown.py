"""What sharded data parallelism costs the compute stream, by hand; and what each fitted constant of
kernels acts on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.kernels.accelerator_rates import machine_of
from shardwright.cost.kernels.quantization_passes import (
    COMPILED_REDUCTION,
    COMPILED_TRANSPOSE,
    weight_bytes,
)
from shardwright.cost.step.shared_scalar_cost_formulas import backward_layer, beside, forward_layer
from shardwright.cost.step.strategy_task_seconds import StepCosts, step_costs
from shardwright.cost.tables.mesh_synchronisation_table import mesh_table
from shardwright.cost.tables.sharding_copies_and_overlap_slowdown import copy_seconds
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, slowdown_beside
from shardwright.kernel_compilation import python_form
from shardwright.program.training_problem import Problem
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    Scaling,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import price_grid, rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model

MODEL = dense_model(layers=4)
COPIES = replace(
    RUNTIME,
    name="copies",
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=3,
    bucket_bytes=0,
    gather_copy_bytes=4,
    reduce_copy_bytes=6,
)
LAYER, ELEMENT = 1, 2


def problem(*, devices: int = 64, runtime: object = COPIES, **constants: float) -> Problem:
    made = problem_of(MODEL, cluster_of(devices, node=8), runtime=runtime, seq_len=512)  # type: ignore[arg-type]
    return replace(made, constants=replace(SHIPPED, **constants))


def slowdown(grid: Grid, **constants: float) -> float:
    priced = price_grid(problem(devices=max(grid.devices, 8), **constants), grid)
    return float(priced.meshes.slowdown[priced.mesh_row])


def costs(grid: Grid, **constants: float) -> StepCosts:
    made = problem(devices=grid.devices, **constants)
    return step_costs(made, grid, price_grid(made, grid))


def test_a_ring_inside_an_island_takes_all_its_channels() -> None:
    assert slowdown(Grid(dp=8), overlap_slowdown=1.6) == pytest.approx(1.6)


def test_a_group_with_one_member_a_node_takes_what_a_card_feeds() -> None:
    tiers = cluster_of(64, node=8).tiers()
    share = tiers[1].bandwidth / tiers[0].bandwidth
    assert 0.05 < share < 0.5
    assert slowdown(Grid(tp=8, dp=8), overlap_slowdown=1.6) == pytest.approx(1 + 0.6 * share)


def test_nothing_runs_beside_a_group_of_one() -> None:
    assert slowdown(Grid(tp=8), overlap_slowdown=1.6) == 1.0


def test_a_slowdown_never_speeds_kernels_up() -> None:
    assert slowdown_beside(replace(SHIPPED, overlap_slowdown=1.0), factor=1.2) == 1.0
    assert slowdown_beside(SHIPPED, factor=1.2) == 1.2


def test_copies_are_bytes_over_the_bandwidth_of_element_wise_kernels() -> None:
    made, rows = problem(devices=8), rows_of([Grid(dp=8), Grid(tp=8)])
    sync = mesh_table(made, rows, np.array([8, 1])).sync
    gather, again, reduce = copy_seconds(made, sync)
    device = made.cluster.node.accelerator
    bandwidth = device.memory_bandwidth * device.element_efficiency
    assert (
        gather[LAYER, 0] == again[LAYER, 0] == pytest.approx(4 * sync.dense[LAYER, 0] / bandwidth)
    )
    assert reduce[LAYER, 0] == pytest.approx(6 * sync.dense[LAYER, 0] / bandwidth)
    assert gather[LAYER, 1] == reduce[LAYER, 1] == 0.0


@pytest.mark.parametrize(
    ("compute", "device", "scaling", "gathered", "kept", "each"),
    [
        (Dtype.BF16, "h100-sxm", Scaling.CURRENT, 2, True, 0.0),
        (Dtype.FP8, "h100-sxm", Scaling.DELAYED, 2, True, 2 + 1),
        (Dtype.FP8, "h100-sxm", Scaling.CURRENT, 2, True, 2 + 2 + 1),
        (
            Dtype.FP8,
            "h100-sxm",
            Scaling.DELAYED,
            2,
            False,
            (3 + 3 * COMPILED_TRANSPOSE) / 2,
        ),
        (
            Dtype.FP8,
            "h100-sxm",
            Scaling.ROWWISE,
            2,
            False,
            (3 + 3 * COMPILED_REDUCTION) / 2,
        ),
        (Dtype.FP8, "h100-sxm", Scaling.CURRENT, 1, True, (0 + 1 + 1) / 2),
        (Dtype.FP8, "b200-sxm", Scaling.CURRENT, 1, True, 0.0),
        (Dtype.FP8, "b200-sxm", Scaling.MX, 2, True, 2 + 33 / 32),
        (Dtype.FP4, "b200-sxm", Scaling.MX, 2, True, 2 + 2 + 9 / 16),
    ],
)
def test_a_gathered_weight_is_read_and_written_once_a_pass(
    compute: Dtype, device: str, scaling: Scaling, gathered: float, kept: bool, each: float
) -> None:
    """Readings and writings of forward's and backward's form, counted by hand and averaged."""
    machine = machine_of(
        accelerator(device),
        compute=compute,
        attention=AttentionKernel.CUDNN,
        elements=ElementKernels.FUSED,
        scaling=scaling,
        saves_quantised=kept,
    )
    assert weight_bytes(machine, gathered=gathered) == pytest.approx(each)


@pytest.mark.parametrize("narrow", [True, False])
def test_weights_are_quantised_behind_each_gather(narrow: bool) -> None:
    """Matrices of products alone: neither embeddings nor gains; a shard of one is quantised once a
    step."""
    runtime = replace(COPIES, scaling=Scaling.CURRENT, gathers_narrow=narrow, saves_quantized=True)
    wide = problem(devices=8, runtime=runtime)
    made = replace(wide, job=replace(wide.job, compute=Dtype.FP8))
    rows = rows_of([Grid(dp=8), Grid(tp=8)])
    sync = mesh_table(made, rows, np.array([8, 1])).sync
    device = made.cluster.node.accelerator
    bandwidth = device.memory_bandwidth * device.element_efficiency
    more = copy_seconds(made, sync)[0] - copy_seconds(wide, sync)[0]
    assert 0 < sync.narrow[LAYER, 0] < sync.dense[LAYER, 0]
    assert more[LAYER, 0] == pytest.approx((1 if narrow else 5) * sync.narrow[LAYER, 0] / bandwidth)
    assert more[LAYER, 1] == more[0, 0] == 0.0


def test_only_gathered_layers_copy() -> None:
    assert forward_layer(5.0, 1.0, 0.5, 2, 1.5) == 5.0
    assert forward_layer(5.0, 1.0, 0.5, 3, 1.5) == python_form(beside)(5.5, 1.0, 1.5) == 6.0
    assert backward_layer(5.0, 1.0, 2.0, 0.0, 0.5, 0.25, 1, True, 1.5) == 5.0
    assert backward_layer(5.0, 1.0, 2.0, 0.0, 0.5, 0.25, 2, True, 1.5) == python_form(beside)(
        5.25, 2.0, 1.5
    )
    assert backward_layer(5.0, 1.0, 2.0, 0.0, 0.5, 0.25, 2, False, 1.5) == 5.0
    assert backward_layer(5.0, 1.0, 2.0, 0.0, 0.5, 0.25, 3, True, 1.5) == python_form(beside)(
        5.75, 3.0, 1.5
    )


def test_sums_over_replicas_of_their_own_run_beside_the_groups_collectives() -> None:
    def backward(apart: float) -> float:
        return backward_layer(1.0, 2.0, 7.0, apart, 0.0, 0.0, 3, True, 1.0)

    assert [backward(a) for a in (0.0, 3.0, 6.0, 7.0)] == [9.0, 6.0, 6.0, 7.0]


@pytest.mark.parametrize(
    "grid", [Grid(dp=8, zero=3), Grid(dp=8, zero=2), Grid(dp=8, zero=1), Grid(dp=16, pp=2, zero=1)]
)
def test_a_step_grows_with_the_slowdown(grid: Grid) -> None:
    seconds = [
        simulate_grid(problem(devices=grid.devices, overlap_slowdown=s), grid).step_time_s
        for s in (1.0, 1.4, 1.8)
    ]
    assert seconds == sorted(seconds)
    if grid.zero >= 2:
        assert seconds[0] < seconds[2]


def test_native_kernels_have_their_own_factor_in_eager_frameworks_only() -> None:
    def machine(elements: ElementKernels, **constants: float) -> tuple[float, float]:
        made = machine_of(
            accelerator("h100-sxm"),
            compute=Dtype.BF16,
            attention=AttentionKernel.FLASH_2,
            elements=elements,
            constants=replace(SHIPPED, **constants),
        )
        return made.passes, made.native_passes

    values = {"passes_eager": 4.0, "passes_native": 1.7, "passes_fused": 1.2}
    assert machine(ElementKernels.EAGER, **values) == (4.0, 1.7)
    assert (
        machine(ElementKernels.COMPILED, **values)
        == machine(ElementKernels.FUSED, **values)
        == (1.2, 1.2)
    )


def test_tritons_constant_scales_tritons_attention() -> None:
    def attention(kernel: AttentionKernel, value: float) -> float:
        made = problem(
            devices=8,
            runtime=replace(COPIES, name=kernel.value, attention_kernel=kernel),
            attention_triton=value,
        )
        # launches are not scaled: a long sequence drowns them
        made = replace(
            made, job=replace(made.job, sequences=(replace(made.job.sequences[0], tokens=65536),))
        )
        return float(price_grid(made, Grid(dp=8)).layers.seconds[LAYER, 0, 1, 0])

    assert attention(AttentionKernel.TRITON, 1.25) == pytest.approx(
        1.25 * attention(AttentionKernel.TRITON, 1.0), rel=0.02
    )
    assert attention(AttentionKernel.FLASH_2, 1.25) == attention(AttentionKernel.FLASH_2, 1.0)


def test_sums_of_gradients_are_kernels_of_their_own_unless_fused() -> None:
    def backward(elements: ElementKernels) -> float:
        made = problem(
            devices=8, runtime=replace(COPIES, name=elements.value, element_kernels=elements)
        )
        return float(price_grid(made, Grid(dp=8)).layers.seconds[LAYER, 1, ELEMENT, 0])

    # q, k and v read one input: two sums of three passes over it more.
    assert backward(ElementKernels.COMPILED) > backward(ElementKernels.FUSED)


def test_gradients_travel_in_the_wire_dtype() -> None:
    half = replace(COPIES, name="half", gradient_wire=Dtype.BF16)
    grid = Grid(dp=8)
    shard = np.array([8])
    whole = mesh_table(problem(devices=8), rows_of([grid]), shard).sync
    halved = mesh_table(problem(devices=8, runtime=half), rows_of([grid]), shard).sync
    assert (halved.reduce[LAYER] < whole.reduce[LAYER]).all()
    assert (halved.gather == whole.gather).all()


def test_kernels_that_cannot_fill_the_units_are_busier_than_their_rate() -> None:
    rates = {a.generation: a for a in accelerator("h100-sxm").attention}
    assert rates["flash-3"].reach == rates["cudnn"].reach == 1.0
    assert all(
        max(f for _, f in rates[name].forward) < rates[name].reach < 1.0
        for name in ("flash-1", "flash-2", "triton")
    )


@pytest.mark.parametrize("name", ["torchtitan", "llm-foundry"])
def test_fsdp_states_its_copies(name: str) -> None:
    assert load_runtime(name).reduce_copy_bytes > 0
