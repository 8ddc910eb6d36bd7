"""Latency, throughput and goodput metrics of a serving run, as users see them."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Promise
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpread:
    """Mean and nearest-rank percentiles of one metric over requests."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Latency, throughput and goodput of a serving run, or of its requests after the warm-up.

    Args:
        num_requests: requests counted.
        num_refused: requests that could never be served.
        ttft: seconds from arrival to the first token.
        tpot: mean seconds of each further token of a request; requests of one token have none.
        e2e: seconds from arrival to the last token.
        seconds: from the first arrival to the last token of the requests counted.
        tokens_per_second: tokens of answers a second.
        per_device: tokens a second of one device.
        per_user: mean of 1 / TPOT.
        requests_per_second: requests done a second.
        goodput: requests a second that meet the latency targets.
        kept: share of the requests that meet the latency targets.
        promised: the share is at least the target share.
        concurrency: mean number of requests in the system.
        queue: mean number of requests that wait for admission.
    """

    num_requests: int
    num_refused: int
    ttft: MetricSpread
    tpot: MetricSpread
    e2e: MetricSpread
    seconds: float
    tokens_per_second: float
    per_device: float
    per_user: float
    requests_per_second: float
    goodput: float
    kept: float
    promised: bool
    concurrency: float
    queue: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latencies:
    """Latencies in seconds, one for each request that was served.

    Args:
        ttft_s: from arrival to the first token.
        tpot_s: mean of each further token; requests of one token have none.
        e2e_s: from arrival to the last token.
    """

    ttft_s: FloatArray
    tpot_s: FloatArray
    e2e_s: FloatArray


def request_latencies(
    requests: Requests, served: ServedRequests, *, warm_up: int = 0, request_s: float = 0.0
) -> Latencies:
    """Latencies (s) of requests served after the first `warm_up`, `request_s` in TTFT and E2E."""
    answered = _is_answered(requests, served, warm_up=warm_up)
    arrival_s, first_s, last_s = (
        served.arrival_s[answered],
        served.first_s[answered],
        served.last_s[answered],
    )
    outputs = requests.outputs[answered]
    several_tokens = outputs > 1
    return Latencies(
        ttft_s=first_s - arrival_s + request_s,
        tpot_s=(last_s - first_s)[several_tokens] / (outputs[several_tokens] - 1),
        e2e_s=last_s - arrival_s + request_s,
    )


def _is_answered(requests: Requests, served: ServedRequests, *, warm_up: int) -> BoolArray:
    """(n,) True for requests after the warm-up that were not refused."""
    answered: BoolArray = (np.arange(len(requests.inputs)) >= warm_up) & ~np.isnan(served.last_s)
    return answered


def metric_spread(values: FloatArray) -> MetricSpread:
    """Mean and nearest-rank percentiles (50, 90, 99 %) of values; nan of an empty array."""
    if not len(values):
        return MetricSpread(mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
    ordered = np.sort(values)
    percentiles = [
        float(ordered[max(0, int(np.ceil(share * len(ordered) - 1e-9)) - 1)])
        for share in (0.5, 0.9, 0.99)
    ]
    return MetricSpread(
        mean=float(ordered.mean()), p50=percentiles[0], p90=percentiles[1], p99=percentiles[2]
    )


def metrics(
    requests: Requests,
    served: ServedRequests,
    *,
    devices: int = 1,
    promise: Promise | None = None,
    warm_up: int = 0,
    request_s: float = 0.0,
) -> Metrics:
    """Compute the latency, throughput and goodput metrics of served requests.

    Args:
        devices: devices of all workers.
        promise: latency targets of requests.
        warm_up: number of first requests that do not count. InferenceX sends 2 C requests before it
            starts its clock with a burst of its own: draw a loop for those alone, or leave 0 and
            count the burst, as InferenceX does.
        request_s: seconds of a request's way to the queue and of its first token's way back, which
            users wait for too.
    """
    counts = np.arange(len(requests.inputs)) >= warm_up
    answered = _is_answered(requests, served, warm_up=warm_up)
    arrival_s, first_s, last_s = (
        served.arrival_s[answered],
        served.first_s[answered],
        served.last_s[answered],
    )
    outputs = requests.outputs[answered]
    found = request_latencies(requests, served, warm_up=warm_up, request_s=request_s)
    ttft, tpot, e2e = found.ttft_s, found.tpot_s, found.e2e_s
    seconds = float(last_s.max() - arrival_s.min()) + request_s if len(last_s) else 0.0
    on_time = _meets_targets(promise, ttft, last_s - first_s, outputs, e2e)
    share = float(on_time.sum() / counts.sum()) if counts.any() else 1.0
    rate = 1 / seconds if seconds > 0 else 0.0
    tokens = float(outputs.sum()) * rate
    return Metrics(
        num_requests=int(answered.sum()),
        num_refused=int((counts & np.isnan(served.last_s)).sum()),
        ttft=metric_spread(ttft),
        tpot=metric_spread(tpot),
        e2e=metric_spread(e2e),
        seconds=seconds,
        tokens_per_second=tokens,
        per_device=tokens / devices,
        per_user=float((1 / tpot[tpot > 0]).mean()) if (tpot > 0).any() else np.nan,
        requests_per_second=len(last_s) * rate,
        goodput=float(on_time.sum()) * rate,
        kept=share,
        promised=share >= (promise.share if promise else 0.0),
        concurrency=float(e2e.sum()) * rate,
        queue=served.queue,
    )


def _meets_targets(
    promise: Promise | None,
    ttft: FloatArray,
    decode_s: FloatArray,
    outputs: IntArray,
    e2e: FloatArray,
) -> BoolArray:
    """(n,) True for requests that meet all latency targets; all True without a promise.

    A request of one token has no TPOT.
    """
    on_time = np.ones(len(ttft), dtype=np.bool_)
    if promise is None:
        return on_time
    if promise.ttft_s is not None:
        on_time &= ttft <= promise.ttft_s
    if promise.tpot_s is not None:
        on_time &= decode_s <= promise.tpot_s * (outputs - 1)
    if promise.e2e_s is not None:
        on_time &= e2e <= promise.e2e_s
    return on_time
