"""Bytes of one parameter beside its 16-bit weight, traffic of its update, and host update rate."""

from __future__ import annotations

from math import inf
from typing import Final

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.kernels.quantization_passes import quantised_bytes, quantised_copies
from shardwright.program.training_problem import Problem
from shardwright.runtime.framework_description import Runtime

_OPTIMIZER: Final = "optimizer"
"""The update's name in `Problem.free_parts`."""


def update_bytes(problem: Problem) -> float:
    """Memory traffic of one element's optimizer update in bytes.

    States read and written, gradient read twice (norm, update), parameter written, gradient zeroed
    (with the whole buffer where the runtime's `gradient_passes` count it). 0 if the update is free.
    """
    if _OPTIMIZER in problem.free_parts:
        return 0.0
    job, runtime = problem.job, problem.runtime
    gradient = (2.0 if runtime.gradient_passes else 3.0) * (runtime.gradient_dtype.bits // 8)
    return 2.0 * problem.optimizer.state_bytes + gradient + job.parameter.bits // 8


def gradient_pass_bytes(problem: Problem, holders: IntArray) -> IntArray:
    """(n,) bytes of memory traffic per element of passes over all gradients at the step's end.

    The runtime's passes, and two where it scales gradients for several `holders` (n,) of a
    parameter. 0 if the update is free.
    """
    if _OPTIMIZER in problem.free_parts:
        return np.zeros_like(holders)
    runtime = problem.runtime
    scaled = (holders > 1) & runtime.scales_gradients
    passes: IntArray = runtime.gradient_passes + np.where(scaled, 2, 0)
    return passes * (runtime.gradient_dtype.bits // 8)


def shard_bytes(problem: Problem) -> float:
    """Bytes an element of ZeRO-3's working parameter shard on the device; 0 if there is none.

    The optimizer's master copy.
    """
    runtime = problem.runtime
    return (
        0.0
        if runtime.gathers_from_master or runtime.parameters_on_host
        else problem.job.parameter.bits / 8
    )


def frozen_shard_bytes(problem: Problem) -> float:
    """Bytes an element of a frozen parameter's ZeRO-3 shard on the device; 0 if it is on the host.

    Of any parameter without an optimizer state of the device's own. Left out: a base that is kept
    in fp32.
    """
    return 0.0 if problem.runtime.parameters_on_host else problem.job.parameter.bits / 8


def narrow_copies(problem: Problem) -> float:
    """Bytes an element of kept 8- or 4-bit weights below ZeRO-3, less a replaced copy; else 0.

    Transformer Engine keeps quantised weights from one microbatch to the next, in as many forms as
    GEMMs need; where the runtime keeps parameters in 8 bits there are no others. Others quantise a
    weight for each GEMM.

    Source: Transformer Engine, docs/features/low_precision_training/performance_considerations at
    0bd7f52c01f1 (memory usage), read.
    """
    machine = problem_machine(problem)
    if machine.compute.bits > 8 or not problem.runtime.saves_quantized:
        return 0.0
    copies_bytes = quantised_bytes(machine) * quantised_copies(machine)
    return (
        copies_bytes - problem.job.parameter.bits / 8
        if problem.runtime.gathers_narrow and machine.compute.bits == 8
        else copies_bytes
    )


def own_gradient_bytes(problem: Problem) -> int:
    """Bytes of a parameter's gradient beside its accumulated copy (`main_grad_copy`); else 0.

    From ZeRO-2 on gradients are freed when they are reduced. Source: `Runtime.main_grad_copy`.
    """
    return problem.job.parameter.bits // 8 if problem.runtime.main_grad_copy else 0


def gradients_leave(runtime: Runtime, *, zero: int) -> bool:
    """True if gradients of offloaded optimizer states are kept in host memory alone.

    Under ZeRO stage `zero`.

    Elements whose optimizer states are offloaded.
    """
    return runtime.gradients_on_host and zero >= 2


def host_update_rate(problem: Problem, *, zero: int) -> float:
    """Elements/s that a device's share of the host updates, transfers included; inf if free.

    Gradient down, update in host memory, parameter up, in series.

    Gradients that left as they were reduced are in host memory already
    (`sharding_copies_and_overlap_slowdown.host_gradient_seconds`). Infinite if the update is free.
    """
    if _OPTIMIZER in problem.free_parts:
        return inf
    node, job, runtime = problem.cluster.node, problem.job, problem.runtime
    already_on_host = gradients_leave(runtime, zero=zero) and runtime.reduce_every_microbatch
    gradient = 0 if already_on_host else runtime.gradient_dtype.bits // 8
    over_pcie = (gradient + job.parameter.bits // 8) / node.host.pcie.achieved
    in_memory = update_bytes(problem) * node.num_devices / node.host.memory_bandwidth
    return 1.0 / (over_pcie + in_memory)
