"""Model FLOPs of a step, from which MFU and the lower bound at peak are computed."""

from __future__ import annotations

from functools import lru_cache
from math import inf
from typing import Final

import numpy as np

from shardwright.cost.kernels.gemm_element_attention_seconds import attention_flops
from shardwright.model.ir.block import MEMORY
from shardwright.model.tensors_without_gradient import computes_input_gradient, without_gradient
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem

LONGEST_STEP_S: Final = 1e4
"""At the devices' peak: a thousandth of what the simulated clock counts to (2^63 ps = 107 days), as
no step is, nor a poor plan's."""


def model_flops(problem: Problem) -> tuple[float, float]:
    """Model FLOPs of a step: with attention under the mask, and with the full square.

    Forward and backward, no recompute.

    Forward: GEMMs 2 x active parameters x tokens, attention 2 x tokens x keys x (head_dim +
    value_dim) x heads; as much for input gradients of GEMMs and for weight gradients of trained
    parameters, twice as much for attention: 3 x forward where all is trained, 1 x of operators
    before anything trained (`model.tensors_without_gradient`). Leaves out element-wise work, and
    the embedding lookup.
    """
    return _model_flops(Same(problem))


@lru_cache(maxsize=64)
def _model_flops(keyed_problem: Same[Problem]) -> tuple[float, float]:
    """Model FLOPs of a step, under the mask and with the full square (cached)."""
    problem = keyed_problem.value
    causal: float = 0.0
    full: float = 0.0
    job = problem.job
    for run_ in problem.model.runs:
        block = problem.model.blocks[run_.block]
        tokens = job.tokens(block.sequence) or job.sequence_length
        constant = without_gradient(block)
        for o in block.operators:
            weight, trained = (
                float(sum(p.size for p in o.parameters if p.trainable >= least))
                for least in (False, True)
            )
            if o.kind.value not in ("linear", "grouped-linear"):
                weight = trained = 0.0
            if o.kind.value == "grouped-linear" and o.experts is not None:
                weight, trained = (
                    size * o.experts.topk / o.experts.experts for size in (weight, trained)
                )
            # Keys of cross-attention are projected once for every position of the memory.
            input_tokens = job.tokens(block.memory) if o.inputs == (MEMORY,) else tokens
            needs_input_gradient = computes_input_gradient(o, constant)
            dense = 2.0 * ((1.0 + needs_input_gradient) * weight + trained) * input_tokens
            scores = square = 0.0
            if o.attention is not None:
                context = (job.tokens(block.memory) or tokens) if o.attention.cross else tokens
                heads = np.array([o.attention.heads])
                count = np.array([tokens])
                scores = float(
                    attention_flops(o.attention, tokens=count, heads=heads, context=context)[0]
                )
                square = float(
                    attention_flops(
                        o.attention, tokens=count, heads=heads, context=context, causal=False
                    )[0]
                )
            causal += run_.count * (dense + (1 + 2 * needs_input_gradient) * scores)
            full += run_.count * (dense + (1 + 2 * needs_input_gradient) * square)
    return causal * job.global_batch, full * job.global_batch


def seconds_at_peak(problem: Problem) -> float:
    """Lower bound of the step in seconds: model FLOPs at all devices' peak; inf without a peak.

    Infinite where the devices have no units for the job's precision.

    Llama 3.1 405B, 2,048 sequences of 8,192 tokens on 16,384 H100: 4.23e19 FLOPs at 1.62e19 FLOP/s
    are 2.61 s.
    """
    peak = sum(
        group.count * group.kind.num_devices * group.kind.accelerator.peak(problem.job.compute)
        for group in problem.cluster.groups
    )
    return model_flops(problem)[0] / peak if peak else inf
