"""Plans to export: of catalog models, on as many devices as a grid has."""

from __future__ import annotations

from typing import Any

import yaml

from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.requested_model_with_teacher import requested_model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_rules import GridFacts
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from tests.jobs import training_job

BATCH, LENGTH = 64, 8192


def stored(
    grid: Grid,
    *,
    model: str = "llama-3.1-8b",
    runtime: str = "torchtitan",
    device: str = "h100-sxm",
    train: str = "",
    teacher: str = "",
) -> PlanOfProblem:
    cluster = f"{device}:{grid.devices}"
    problem = Problem(
        model=requested_model(model, train=train, teacher=teacher),
        cluster=parse_cluster(cluster),
        job=training_job(seq_len=LENGTH, global_batch=BATCH),
        runtime=load_runtime(runtime),
    )
    plan = plan_of(grid, model=problem.model, global_batch=BATCH)
    return PlanOfProblem(
        name=print_grid(grid),
        problem=problem,
        plan=plan,
        grid=grid,
        cluster=cluster,
        step_time_s=1.0,
    )


def facts_of(grid: Grid, model: str) -> GridFacts:
    return grid_facts(load_model(model), devices=grid.devices, global_batch=BATCH, seq_len=LENGTH)


def legal(grid: Grid, model: str) -> bool:
    return not violations(grid, facts=facts_of(grid, model), general=True)


def read_yaml(text: str) -> Any:
    """What YAML says; by its library in C where that is, which takes a tenth of the time."""
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
