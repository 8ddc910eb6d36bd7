"""Simulate a serving engine's deployment under traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from shardwright.api.request_to_problem import load_cluster
from shardwright.dtype import Dtype
from shardwright.errors import ClusterError, ModelError, StrategyError, UsageError
from shardwright.hardware.catalog.power_limits import power_limit
from shardwright.hardware.cluster import Cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    Arrivals,
    Lengths,
    Precision,
    Promise,
    ServingJob,
    Trace,
)
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.serving_engines.engine_registry import load_engine, version_notice
from shardwright.serving.deployments.default_formats_from_checkpoint import (
    CheckpointFormats,
    checkpoint_formats,
)
from shardwright.serving.deployments.deployment_notation import parse_deployment
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Deployment, Worker, WorkerPool, WorkerRole
from shardwright.serving.simulation.closed_form_mean_estimate import MeanEstimate
from shardwright.serving.simulation.latency_and_throughput_metrics import (
    metrics,
    request_latencies,
)
from shardwright.serving.simulation.serving_answer import PoolAnswer, ServingAnswer
from shardwright.serving.simulation.simulate_deployment import estimate_mean, simulate_job
from shardwright.serving.step_times.worker_memory import (
    WorkerMemory,
    require_cache_for,
    worker_memory,
)
from shardwright.serving.traffic.draw_requests import longest_request
from shardwright.serving.traffic.parse_traffic_and_latency_targets import (
    closed_loop,
    read_arrivals,
    read_precision,
    read_prefix,
    read_promise,
    read_speculation,
    read_tokens,
)
from shardwright.serving.traffic.read_request_trace import read_trace
from shardwright.serving.traffic.requests_and_outcomes import Requests
from shardwright.serving.unparsed_simulation_inputs import ServingRequest

DEFAULT_ENGINE: Final = "vllm"
DEFAULT_REQUESTS: Final = 1000
"""Default number of requests of an open-loop stream."""


def serve_simulate(request: ServingRequest) -> ServingAnswer:
    """Simulate a deployment under a request's traffic; returns latencies, throughput and memory.

    Raises:
        ModelError, ClusterError, RuntimeModelError, StrategyError, UsageError, DataError: a part of
            the request is not valid.
        InfeasibleError: the weights, or a single request, do not fit.
    """
    problem, deployment = serving_problem(request)
    longest = longest_request(problem.job)
    pools = tuple(_checked_memory(problem, pool, longest) for pool in deployment.pools)
    requests, served = simulate_job(
        problem, deployment, blocks=tuple(memory.blocks for memory in pools)
    )
    user_metrics = metrics(
        requests,
        served,
        devices=deployment.devices,
        promise=problem.job.promise,
        request_s=problem.constants.request_s,
    )
    return ServingAnswer(
        request=request,
        problem=problem,
        deployment=deployment,
        engine=problem.engine.name,
        settled=problem_on_worker(problem, deployment.pools[0].worker).engine,
        pools=tuple(
            PoolAnswer(
                pool=pool, memory=memory, cache_used=min(served.peak_blocks / memory.blocks, 1.0)
            )
            for pool, memory in zip(deployment.pools, pools, strict=True)
        ),
        metrics=user_metrics,
        served=served,
        latencies=request_latencies(requests, served, request_s=problem.constants.request_s),
        joules_per_token=_joules_per_token(
            problem.cluster, deployment, user_metrics.tokens_per_second
        ),
        notes=_notes(request, problem, requests),
    )


def serve_estimate(request: ServingRequest) -> MeanEstimate:
    """Closed-form estimate of a deployment's mean latencies and throughput; arrays of length 1.

    Raises:
        As `serve_simulate`, and where arrivals are a trace or prompts have separate workers.
    """
    problem, deployment = serving_problem(request)
    memory = _checked_memory(problem, deployment.pools[0], longest_request(problem.job))
    return estimate_mean(problem, deployment, blocks=memory.blocks)


def serving_problem(request: ServingRequest) -> tuple[ServingProblem, Deployment]:
    """Read and check a request: (serving problem, deployment; by default one worker).

    The engine is not yet adapted to its devices (`problem_on_worker`).
    """
    model, cluster = _served_model(request.model), load_cluster(request.cluster)
    if not cluster.is_uniform:
        raise ClusterError(
            "serving is simulated on devices of one kind in one zone",
            hint="name one kind, as h200-sxm:8",
        )
    deployment = (
        parse_deployment(request.deployment) if request.deployment else _one_worker(cluster)
    )
    _require_devices(deployment, cluster)
    _require_experts(deployment, model)
    draft_tokens = {
        pool.worker.draft_tokens for pool in deployment.pools if pool.role is not WorkerRole.PREFILL
    }
    arrivals = _arrivals(request)
    job = ServingJob(
        arrivals=arrivals,
        lengths=_lengths(request, arrivals),
        precision=_precision(request, model, cluster),
        prefix=read_prefix(request.prefix) if request.prefix else None,
        promise=read_promise(request.slo) if request.slo else Promise(),
        speculation=read_speculation(max(draft_tokens), request.acceptance),
        expert_skew=_checked_skew(request, model),
        seed=request.seed,
    )
    return (
        ServingProblem(
            model=model,
            cluster=cluster,
            job=job,
            engine=load_engine(request.engine or DEFAULT_ENGINE),
        ),
        deployment,
    )


def _precision(request: ServingRequest, model: Model, cluster: Cluster) -> Precision:
    """Number formats that the request names, else the formats of the model's checkpoint."""
    if request.precision:
        return read_precision(request.precision)
    return _checkpoint_formats(model, cluster).precision


