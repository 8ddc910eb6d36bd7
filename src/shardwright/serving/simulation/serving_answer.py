"""What a simulation of serving says, with what it rests on."""

from __future__ import annotations

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.engine import Engine
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.workers import Deployment, Pool
from shardwright.serving.serving_request import ServingRequest
from shardwright.serving.simulation.user_metrics import Metrics
from shardwright.serving.step_times.worker_memory import WorkerMemory
from shardwright.serving.traffic.drawn_requests import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAnswer:
    """Of one pool: the memory of its devices,
    and the share of the cache that was in use at most.
    """

    pool: Pool
    memory: WorkerMemory
    cache_used: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingAnswer:
    """A deployment under a job's traffic.

    Args:
        engine: name and options;
        settled: as it runs on the first pool's workers.
        metrics: what users see.
        served: what became of each request.
        joules_per_token: at the devices' power limits while the run lasts; None = not known.
        notes: what was assumed.
    """

    request: ServingRequest
    problem: ServingProblem
    deployment: Deployment
    engine: str
    settled: Engine
    pools: tuple[PoolAnswer, ...]
    metrics: Metrics
    served: Served
    joules_per_token: float | None
    notes: tuple[str, ...] = ()
