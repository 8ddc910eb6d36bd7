"""A deployment's pools under drawn requests: step tables, schedulers and the loop put together."""

from __future__ import annotations

import numpy as np

from shardwright.errors import StrategyError, UsageError
from shardwright.hardware.cluster import Cluster
from shardwright.job.serving import ClosedLoop, Poisson
from shardwright.serving.deployments.engine_on_worker import on_worker
from shardwright.serving.deployments.scheduler_settings import scheduler_of
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.workers import Deployment, Pool, Role, Worker
from shardwright.serving.simulation.cache_transfer import Link
from shardwright.serving.simulation.compiled_loop import serve
from shardwright.serving.simulation.fleet import Fleet, Guessing
from shardwright.serving.simulation.mean_estimate import MeanField, MeanLoad, mean_field, stack
from shardwright.serving.simulation.prefill_and_decode import serve_split
from shardwright.serving.step_times.block_prices import step_table
from shardwright.serving.step_times.worker_memory import cached_bytes
from shardwright.serving.traffic.draw_requests import draw
from shardwright.serving.traffic.drawn_requests import Requests, Served


def served_job(
    problem: ServingProblem, deployment: Deployment, *, blocks: tuple[int, ...]
) -> tuple[Requests, Served]:
    """The job's requests, drawn, and what becomes of them. The first of a closed loop without a
    burst come over the mean time of a request, as a run with a burst has it.

    Args:
        blocks: of the cache of each rank, a number for each pool.
    """
    size = on_worker(problem, deployment.pools[0].worker).engine.block_tokens
    requests = draw(problem.job, block_tokens=size)
    served = simulated(problem, deployment, requests, blocks=blocks)
    if not isinstance(problem.job.arrivals, ClosedLoop) or problem.job.arrivals.burst:
        return requests, served
    requests = draw(
        problem.job, block_tokens=size, answer_s=float(np.nanmean(served.last_s - served.arrival_s))
    )
    return requests, simulated(problem, deployment, requests, blocks=blocks)


def simulated(
    problem: ServingProblem, deployment: Deployment, requests: Requests, *, blocks: tuple[int, ...]
) -> Served:
    """What becomes of the requests: on aggregated workers, or on prefill workers first and, behind
    a transfer, on decode workers.

    Args:
        blocks: of the cache of each rank, a number for each pool.
    """
    own = [on_worker(problem, pool.worker) for pool in deployment.pools]
    tables = [step_table(one, pool.worker) for one, pool in zip(own, deployment.pools, strict=True)]
    fleets = [
        fleet_of(one, pool, blocks=count)
        for one, pool, count in zip(own, deployment.pools, blocks, strict=True)
    ]
    if len(fleets) == 1:
        return serve(requests, tables[0], fleets[0])
    link = link_between(problem, deployment)
    return serve_split(
        requests,
        (tables[0], tables[1]),
        (fleets[0], fleets[1]),
        link,
        think_s=problem.constants.request_s,
    ).served


def in_the_mean(problem: ServingProblem, deployment: Deployment, *, blocks: int) -> MeanField:
    """What aggregated workers do in the mean, in closed form (`mean_field`): no queue is simulated
    and nothing is drawn.

    Args:
        blocks: of the cache of each rank.

    Raises:
        StrategyError: prompts and answers have workers of their own. UsageError: the arrivals are a
        trace, or swing.
    """
    (pool, *others), job = deployment.pools, problem.job
    if others:
        raise StrategyError(
            "an estimate in the mean is of aggregated workers alone",
            hint="leave --estimate out: pools apart are simulated",
        )
    if job.lengths is None or not isinstance(job.arrivals, ClosedLoop | Poisson):
        raise UsageError(
            "an estimate in the mean is of a closed loop or a steady stream",
            hint="--concurrency 256 or --arrivals poisson:12/s",
        )
    own = on_worker(problem, pool.worker)
    inputs, outputs = job.lengths.inputs.mean, job.lengths.outputs.mean
    stacked = stack(
        [step_table(own, pool.worker)],
        [fleet_of(own, pool, blocks=blocks)],
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
    return mean_field(stacked, load)


def fleet_of(problem: ServingProblem, pool: Pool, *, blocks: int) -> Fleet:
    """The workers of a pool; the engine of `problem` is that of `on_worker`."""
    speculation = problem.job.speculation if pool.role is not Role.PREFILL else None
    return Fleet(
        scheduler=scheduler_of(problem.engine, pool.worker, blocks=blocks, role=pool.role),
        workers=pool.count,
        ranks=pool.worker.dpa,
        think_s=problem.constants.request_s,
        guessing=Guessing(
            acceptance=speculation.acceptance if speculation else 0.0, seed=problem.job.seed
        ),
    )


def link_between(problem: ServingProblem, deployment: Deployment) -> Link:
    """What keys and values go over from a prefill worker: the island's links where the whole
    deployment lies in one, else the cards of its devices.

    Every device of a rank sends what it holds, side by side with the others; of the two workers the
    one with fewer devices is the slower end.
    """
    cluster, workers = problem.cluster, [pool.worker for pool in deployment.pools]
    bandwidth, latency_s = _way(cluster, deployment.devices)
    least = min(_rank_devices(worker) for worker in workers)
    token, sequence = cached_bytes(problem, workers[0])
    return Link(
        bandwidth=bandwidth * least,
        latency_s=latency_s,
        bytes_per_token=token * _rank_devices(workers[0]),
        bytes_per_sequence=float(sequence * _rank_devices(workers[0])),
    )


def _way(cluster: Cluster, devices: int) -> tuple[float, float]:
    """Bytes/s of a device and seconds of a message, on the tier that joins so many devices."""
    tiers = cluster.tiers()
    tier = next((tier for tier in tiers if tier.num_devices >= devices), tiers[-1])
    return tier.bandwidth, tier.latency_s


def _rank_devices(worker: Worker) -> int:
    """Devices that hold parts of one request's cache."""
    return worker.tp * worker.cp * worker.pp
