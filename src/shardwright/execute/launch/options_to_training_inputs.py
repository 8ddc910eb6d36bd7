"""Optimizer, parameters, evaluation data, number formats and native grid of a run's options."""

from __future__ import annotations

from dataclasses import replace

import torch

from shardwright.errors import StrategyError, UsageError
from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.device_state.stored_parameter_parts import Source
from shardwright.execute.launch.run_options_and_report import (
    NATIVE,
    OWN,
    RunOptions,
)
from shardwright.execute.launch.train_rank_by_interpreter import PeriodicEvaluation
from shardwright.execute.native.grids_that_torch_can_run import (
    require_expressible_grid,
)
from shardwright.execute.numerics.base.run_precision import (
    RunPrecision,
    precision_of,
    uniform_precision,
)
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.token_batches import open_tokens
from shardwright.execute.weights.read_weights import open_weights
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import KINDS
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.grid.plan_to_grid_and_order_table import grid_form
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.plan.plan import Plan


def adamw_of_options(options: RunOptions) -> AdamW:
    """AdamW settings from the run's options."""
    return AdamW(
        rate=options.rate,
        betas=options.betas,
        eps=options.eps,
        decay=options.decay,
        clip=options.clip,
        curve=options.rates,
        no_decay=options.no_decay,
    )


def initial_parameters(problem: Problem, options: RunOptions) -> Source:
    """Source of a run's initial parameters: a folder of weights, or draws from the seed.

    Raises:
        DataError: the folder's weights are of another model, or incomplete.
    """
    if options.weights is None:
        return InitialValues(model=problem.model, seed=options.seed, dtype=torch.float32)
    return open_weights(
        options.weights, model=problem.model, dtype=torch.float32, seed=options.seed
    )


def evaluation_of_options(
    problem: Problem, options: RunOptions, share: tuple[int, int]
) -> PeriodicEvaluation | None:
    """Evaluation that options ask for, or None; `share` (rank, ranks): its part of token checks."""
    if not options.eval_data:
        return None
    tokens = open_tokens(dict(options.eval_data), model=problem.model, job=problem.job, share=share)
    all_batches = tokens.windows // tokens.samples
    return PeriodicEvaluation(
        batches=tokens.batch,
        count=min(options.eval_batches or all_batches, all_batches),
        every=options.eval_every or options.steps,
        report=lambda step, loss: None,
    )


def precision_of_options(problem: Problem, options: RunOptions) -> RunPrecision:
    """Number formats of a run: the job's, or one format for all."""
    if options.formats == "job":
        return precision_of(problem.job, gradient=problem.runtime.gradient_dtype)
    return uniform_precision(torch.float32 if options.formats == "fp32" else torch.float64)


def native_grid(
    problem: Problem,
    plan: Plan,
    options: RunOptions,
    *,
    settings: Settings,
    on: torch.device,
    backend: str,
) -> tuple[Grid, Table | None]:
    """The grid that PyTorch's engine runs for a plan, and its order table (None: a named order).

    Raises:
        StrategyError: native.grid if no grid describes the plan; others of
        `native.grids_that_torch_can_run`. UsageError: a trace would have other actions than the
        plan; ranks share a GPU.
    """
    grid_and_order = grid_form(plan, model=problem.model)
    if grid_and_order is None:
        raise StrategyError(
            "no grid says this plan, and PyTorch's engine runs grids",
            hint=f"--backend {OWN} runs any plan",
            rule="native.grid",
        )
    if (
        options.trace
        and grid_and_order[0].pp == 1
        and any(KINDS[kind] in "IW" for kind in action_rows(plan).kind)
    ):
        # Its trace would not have the plan's actions.
        raise UsageError(
            f"--backend {NATIVE} runs whole backwards without pp,"
            f" {grid_and_order[0].schedule} has them in halves",
            hint=f"schedule=1f1b, or --backend {OWN}",
        )
    if on.type == "cuda" and not backend:
        raise UsageError(
            f"--backend {NATIVE} needs a GPU for each rank",
            hint="--on cpu, or fewer ranks on this host",
        )
    require_expressible_grid(
        replace(problem.model, settings=settings), grid_and_order[0], job=problem.job
    )
    return grid_and_order
