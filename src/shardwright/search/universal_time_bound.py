"""Lower bounds of the step time that hold for every plan, inside a space or not."""

from __future__ import annotations

from shardwright.cost.kernels.problem_accelerator_rates import problem_machine
from shardwright.cost.network.networks_of_plan_devices import kind_problem
from shardwright.cost.step.model_flops import model_flops
from shardwright.program.training_problem import Problem


def universal_bound(problem: Problem, devices: int) -> float:
    """Lower bound in seconds of any plan's step: model FLOPs over the rates of equal devices.

    Model FLOPs over the rate of all devices on endless GEMMs, or on attention if that is faster.
    """
    machine = problem_machine(problem)
    rate = machine.peak * machine.gemm.compute_efficiency / machine.gemm.sustained
    return model_flops(problem)[0] / (max(rate, machine.attention_peak) * devices)


def universal_seconds(problem: Problem) -> float:
    """Lower bound in seconds of any plan's step: model FLOPs over the rates of all devices.

    Model FLOPs over the summed rates of all devices of all kinds, without jitter.
    """
    cluster = problem.cluster
    rate, first = 0.0, 0
    for group in cluster.groups:
        rate += (
            group.count * group.kind.num_devices / universal_bound(kind_problem(problem, first), 1)
        )
        first += group.count * group.kind.num_devices
    return 1.0 / rate
