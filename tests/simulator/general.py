"""Small problems for general plans on nodes of eight devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright.cost.step.stage_action_seconds import StageCosts
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator import simulate_plan as plan_simulator
from shardwright.simulator.simulate_plan import SimulatedPlan, simulate_grid, simulate_plan
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.parse_plan import parse_plan
from tests.jobs import training_job
from tests.strategy.zoo_models import dense

SEQ = 64


def problem_for(
    model: Model, *, batch: int, cluster: str = "h100-sxm:8", seq_len: int = SEQ
) -> Problem:
    """Training of `model`."""
    job = training_job(seq_len=seq_len, global_batch=batch)
    return Problem(
        model=model, cluster=parse_cluster(cluster), job=job, runtime=load_runtime("megatron-core")
    )


def run_text(text: str, *, batch: int = 8, seq_len: int = SEQ, pcie: float = 0.0) -> SimulatedPlan:
    """The plan of this text for a small dense model, simulated.

    Args:
        pcie: bytes/s between a device and its host; 0 = the catalog's.
    """
    problem = problem_for(dense(), batch=batch, seq_len=seq_len)
    return simulate_plan(with_pcie(problem, pcie) if pcie else problem, parse_plan(text))


def with_pcie(problem: Problem, rate: float) -> Problem:
    """The problem on nodes whose devices reach their host at `rate` bytes/s."""
    (group,) = problem.cluster.groups
    link = group.kind.host.pcie
    host = replace(
        group.kind.host, pcie=replace(link, bandwidth=link.bandwidth * rate / link.achieved)
    )
    return replace(
        problem,
        cluster=replace(
            problem.cluster, groups=(replace(group, kind=replace(group.kind, host=host)),)
        ),
    )


def two_stages(*lines: str, order: str = "1f1b", pcie: float = 0.0) -> SimulatedPlan:
    """Four layers on devices 0 and 1, four on 2 and 3; 8 samples in 4 microbatches; `lines` of both
    stages."""
    placed = "".join(f"    {line}\n" for line in ("all = t2", *lines))
    text = (
        "plan two devices 4\nlane main samples 8 in 4\n  stages embed+4, 4+head on 0,"
        f" 2\n{placed}order {order}(main)\n"
    )
    return run_text(text, pcie=pcie)


def simulate_with(
    problem: Problem, grid: Grid, change: Callable[[StepCosts], StepCosts]
) -> SimulatedPlan:
    """The grid with changed prices of every family."""
    price = plan_simulator.price_stages

    def changed(*asked: object) -> StageCosts:
        costs = price(*asked)  # type: ignore[arg-type]
        families = {
            place: replace(family, slices=tuple(map(change, family.slices)))
            for place, family in costs.families.items()
        }
        pieces = {place[:2]: int(family.slices[0].pieces[0]) for place, family in families.items()}
        return replace(costs, families=families, pieces=pieces)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_simulator, "price_stages", changed)
        return simulate_grid(problem, grid)
