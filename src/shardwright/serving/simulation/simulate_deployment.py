"""Simulate a deployment under a job's requests, from step tables and scheduler settings."""

from __future__ import annotations

import numpy as np

from shardwright.errors import StrategyError, UsageError
from shardwright.hardware.cluster import Cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ClosedLoop, Poisson
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.scheduler_settings import scheduler_settings
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Deployment, Worker, WorkerPool, WorkerRole
from shardwright.serving.simulation.closed_form_mean_estimate import (
    MeanEstimate,
    MeanLoad,
    estimate_stacked,
    stack_tables,
)
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.disaggregated_serving import serve_disaggregated
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import (
    DraftAcceptance,
    Fleet,
)
from shardwright.serving.simulation.kv_cache_transfer import CacheLink
from shardwright.serving.step_times.build_step_table import step_table
from shardwright.serving.step_times.worker_memory import cached_bytes
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests


def simulate_job(
    problem: ServingProblem, deployment: Deployment, *, blocks: tuple[int, ...]
) -> tuple[Requests, ServedRequests]:
    """(requests, outcome) of a job; a loop without burst runs twice, to spread its first arrivals.

    The first requests of a closed loop without a burst arrive spread over the mean time of a
    request in a run with a burst.

    Args:
        blocks: cache blocks of each rank, one number for each pool.
    """
    size = problem_on_worker(problem, deployment.pools[0].worker).engine.block_tokens
    requests = draw_requests(problem.job, block_tokens=size)
    served = simulate_requests(problem, deployment, requests, blocks=blocks)
    if not isinstance(problem.job.arrivals, ClosedLoop) or problem.job.arrivals.burst:
        return requests, served
    requests = draw_requests(
        problem.job, block_tokens=size, answer_s=float(np.nanmean(served.last_s - served.arrival_s))
    )
    return requests, simulate_requests(problem, deployment, requests, blocks=blocks)


def simulate_requests(
    problem: ServingProblem, deployment: Deployment, requests: Requests, *, blocks: tuple[int, ...]
) -> ServedRequests:
    """Simulate requests on one pool, or prefill and decode pools; `blocks` of a rank, by pool.

    Args:
        blocks: cache blocks of each rank, one number for each pool.
    """
    problems = [problem_on_worker(problem, pool.worker) for pool in deployment.pools]
    tables = [
        step_table(pool_problem, pool.worker)
        for pool_problem, pool in zip(problems, deployment.pools, strict=True)
    ]
    fleets = [
        fleet_of(pool_problem, pool, blocks=count)
        for pool_problem, pool, count in zip(problems, deployment.pools, blocks, strict=True)
    ]
    if len(fleets) == 1:
        return serve_requests(requests, tables[0], fleets[0])
    link = cache_link(problem, deployment)
    return serve_disaggregated(
        requests,
        (tables[0], tables[1]),
        (fleets[0], fleets[1]),
        link,
        think_s=problem.constants.request_s,
    ).served


def estimate_mean(problem: ServingProblem, deployment: Deployment, *, blocks: int) -> MeanEstimate:
    """Estimate mean latency and throughput of one aggregated pool; StrategyError for more pools.

    Args:
        blocks: cache blocks of each rank.

    Raises:
        StrategyError: prompts and answers have separate workers.
        UsageError: the arrivals are a trace, or their rate varies.
    """
    (pool, *other_pools), job = deployment.pools, problem.job
    if other_pools:
        raise StrategyError(
            "an estimate in the mean is of aggregated workers alone",
            hint="leave --estimate out: pools apart are simulated",
        )
    if job.lengths is None or not isinstance(job.arrivals, ClosedLoop | Poisson):
        raise UsageError(
            "an estimate in the mean is of a closed loop or a steady stream",
            hint="--concurrency 256 or --arrivals poisson:12/s",
        )
    pool_problem = problem_on_worker(problem, pool.worker)
    inputs, outputs = job.lengths.inputs.mean, job.lengths.outputs.mean
    stacked = stack_tables(
        [step_table(pool_problem, pool.worker)],
        [fleet_of(pool_problem, pool, blocks=blocks)],
        context=inputs + outputs / 2,
    )
    if isinstance(job.arrivals, ClosedLoop):
        load = MeanLoad(
            inputs=inputs,
            outputs=outputs,
            concurrency=job.arrivals.concurrency,
            requests=job.arrivals.requests,
        )
    else:
        load = MeanLoad(inputs=inputs, outputs=outputs, per_second=job.arrivals.per_second)
    return estimate_stacked(stacked, load)


def fleet_of(problem: ServingProblem, pool: WorkerPool, *, blocks: int) -> Fleet:
    """Convert a worker pool to a simulated fleet: scheduler, data-parallel ranks, acceptance.

    The engine of `problem` is that of `problem_on_worker`.
    """
    speculation = problem.job.speculation if pool.role is not WorkerRole.PREFILL else None
    return Fleet(
        scheduler=scheduler_settings(problem.engine, pool.worker, blocks=blocks, role=pool.role),
        workers=pool.count,
        ranks=pool.worker.dpa,
        think_s=problem.constants.request_s,
        acceptance=DraftAcceptance(
            acceptance=speculation.acceptance if speculation else 0.0, seed=problem.job.seed
        ),
    )


def cache_link(problem: ServingProblem, deployment: Deployment) -> CacheLink:
    """Link from a prefill to a decode rank: bytes/s of its devices together, latency, cache bytes.

    The island's links where the whole deployment lies in one, else the network cards of its
    devices. Every device of a rank sends its part of the cache, all at once; the worker with fewer
    devices limits the rate.
    """
    cluster, workers = problem.cluster, [pool.worker for pool in deployment.pools]
    bandwidth, latency_s = _tier_of_deployment(cluster, deployment.devices)
    fewest_devices = min(_rank_devices(worker) for worker in workers)
    token, sequence = cached_bytes(problem, workers[0])
    return CacheLink(
        bandwidth=bandwidth * fewest_devices,
        latency_s=latency_s,
        bytes_per_token=token * _rank_devices(workers[0]),
        bytes_per_sequence=float(sequence * _rank_devices(workers[0])),
    )


def _tier_of_deployment(cluster: Cluster, devices: int) -> tuple[float, float]:
    """Bytes a second per device and latency in seconds of the lowest tier that spans `devices`."""
    tiers = cluster.tiers()
    tier = next((tier for tier in tiers if tier.num_devices >= devices), tiers[-1])
    return tier.bandwidth, tier.latency_s


def _rank_devices(worker: Worker) -> int:
    """Number of devices (tp x cp x pp) that hold parts of one request's cache."""
    return worker.tp * worker.cp * worker.pp
