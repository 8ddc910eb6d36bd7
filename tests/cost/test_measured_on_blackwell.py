"""Passes over whole gradients, Triton's row kernels, waits of expert traffic and attention in long
runs, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.kernels.accelerator_rates import machine_of
from shardwright.cost.kernels.gemm_element_attention_seconds import (
    BACKWARD_FLOPS,
    ROW_KERNEL_RATE,
    attention_flops,
    attention_seconds,
    element_seconds,
)
from shardwright.cost.part_phase_recompute_keys import ELEMENT, EP
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import update_bytes
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.model.ir.operator import AttentionShape
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
    ExpertDispatch,
)
from shardwright.simulator.simulate_plan import simulate_grid
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.network.test_disable_fused_overlap_beyond_nvlink import (
    HEAD,
    plain,
    problem,
    seconds,
)
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.strategies import expert_model


@pytest.mark.parametrize("dp", [1, 4])
@pytest.mark.parametrize("passes", [0, 2])
@pytest.mark.parametrize("scales", [False, True])
def test_passes_over_whole_gradients(dp: int, passes: int, scales: bool) -> None:
    def optimizer(runtime: Runtime) -> float:
        return float(
            simulate_grid(problem(runtime), Grid(dp=dp, zero=1 if dp > 1 else 0))
            .costs.step(0, 0, 0)
            .optimizer_s[0]
        )

    none, some = (
        plain(gradient_dtype=Dtype.FP32, gradient_passes=number, scales_gradients=scaled)
        for number, scaled in ((0, False), (passes, scales))
    )
    device, made = accelerator("a100-sxm-80gb"), problem(none)
    rate = device.element_efficiency * device.memory_bandwidth
    elements = sum(
        np.prod([e.size for e in p.extents])
        for run in made.model.runs
        for _ in range(run.count)
        for o in made.model.blocks[run.block].operators
        for p in o.parameters
    )
    whole = 4 * (passes + (2 if scales and dp > 1 else 0))
    zeroed = update_bytes(made) - update_bytes(problem(some))
    assert zeroed == (4 if passes else 0)
    assert optimizer(some) - optimizer(none) == pytest.approx(
        elements * (whole - zeroed / dp) / rate, rel=1e-3, abs=1e-9
    )


@pytest.mark.parametrize(
    ("device", "slower"), [("a100-sxm-80gb", False), ("h100-sxm", False), ("b200-sxm", True)]
)
def test_row_kernels_are_limited_where_the_memory_is_faster(device: str, slower: bool) -> None:
    machine = machine_of(
        accelerator(device),
        compute=Dtype.BF16,
        attention=AttentionKernel.FLASH_2,
        elements=ElementKernels.FUSED,
    )
    traffic = np.array([1e8, 1e9])
    fused, by_row = (
        element_seconds(machine, traffic=traffic, one_pass=True, by_row=flag)
        for flag in (False, True)
    )
    assert np.all(by_row > fused) if slower else np.array_equal(by_row, fused)
    if slower:
        assert by_row == pytest.approx(traffic / ROW_KERNEL_RATE + machine.accelerator.launch_s)


def test_the_loss_is_a_row_kernel() -> None:
    fast, slow = (
        seconds(plain(loss_bytes=10, row_kernels=flag), Grid(), block=HEAD, device="b200-sxm")
        for flag in (False, True)
    )
    assert slow[0, ELEMENT] > fast[0, ELEMENT]
    assert np.array_equal(np.delete(slow, ELEMENT, axis=1), np.delete(fast, ELEMENT, axis=1))


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_expert_traffic_waits_for_its_members(ep: int) -> None:
    model = expert_model()
    wait = 1e-4

    def exchanged(runtime: Runtime, wait_s: float) -> float:
        made = problem_of(model, cluster_of(8, node=8), runtime=runtime, seq_len=1024)
        made = replace(
            made, constants=replace(made.constants, collective_wait_s=wait_s, host_launch=0.0)
        )
        table = layer_table(made, rows_of([Grid(dp=8, ep=ep)]))
        return float(table.seconds[:, :3, EP].sum())

    layers = sum(any(o.experts is not None for o in b.operators) for b in model.blocks)
    copies = plain(expert_dispatch=ExpertDispatch.ALL_TO_ALL)
    # Tokens and their weights there, results back; the same in backward.
    assert exchanged(copies, wait) - exchanged(copies, 0.0) == pytest.approx(
        6 * layers * wait * np.log2(ep)
    )
    once = plain(expert_dispatch=ExpertDispatch.DEDUPLICATED)
    assert exchanged(once, wait) == exchanged(once, 0.0)
    overlapped = plain(expert_overlap=True)
    assert exchanged(overlapped, wait) == exchanged(overlapped, 0.0)


@pytest.mark.parametrize(("head", "value", "fraction"), [(128, 128, 0.41), (192, 128, 0.31)])
def test_backward_attention_as_measured(head: int, value: int, fraction: float) -> None:
    device = accelerator("b200-sxm")
    machine = machine_of(
        device, compute=Dtype.BF16, attention=AttentionKernel.CUDNN, elements=ElementKernels.FUSED
    )
    shape = AttentionShape(heads=64, kv_heads=64, head_dim=head, value_dim=value)
    tokens, heads = np.array([4096]), np.array([64])
    spent = attention_seconds(
        machine, shape, tokens=tokens, heads=heads, context=4096, backward=True
    )
    flops = attention_flops(shape, tokens=tokens, heads=heads, context=4096)
    assert spent == pytest.approx(
        BACKWARD_FLOPS * flops / (fraction * device.peak(Dtype.BF16)) + device.launch_s
    )
    clocked = replace(machine, half=replace(machine.half, sustained=2 * machine.half.sustained))
    forward, again = (
        attention_seconds(m, shape, tokens=tokens, heads=heads, context=4096, backward=False)
        for m in (machine, clocked)
    )
    assert np.array_equal(forward, again)
