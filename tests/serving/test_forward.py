"""Kernels of a block's forward: norms that run with the sum before them, and element-wise work that
compiled code joins."""

from __future__ import annotations

import numpy as np
import pytest

from shardwright.cost.inference.block_forward_without_context_attention import (
    compiled_kernels,
    forward_program,
    forward_seconds,
    forward_works,
    joined_norms,
)
from shardwright.cost.inference.engine_collectives import engine_networks
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Precision
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.block import Block
from shardwright.serving.deployments.worker_pools import Worker
from shardwright.serving.step_times.build_step_table import products_of, worker_rows
from tests.serving.problems import EIGHT_BITS, PLAIN, problem

NARROW = Precision(attention=EIGHT_BITS, mlp=EIGHT_BITS, experts=EIGHT_BITS)


def block_called(model: str, name: str) -> Block:
    return next(block for block in load_model(model).blocks if block.name == name)


@pytest.mark.parametrize(
    ("model", "block", "joined"),
    [
        ("llama-3.1-8b", "layer", {"norm1", "norm2"}),
        ("llama-3.1-8b", "head", {"norm"}),
        ("llama-3.1-8b", "embed", set()),
        # Norms of latents, and of queries and keys, read products: nothing was added to them.
        ("deepseek-v3", "moe", {"norm1", "norm2"}),
        ("qwen3-235b-a22b", "moe", {"norm1", "norm2"}),
    ],
)
def test_norms_of_the_stream_run_with_the_sum_before_them(
    model: str, block: str, joined: set[str]
) -> None:
    assert joined_norms(forward_program(block_called(model, block), routed=False)) == joined


@pytest.mark.parametrize(("precision", "count"), [(PLAIN, 8), (NARROW, 9)])
def test_element_wise_work_between_products_is_one_compiled_kernel(
    precision: Precision, count: int
) -> None:
    """Of a layer: four products; rotary; residual and norm; activation; residual, and the next
    layer's norm. Of casts to 8 bits the one behind the attention core has no kernel to join.
    """
    asked = problem("llama-3.1-8b", "h100-sxm:1", precision=precision)
    program = forward_program(block_called("llama-3.1-8b", "layer"), routed=False)
    operators = {o.name: o for o in program.operators}
    assert compiled_kernels(forward_works(program), operators, products_of(asked)) == count


def seconds(tp: int, *, gap_s: float) -> float:
    """Element-wise seconds of a layer for a token."""
    asked = problem("llama-3.1-8b", "h100-sxm:8")
    rows = worker_rows(Worker(tp=tp), np.array([1]))
    networks = engine_networks(asked.cluster, asked.engine)
    block = block_called("llama-3.1-8b", "layer")
    found = forward_seconds(
        block, rows, products=products_of(asked), networks=networks, skew=1.0, gap_s=gap_s
    )
    return float(found.seconds[2, 0])


def test_a_joined_norm_has_no_gap_of_its_own() -> None:
    """Rotary, activation and two residuals have one each; where sums over ranks take the residual
    in, the activation and rotary alone."""
    assert seconds(1, gap_s=1.0) - seconds(1, gap_s=0.0) == pytest.approx(4.0)
    assert seconds(8, gap_s=1.0) - seconds(8, gap_s=0.0) in (pytest.approx(2.0), pytest.approx(4.0))