def _checkpoint_formats(model: Model, cluster: Cluster) -> CheckpointFormats:
    """Number formats of the model's checkpoint on the cluster's devices."""
    return checkpoint_formats(model, fp4_units=cluster.node.accelerator.peak(Dtype.FP4) > 0)


def _served_model(name: str) -> Model:
    """Load a model by name; ModelError if it is not a decoder-only text model.

    Raises:
        ModelError: the model reads another sequence first, or is not causal.
    """
    model = load_model(name)
    text = [block for block in model.blocks if block.sequence == TEXT]
    if not any(block.is_layer for block in text) or not all(block.is_causal for block in text):
        raise ModelError(
            f"{name} is no decoder of text alone, and answers of others are not simulated",
            hint="a decoder-only model",
        )
    return model


def _one_worker(cluster: Cluster) -> Deployment:
    """Deployment of one worker whose tensor parallelism covers all devices."""
    return Deployment(
        pools=(
            WorkerPool(role=WorkerRole.AGGREGATED, count=1, worker=Worker(tp=cluster.num_devices)),
        )
    )


def _require_devices(deployment: Deployment, cluster: Cluster) -> None:
    """Raise StrategyError if the deployment needs more devices than the cluster has."""
    if deployment.devices > cluster.num_devices:
        raise StrategyError(
            f"the deployment takes {deployment.devices:,} devices of {cluster.num_devices:,}",
            hint="fewer workers, or a larger cluster",
        )


def _require_experts(deployment: Deployment, model: Model) -> None:
    """Raise StrategyError if a worker's expert parallelism exceeds the model's experts."""
    experts = {
        o.experts.experts
        for block in model.blocks
        for o in block.operators
        if o.experts is not None
    }
    for pool in deployment.pools:
        if pool.worker.ep > max(experts, default=1):
            available = f"{max(experts):,} experts" if experts else "no experts"
            raise StrategyError(
                f"{pool.role.value}: ep {pool.worker.ep} for a model with {available}",
                hint="a lower ep",
                rule="worker.experts",
            )


