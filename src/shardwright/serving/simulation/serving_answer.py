"""The answer of a serving simulation, with its inputs and assumptions."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.serving_engines.serving_engine import Engine
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Deployment, WorkerPool
from shardwright.serving.simulation.latency_and_throughput_metrics import Latencies, Metrics
from shardwright.serving.step_times.worker_memory import WorkerMemory
from shardwright.serving.traffic.requests_and_outcomes import ServedRequests
from shardwright.serving.unparsed_simulation_inputs import ServingRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """Memory of a worker pool's devices, and the largest share of the cache in use."""

    pool: WorkerPool
    memory: WorkerMemory
    cache_used: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingAnswer:
    """Answer of a serving simulation: outcome of a deployment under a job's traffic.

    Args:
        engine: name and options.
        settled: the engine's settings on the first pool's workers.
        metrics: latencies and throughput that users see.
        served: outcome of each request.
        latencies: of each request that was served.
        joules_per_token: joules at the devices' power limits during the run; None = not known.
        notes: assumptions.
    """

    request: ServingRequest
    problem: ServingProblem
    deployment: Deployment
    engine: str
    settled: Engine
    pools: tuple[PoolAnswer, ...]
    metrics: Metrics
    served: ServedRequests
    latencies: Latencies
    joules_per_token: float | None
    notes: tuple[str, ...] = ()
