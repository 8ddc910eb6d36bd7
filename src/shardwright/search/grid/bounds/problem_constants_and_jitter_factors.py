"""Constants of a problem for the B0 bound kernel, and the jitter factors of its plans."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.cost.bounds.compiled_bound_array_records import ProblemNumbers
from shardwright.cost.bounds.straggler_jitter import jitter_factor
from shardwright.cost.buffers.nccl_and_overlap_buffers_and_device_context import context_bytes
from shardwright.cost.step.strategy_rank_bytes import reserve_factor
from shardwright.cost.tables.bytes_per_parameter_and_update_traffic import (
    frozen_shard_bytes,
    host_update_rate,
    narrow_copies,
    own_gradient_bytes,
    shard_bytes,
    update_bytes,
)
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem


def least_jitter(problem: Problem, devices: int) -> float:
    """Jitter factor for a lower bound: the step's factor, reduced by the rounding of clocks.

    Clocks of B1 and S are whole picoseconds, and no task is shorter than a microsecond.
    """
    return jitter_factor(problem, devices) * (1 - 1e-6)


def jitters(problem: Problem, devices: IntArray) -> FloatArray:
    """(n,) jitter factors for lower bounds of many plans, by their numbers of devices."""
    numbers, place = np.unique(devices, return_inverse=True)
    return _jitters(Same(problem), tuple(numbers.tolist()))[place.reshape(-1)]


@lru_cache(maxsize=64)
def _jitters(problem: Same[Problem], devices: tuple[int, ...]) -> FloatArray:
    """Cached jitter factors for each number of devices."""
    return np.array([least_jitter(problem.value, number) for number in devices])


def facts_of(problem: Problem, *, devices: int, capacity: float) -> ProblemNumbers:
    """Constants of the problem for the B0 kernel."""
    device, runtime, job = problem.cluster.node.accelerator, problem.runtime, problem.job
    kinds = [i for i, b in enumerate(problem.model.blocks) if b.is_layer]
    return ProblemNumbers(
        # Reserved bytes are whole, rounded down: less than one more byte still fits.
        capacity=capacity + 1.0,
        workspace=float(runtime.workspace_bytes),
        context=float(context_bytes(problem)),
        # As if all parameters were as narrow as those of GEMMs: at most the bytes of any mixture.
        parameter_bytes=job.parameter.bits / 8 + min(narrow_copies(problem), 0.0),
        shard_bytes=shard_bytes(problem),
        frozen_shard_bytes=frozen_shard_bytes(problem),
        gradient_bytes=runtime.gradient_dtype.bits / 8,
        own_gradient_bytes=float(own_gradient_bytes(problem)),
        state_bytes=float(problem.optimizer.state_bytes),
        prefetch=float(runtime.gather_prefetch),
        reuse=float(runtime.reuse_elements),
        update_bytes=update_bytes(problem),
        bandwidth=device.memory_bandwidth * device.element_efficiency,
        host_rate=host_update_rate(problem, zero=0),
        left_rate=host_update_rate(problem, zero=2),
        jitter=least_jitter(problem, devices),
        every_microbatch=runtime.reduce_every_microbatch,
        gradients_leave=runtime.gradients_on_host,
        overlap_gather=runtime.overlap_param_gather,
        blocks_plain=runtime.blocks_sends(1),
        blocks_several=runtime.blocks_sends(2),
        layer_block=kinds[0] if len(kinds) == 1 else -1,
        blocks=len(problem.model.blocks),
        layer_rows=0,
        reserve=reserve_factor(problem),
    )
