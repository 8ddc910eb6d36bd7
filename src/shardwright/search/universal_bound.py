"""Lower bounds of a step that hold for every plan, in a space or not."""

from __future__ import annotations

from shardwright.cost.kernels.problem_machine import problem_machine
from shardwright.cost.network.plan_groups import kind_problem
from shardwright.cost.step.model_flops import model_flops
from shardwright.program.problem import Problem


def universal_bound(problem: Problem, devices: int) -> float:
    """Lower bound in seconds of a step of any plan: model FLOPs over the rate of all devices on
    endless GEMMs.
    """
    machine = problem_machine(problem)
    rate = machine.peak * machine.gemm.compute_efficiency / machine.gemm.sustained
    return model_flops(problem)[0] / (max(rate, machine.attention_peak) * devices)


def universal_seconds(problem: Problem) -> float:
    """Lower bound in seconds of a step of any plan, without jitter: model FLOPs over the rate of
    all devices of all kinds together.
    """
    cluster = problem.cluster
    rate, first = 0.0, 0
    for group in cluster.groups:
        rate += (
            group.count * group.kind.num_devices / universal_bound(kind_problem(problem, first), 1)
        )
        first += group.count * group.kind.num_devices
    return 1.0 / rate
