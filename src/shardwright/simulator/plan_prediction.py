"""From a problem and any general plan to a prediction: what `simulator.evaluate.predict` says of grids."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from shardwright.cost.model_flops import model_flops
from shardwright.cost.plan_network import kind_of, of_kind
from shardwright.cost.tables import problem_machine
from shardwright.program.problem import Problem
from shardwright.simulator.evaluate import problem_sources
from shardwright.simulator.interval import doubts, interval
from shardwright.simulator.plan_breakdown import critical_class, plan_breakdown
from shardwright.simulator.plans import PlanResult, simulate_plan
from shardwright.simulator.prediction import Prediction, Source, StageMemory
from shardwright.strategy.plan import Plan


def predict_plan(problem: Problem, plan: Plan, result: PlanResult | None = None) -> Prediction:
    """Time and memory of one legal plan.

    Its `stages` are the classes of devices that do the same, in the order of the Program, each with how many devices it has. The worst
    device is the one that has the largest share of its memory filled: if that one fits, all do. Model FLOPs are over the sum of the
    peaks of all devices of the plan, whether they take part in a stage or not. The interval is that of the critical class's kind.

    Left out: which table answered for which kernel (`cost.answered` reads grids).

    Args:
        result: what `simulate_plan` gave for `plan`, if it is known already.

    Raises:
        StrategyError: as `simulate_plan`.
    """
    done = result or simulate_plan(problem, plan)
    step, classes = done.step_time_s, done.program.classes
    kinds = [_kind(problem, c.devices[0]) for c in classes]
    capacity = [kind_memory(problem, kind) for kind in kinds]
    worst = max(range(len(classes)), key=lambda k: (done.memory[k].reserved / capacity[k], -k))
    parts = plan_breakdown(done)
    critical = _of_kind(problem, kinds[critical_class(done)])
    found = doubts(critical, parts=parts, step_s=step)
    peak = sum(problem_machine(_of_kind(problem, kind)).peak * count for kind, count in _kinds(problem, plan).items())
    causal, full = model_flops(problem)
    return Prediction(
        step_time_s=step,
        interval_s=interval(step, found),
        doubts=found,
        tokens_per_s=problem.job.tokens_per_step / step,
        tokens_per_s_per_device=problem.job.tokens_per_step / step / plan.devices,
        mfu_causal=causal / step / peak,
        mfu_full=full / step / peak,
        allocated_bytes=done.memory[worst].allocated,
        reserved_bytes=done.memory[worst].reserved,
        capacity_bytes=capacity[worst],
        stages=_stages(problem, done.memory, capacity),
        breakdown_s=parts,
        sources=_sources(problem, plan),
    )


def _stages(problem: Problem, memory: tuple[StageMemory, ...], capacity: list[int]) -> tuple[StageMemory, ...]:
    """Each class with what its own devices have, where devices differ."""
    if problem.cluster.is_uniform:
        return memory
    return tuple(replace(one, capacity=room) for one, room in zip(memory, capacity, strict=True))


def kind_memory(problem: Problem, kind: int) -> int:
    """Bytes that a device of a node group has for the program."""
    return problem.cluster.groups[kind].kind.accelerator.memory_bytes


def _kind(problem: Problem, device: int) -> int:
    return 0 if problem.cluster.is_uniform else kind_of(problem.cluster, device)


def _of_kind(problem: Problem, kind: int) -> Problem:
    return problem if problem.cluster.is_uniform else replace(problem, cluster=of_kind(problem.cluster, kind))


def _kinds(problem: Problem, plan: Plan) -> Counter[int]:
    """Devices of the plan by node group."""
    return Counter(_kind(problem, device) for device in range(plan.devices))


def _sources(problem: Problem, plan: Plan) -> tuple[Source, ...]:
    """Those of every kind of node that the plan uses, each said once."""
    return tuple(dict.fromkeys(s for kind in sorted(_kinds(problem, plan)) for s in problem_sources(_of_kind(problem, kind))))
