"""Rates of the accelerator of a problem."""

from __future__ import annotations

from functools import lru_cache

from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.program.identity_cache_keys import Same
from shardwright.program.training_problem import Problem


def problem_machine(problem: Problem) -> Machine:
    """Rates of the problem's (first) accelerator for the job's dtype and runtime's kernels."""
    return _machine(Same(problem))


@lru_cache(maxsize=256)
def _machine(keyed_problem: Same[Problem]) -> Machine:
    """Rates of the problem's (first) accelerator (cached by the problem's identity)."""
    problem = keyed_problem.value
    return machine_of(
        problem.cluster.node.accelerator,
        compute=problem.job.compute,
        attention=problem.runtime.attention_kernel,
        elements=problem.runtime.element_kernels,
        constants=problem.constants,
        eight_bit=problem.runtime.attention_eight_bit,
        scaling=problem.runtime.scaling,
        saves_quantised=problem.runtime.saves_quantized,
        free_parts=problem.free_parts,
    )
