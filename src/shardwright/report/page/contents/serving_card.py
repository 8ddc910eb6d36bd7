"""Data of a notebook's card of a serving simulation: throughput, latencies and cache use."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.contents.latency_percentiles import LatencyRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCard:
    """What users of a deployment see, and how full its KV cache is.

    Args:
        model: name of the model.
        parameters: all stored parameters.
        cluster: expression or path.
        engine: name with options.
        deployment: notation of the deployment.
        requests: answered requests.
        refused: requests that could never be served.
        tokens_per_s: tokens of answers a second.
        tokens_per_s_per_user: mean over requests; None where all answers have one token.
        concurrency: mean number of requests in the system.
        queue: mean number of requests that wait for admission.
        kept_share: share of the requests within the latency targets; None without targets.
        target_share: share that must be within them; None without targets.
        targets: the latency targets as written.
        cache_share: largest share of the KV cache in use, over the worker pools.
        joules_per_token: at the devices' power limits; None = not known.
        latencies: time to first token, time of each further token, time of a request.
    """

    model: str
    parameters: int
    cluster: str
    engine: str
    deployment: str
    devices: int
    requests: int
    refused: int
    requests_per_s: float
    tokens_per_s: float
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float | None
    concurrency: float
    queue: float
    kept_share: float | None
    target_share: float | None
    targets: str
    cache_share: float
    joules_per_token: float | None
    latencies: tuple[LatencyRow, ...]