def _arrivals(request: ServingRequest) -> Arrivals:
    """Arrivals of requests: a closed loop, a random stream, or a trace file.

    Raises:
        UsageError: the request has none of them, or two.
    """
    given_flags = [
        name
        for name, value in (
            ("--concurrency", request.concurrency),
            ("--arrivals", request.arrivals),
            ("--trace", request.trace),
        )
        if value
    ]
    if len(given_flags) != 1:
        problem = f"{' and '.join(given_flags)} are two ways" if given_flags else "nothing says"
        raise UsageError(
            f"{problem} how requests come",
            hint="one of --concurrency 256, --arrivals poisson:12/s, --trace FILE",
        )
    if request.concurrency:
        return closed_loop(request.concurrency, requests=request.requests)
    if request.arrivals:
        return read_arrivals(request.arrivals, requests=request.requests or DEFAULT_REQUESTS)
    return read_trace(Path(request.trace))


def _lengths(request: ServingRequest, arrivals: Arrivals) -> Lengths | None:
    """Ranges of prompt and answer lengths from --isl and --osl; None for a trace."""
    if isinstance(arrivals, Trace):
        if request.isl or request.osl:
            raise UsageError("a trace has lengths of its own", hint="drop --isl and --osl")
        return None
    if not (request.isl and request.osl):
        raise UsageError(
            "nothing says how long requests are",
            hint="--isl 1024 --osl 1024: tokens of prompts and of answers",
        )
    return Lengths(
        inputs=read_tokens(request.isl, flag="--isl"),
        outputs=read_tokens(request.osl, flag="--osl"),
    )


def _checked_skew(request: ServingRequest, model: Model) -> float:
    """Check --expert-skew (1 to 1,000, only with experts) and return it."""
    if not 1.0 <= request.expert_skew <= 1000:
        raise UsageError(
            f"--expert-skew {request.expert_skew:g} is not between 1 and 1,000",
            hint="1 = all devices have as many tokens",
        )
    if request.expert_skew > 1 and not any(
        o.experts for block in model.blocks for o in block.operators
    ):
        raise UsageError(
            f"--expert-skew {request.expert_skew:g} for a model without experts",
            hint="drop the flag",
        )
    return request.expert_skew


def _checked_memory(problem: ServingProblem, pool: WorkerPool, longest: int) -> WorkerMemory:
    """Memory of a pool's worker; raises InfeasibleError if the longest request does not fit."""
    memory = worker_memory(problem_on_worker(problem, pool.worker), pool.worker)
    require_cache_for(memory, longest=longest)
    return memory


def _joules_per_token(
    cluster: Cluster, deployment: Deployment, tokens_per_second: float
) -> float | None:
    """Joules a token with all devices at their power limit; None for no known limit or tokens."""
    power = power_limit(cluster.node.accelerator)
    return (
        power.watts * deployment.devices / tokens_per_second
        if power is not None and tokens_per_second > 0
        else None
    )


def _notes(request: ServingRequest, problem: ServingProblem, requests: Requests) -> tuple[str, ...]:
    """Sentences on engine version, number formats and prompts beyond the model's context."""
    notes = [version_notice(problem.engine), _precision_note(request, problem)]
    if (
        problem.model.max_context
        and int((requests.inputs + requests.outputs).max()) > problem.model.max_context
    ):
        notes.append(
            f"the longest request is longer than the model's {problem.model.max_context:,}"
            " positions"
        )
    return tuple(note for note in notes if note)


def _precision_note(request: ServingRequest, problem: ServingProblem) -> str:
    """Sentence on the formats' source, or on weights stored in another format; else empty."""
    if not request.precision:
        return _checkpoint_formats(problem.model, problem.cluster).note
    stored = problem.model.stored
    if stored is None or read_precision(request.precision).mlp.weights.value == stored.weights:
        return ""
    return (
        f"the checkpoint stores its weights in {stored.text()}; they are priced as --precision"
        f" {request.precision} says"
    )
