"""The simulator as an evaluator of measured configurations."""

from __future__ import annotations

from typing import Final

from shardwright.errors import InfeasibleError
from shardwright.hardware.catalog.serving_constants import ServingConstants
from shardwright.job.serving import ClosedLoop, Lengths
from shardwright.runtime.engines.engine import Admission
from shardwright.serving.deployments.engine_on_worker import problem_on_worker
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.simulation.run_deployment import simulate_job
from shardwright.serving.simulation.user_metrics import metrics
from shardwright.serving.step_times.worker_memory import require_room, worker_memory
from shardwright.serving.traffic.draw_requests import longest_request
from shardwright.validation.serving.measured_deployment import ServingCase
from shardwright.validation.serving.predictor_protocol import ServingPrediction

NEAR_CAPACITY: Final = (0.8, 1.2)
"""Loads of the cache at which an error of a few per cent in memory decides whether requests wait.
"""


def predict_serving(case: ServingCase, constants: ServingConstants) -> ServingPrediction:
    """What `serve-simulate` says of a case. Raises as `ServingEvaluator`; a run none of whose
    requests is let in is infeasible.
    """
    problem = problem_of_serving(case, constants=constants)
    own = [problem_on_worker(problem, pool.worker) for pool in case.deployment.pools]
    longest = longest_request(problem.job)
    memories = [
        worker_memory(one, pool.worker)
        for one, pool in zip(own, case.deployment.pools, strict=True)
    ]
    for memory in memories:
        require_room(memory, longest=longest)
    blocks = tuple(memory.blocks for memory in memories)
    seen = metrics(
        *simulate_job(problem, case.deployment, blocks=blocks), request_s=constants.request_s
    )
    if not seen.num_requests:
        raise InfeasibleError("every request is refused: none is let in under the engine's limits")
    load = cache_load(case, problem=problem, tokens=memories[-1].tokens)
    # the cache is endless where it holds twice what it is said to: of what requests hold, all fits
    # then
    endless = None
    if NEAR_CAPACITY[0] <= load <= NEAR_CAPACITY[1] and case.ttft_s is not None:
        free = simulate_job(problem, case.deployment, blocks=tuple(2 * number for number in blocks))
        endless = metrics(*free, request_s=constants.request_s).ttft.mean
    return ServingPrediction(
        tpot_s=seen.tpot.mean,
        ttft_s=seen.ttft.mean,
        tokens_per_s=seen.tokens_per_second,
        cache_load=load,
        endless_ttft_s=endless,
    )


def problem_of_serving(case: ServingCase, *, constants: ServingConstants) -> ServingProblem:
    """The problem of a measured configuration."""
    return ServingProblem(
        model=case.model,
        cluster=case.cluster,
        job=case.job,
        engine=case.engine,
        constants=constants,
    )


def cache_load(case: ServingCase, *, problem: ServingProblem, tokens: int) -> float:
    """Tokens that the requests in flight hold in the mean (whole answers where they are reserved),
    over `tokens` that fit on a rank.
    """
    arrivals, lengths = case.job.arrivals, case.job.lengths
    if not isinstance(arrivals, ClosedLoop) or not isinstance(lengths, Lengths) or not tokens:
        return 0.0
    pool = case.deployment.pools[-1]
    whole = problem.engine.admission is Admission.WHOLE
    held = lengths.inputs.mean + lengths.outputs.mean * (1.0 if whole else 0.5)
    return arrivals.concurrency / (pool.count * pool.worker.dpa) * held / tokens
