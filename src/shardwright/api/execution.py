"""A plan, executed."""

from __future__ import annotations

from shardwright.api.problems import problem_of
from shardwright.errors import DataError, UsageError
from shardwright.execute.proof import Proof
from shardwright.report.simulation_file import Saved
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid_plan import plan_of


def execution(stored: Saved) -> Proof:
    """Run a small model of the same structure under a stored plan on virtual devices, and compare it with the unsplit model.

    Raises:
        UsageError: PyTorch is not installed. StrategyError: the plan holds what is not executed.
        DataError: loss or a gradient differs.
    """
    try:
        from shardwright.execute.prove import prove  # PyTorch is an extra
    except ImportError as error:
        raise UsageError("--execute needs PyTorch", hint="pip install 'shardwright[run]'") from error
    request = stored.request if isinstance(stored, Simulation) else stored[0]
    problem = problem_of(request)
    plan, grid = (stored.plan, stored.grid) if isinstance(stored, Simulation) else (stored[1].plan, stored[1].grid)
    if plan is None:
        assert grid is not None
        plan = plan_of(grid, model=problem.model, global_batch=problem.job.global_batch)
    found = prove(problem.model, problem.job, plan)
    if not found.equal:
        name, difference = found.worst
        raise DataError(
            f"under the plan the loss differs by {found.loss_difference:.1e} and the gradient of {name} by {difference:.1e}",
            hint="this is an error of Shardwright: report it with the plan",
        )
    return found
