"""A deployment's pools under drawn requests: step tables, schedulers and the loop put together."""

from __future__ import annotations

from shardwright.errors import StrategyError
from shardwright.serving.deployment import Deployment, Pool, Role
from shardwright.serving.fleet import Fleet, Guessing
from shardwright.serving.on_worker import on_worker
from shardwright.serving.problem import ServingProblem
from shardwright.serving.requests import Requests, Served
from shardwright.serving.scheduler import scheduler_of
from shardwright.serving.step_prices import step_table
from shardwright.serving.loop import serve


def simulated(problem: ServingProblem, deployment: Deployment, requests: Requests, *, blocks: tuple[int, ...]) -> Served:
    """What becomes of the requests.

    Args:
        blocks: of the cache of each rank, a number for each pool.
    """
    if len(deployment.pools) > 1:
        raise StrategyError("prefill and decode pools are not simulated yet", hint="agg")
    (pool,) = deployment.pools
    own = on_worker(problem, pool.worker)
    return serve(requests, step_table(own, pool.worker), fleet_of(own, pool, blocks=blocks[0]))


def fleet_of(problem: ServingProblem, pool: Pool, *, blocks: int) -> Fleet:
    """The workers of a pool; the engine of `problem` is that of `on_worker`."""
    speculation = problem.job.speculation if pool.role is not Role.PREFILL else None
    return Fleet(
        scheduler=scheduler_of(problem.engine, pool.worker, blocks=blocks, role=pool.role),
        workers=pool.count,
        ranks=pool.worker.dpa,
        guessing=Guessing(acceptance=speculation.acceptance if speculation else 0.0, seed=problem.job.seed),
    )
