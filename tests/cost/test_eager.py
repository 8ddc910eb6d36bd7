"""Eager kernels by count, and what a runtime's facts add to a layer's element-wise kernels, by
hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.cost.part_phase_recompute_keys import ELEMENT, PHASES
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.block.kernels import eager_kernel_bytes
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels, TpOverlap
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import RUNTIME, cluster_of, problem_of
from tests.strategies import dense_model

MODEL = dense_model(layers=4)
LAYER = next(i for i, b in enumerate(MODEL.blocks) if b.name == "layer")
TOKENS = 4096
DEVICE = accelerator("h100-sxm")
BANDWIDTH = DEVICE.element_efficiency * DEVICE.memory_bandwidth
BASE = replace(RUNTIME, name="eager", element_kernels=ElementKernels.EAGER)


def seconds(runtime: Runtime, *, tp: int = 1, **constants: float) -> np.ndarray:
    """(phases, ) seconds of element-wise kernels of one layer."""
    made = problem_of(MODEL, cluster_of(8, node=8), runtime=runtime, seq_len=TOKENS)
    made = replace(made, constants=replace(SHIPPED, host_launch=0.0, **constants))
    table = layer_table(made, rows_of([Grid(tp=tp, sp=tp > 1)]))
    return np.asarray(table.seconds[LAYER, :, ELEMENT, 0])


def phase(name: str) -> int:
    return PHASES.index(name)


def widths(kind: OperatorKind, *, written: bool) -> int:
    """Elements a token of all operators of `kind` in a layer."""
    chosen = [o for o in MODEL.blocks[LAYER].operators if o.kind is kind]
    assert chosen
    return sum(e.size for o in chosen for e in (o.writes if written else o.reads))


def test_chains_move_what_was_counted() -> None:
    once, twice = seconds(BASE, passes_eager=1.0), seconds(BASE, passes_eager=2.0)
    norm, rotary = (
        widths(OperatorKind.NORM, written=False),
        widths(OperatorKind.ROTARY, written=False),
    )
    gate = widths(OperatorKind.ACTIVATION, written=True)
    forward = (
        norm * eager_kernel_bytes.NORM_FORWARD
        + rotary * eager_kernel_bytes.ROTARY
        + gate * eager_kernel_bytes.GATE_FORWARD
    )
    backward = (
        norm * eager_kernel_bytes.NORM_BACKWARD
        + rotary * eager_kernel_bytes.ROTARY
        + gate * eager_kernel_bytes.GATE_BACKWARD
    )
    assert (twice - once)[phase("F")] == pytest.approx(forward * TOKENS / BANDWIDTH)
    assert (twice - once)[phase("I")] == pytest.approx(backward * TOKENS / BANDWIDTH)
    assert (twice - once)[phase("W")] == pytest.approx(
        norm * eager_kernel_bytes.NORM_GAIN * TOKENS / BANDWIDTH
    )


def test_fused_chains_leave_no_chain() -> None:
    fused = replace(BASE, fused_chains=True)
    assert seconds(fused, passes_eager=1.0) == pytest.approx(seconds(fused, passes_eager=2.0))
    assert (seconds(fused)[: phase("W")] < seconds(BASE)[: phase("W")]).all()


def test_a_norm_behind_a_cast_moves_the_cast_too() -> None:
    plain = replace(BASE, fused_chains=True)
    more = seconds(replace(plain, fp32_norms=True), passes_native=1.0) - seconds(
        plain, passes_native=1.0
    )
    norm = widths(OperatorKind.NORM, written=False) * TOKENS / BANDWIDTH
    # Without the cast: one read and one write of 2 bytes forward, two reads and a write backward,
    # two reads for the gain.
    assert more[phase("F")] == pytest.approx(norm * (eager_kernel_bytes.FP32_NORM_FORWARD - 4))
    assert more[phase("I")] == pytest.approx(norm * (eager_kernel_bytes.FP32_NORM_BACKWARD - 6))
    assert more[phase("W")] == pytest.approx(norm * (eager_kernel_bytes.FP32_NORM_GAIN - 4))


def test_checkpointed_norms_run_again_unless_the_layer_does() -> None:
    kept, again = seconds(BASE), seconds(replace(BASE, rebuilds_norms=True))
    norms = sum(o.kind is OperatorKind.NORM for o in MODEL.blocks[LAYER].operators)
    norm = (
        widths(OperatorKind.NORM, written=False)
        * eager_kernel_bytes.NORM_FORWARD
        * TOKENS
        * SHIPPED.passes_eager
        / BANDWIDTH
    )
    more = again - kept
    assert more[phase("I")] == pytest.approx(norm + norms * DEVICE.launch_s)
    assert again[phase("I")] + again[phase("R_full")] == pytest.approx(
        kept[phase("I")] + kept[phase("R_full")]
    )
    assert more[phase("F")] == 0.0


def test_pieces_of_a_reduction_are_summed_where_they_are_copied() -> None:
    serial = seconds(replace(RUNTIME, name="fused", tp_overlap=TpOverlap.FUSED), tp=4)
    copied = seconds(replace(RUNTIME, name="async", tp_overlap=TpOverlap.ASYNC), tp=4)
    hidden = MODEL.blocks[LAYER].operators[0].reads[0].size
    one = hidden * TOKENS * 2 * (1 + 1 / 4) / BANDWIDTH + DEVICE.launch_s
    # Behind two row-parallel products forward; backward the gradients of several projections are
    # summed first, which nothing joins.
    assert (copied - serial)[phase("F")] == pytest.approx(2 * one)
    assert (copied - serial)[phase("I")] == 0.0
    assert (
        seconds(replace(RUNTIME, tp_overlap=TpOverlap.ASYNC))[phase("F")]
        == seconds(replace(RUNTIME, tp_overlap=TpOverlap.FUSED))[phase("F")]
    )
