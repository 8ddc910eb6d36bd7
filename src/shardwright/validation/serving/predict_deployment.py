"""Predict the latencies and throughput of a measured serving configuration."""

from __future__ import annotations

from typing import Final

from shardwright.errors import InfeasibleError
from shardwright.hardware.catalog.fitted_serving_constants import ServingConstants
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ClosedLoop, Lengths
from shardwright.runtime.serving_engines.serving_engine import Admission
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.simulation.latency_and_throughput_metrics import metrics
from shardwright.serving.simulation.simulate_deployment import simulate_job
from shardwright.serving.step_times.worker_memory import require_cache_for, worker_memory
from shardwright.serving.traffic.draw_requests import longest_request
from shardwright.validation.serving.measured_deployment import ServingRun, ServingValues

NEAR_CAPACITY: Final = (0.8, 1.2)
"""Loads of the KV cache at which a few per cent of memory decide whether requests wait."""


def predict_serving(run: ServingRun, constants: ServingConstants) -> ServingValues:
    """Simulate a measured configuration; returns its predicted mean TPOT, TTFT and throughput.

    Raises:
        InfeasibleError: the model does not fit, or no request is admitted.
        StrategyError, ModelError, ClusterError, RuntimeModelError: the configuration cannot
            be described.
    """
    problem = problem_of_serving(run, constants=constants)
    longest = longest_request(problem.job)
    memories = [
        worker_memory(problem_on_worker(problem, pool.worker), pool.worker)
        for pool in run.deployment.pools
    ]
    for memory in memories:
        require_cache_for(memory, longest=longest)
    blocks = tuple(memory.blocks for memory in memories)
    means = metrics(
        *simulate_job(problem, run.deployment, blocks=blocks), request_s=constants.request_s
    )
    if not means.num_requests:
        raise InfeasibleError("every request is refused: none is let in under the engine's limits")
    load = cache_load(run, problem=problem, rank_tokens=memories[-1].tokens)
    endless = None
    if NEAR_CAPACITY[0] <= load <= NEAR_CAPACITY[1] and run.values.ttft_s is not None:
        # Twice the blocks hold all tokens of the requests in flight, as an endless cache does.
        doubled = simulate_job(problem, run.deployment, blocks=tuple(2 * count for count in blocks))
        endless = metrics(*doubled, request_s=constants.request_s).ttft.mean
    return ServingValues(
        tpot_s=means.tpot.mean,
        ttft_s=means.ttft.mean,
        tokens_per_s=means.tokens_per_second,
        cache_load=load,
        endless_ttft_s=endless,
    )


def problem_of_serving(run: ServingRun, *, constants: ServingConstants) -> ServingProblem:
    """Serving problem (model, cluster, job, engine) of a measured configuration."""
    return ServingProblem(
        model=run.model,
        cluster=run.cluster,
        job=run.job,
        engine=run.engine,
        constants=constants,
    )


def cache_load(run: ServingRun, *, problem: ServingProblem, rank_tokens: int) -> float:
    """Mean share of a rank's KV cache that a closed loop's requests hold (may exceed 1); else 0.

    The mean tokens that they hold, over the `rank_tokens` that fit on a rank.

    A request holds half of its output tokens on average, or all where the engine reserves them.
    """
    arrivals, lengths = run.job.arrivals, run.job.lengths
    if not isinstance(arrivals, ClosedLoop) or not isinstance(lengths, Lengths) or not rank_tokens:
        return 0.0
    pool = run.deployment.pools[-1]
    reserved = problem.engine.admission is Admission.WHOLE
    held = lengths.inputs.mean + lengths.outputs.mean * (1.0 if reserved else 0.5)
    return arrivals.concurrency / (pool.count * pool.worker.dpa) * held / rank_tokens
