"""Whether a strategy is legal for a problem, the runtime's own rules included."""

from __future__ import annotations

from shardwright.api.problems import facts_of
from shardwright.errors import StrategyError
from shardwright.program.problem import Problem
from shardwright.schedules.grid_order import order_violations
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.grid.rules import SCHEDULES, require_legal
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.verify.check import require_valid


def check_grid(problem: Problem, grid: Grid) -> None:
    """Raise the first rule that `grid` breaks for `problem`, the schedule's and the runtime's own included."""
    require_legal(grid, facts=facts_of(problem), general=True)
    if grid.schedule not in SCHEDULES:
        for broken in order_violations(grid, microbatches=problem.job.global_batch // (grid.dp * grid.microbatch)):
            raise StrategyError(broken.message, hint=broken.hint, rule=broken.rule)
    _check_zero(problem, zero=grid.zero, pipeline=grid.pp > 1)


def check_plan(problem: Problem, plan: Plan) -> None:
    """Raise the first rule that `plan` breaks for `problem`, the runtime's own included; not yet whether its orders can run."""
    if plan.devices > problem.cluster.num_devices:
        raise StrategyError(
            f"the plan is for {plan.devices} devices, the cluster has {problem.cluster.num_devices}",
            hint="a cluster of as many devices or more",
            rule="plan.devices",
        )
    require_valid(plan, model=problem.model, global_batch=problem.job.global_batch, seq_len=problem.job.sequence_length)
    zero = max((3 if s.parameter != 1 else 2 if s.gradient != 1 else int(s.optimizer != 1) for s in plan.shards), default=0)
    bases = {(stage.base, stage.placements) for lane in plan.lanes for stage in lane.stages}
    _check_zero(problem, zero=zero, pipeline=len(bases) > 1)


def _check_zero(problem: Problem, *, zero: int, pipeline: bool) -> None:
    runtime = problem.runtime
    if zero not in runtime.zero_stages or (pipeline and zero > runtime.zero_with_pipeline):
        raise StrategyError(
            f"{runtime.name} has no zero{zero}{' with pp above 1' if pipeline else ''}",
            hint=f"stages {', '.join(map(str, runtime.zero_stages))}, with a pipeline up to {runtime.zero_with_pipeline}"
            + ("; zero3 of frozen parameters is not priced yet" if problem.model.base is not None else ""),
            rule="runtime.zero",
        )
