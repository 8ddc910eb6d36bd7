"""Data of the view of serving: latencies by share of requests, throughput, and memory."""

from __future__ import annotations

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.report.page.view_data_types.latency_percentiles import LatencyRow
from shardwright.report.page.view_data_types.line_chart_data import LineChart


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """Memory of the fullest device of a pool of workers, by use.

    Args:
        shares: weights, activations, other memory, used and free cache, as fractions of capacity.
    """

    role: str
    workers: int
    weights: int
    activations: int
    others: int
    cache: int
    cache_used: float
    capacity: int
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationPart:
    """Seconds of all iterations in one part, and their share."""

    name: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherLoad:
    """The same deployment under another load, simulated.

    Args:
        concurrency: requests in flight.
        gain: tokens a second there / here - 1.
        slower: mean seconds a token there / here - 1; None where no request has several tokens.
        command: command that simulates it.
    """

    concurrency: int
    tokens_per_s: float
    gain: float
    token_s: float | None
    slower: float | None
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLatencies:
    """Latencies and throughput of a deployment, and the memory of its workers.

    Args:
        chart: seconds of each latency by share of the requests; None where no request was served.
        kept: share of the requests that meet the latency targets.
        slo: the targets as given; empty = none.
        other: None where the load is no closed loop, or the other load cannot be simulated.
    """

    model: str
    cluster: str
    engine: str
    deployment: str
    devices: int
    requests: int
    refused: int
    tokens_per_s: float
    tokens_per_s_per_device: float
    tokens_per_s_per_user: float | None
    requests_per_s: float
    concurrency: float
    queue: float
    kept: float
    slo: str
    joules_per_token: float | None
    latencies: tuple[LatencyRow, ...]
    chart: LineChart | None
    parts: tuple[IterationPart, ...]
    pools: tuple[PoolMemory, ...]
    other: OtherLoad | None
