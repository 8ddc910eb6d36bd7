"""What users of a service see: times to tokens, throughput, and the share of requests whose promise
is kept.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import BoolArray, FloatArray, IntArray
from shardwright.job.serving import Promise
from shardwright.lazy_dataclass import dataclass
from shardwright.serving.traffic.drawn_requests import Requests, Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of one number over requests: its mean and its percentiles by nearest rank."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Of a run, or of the requests of it that count.

    Args:
        num_requests: that count.
        num_refused: that could never be served.
        ttft: seconds from arrival to the first token.
        tpot: seconds of each further token, in the mean of a request; requests of one token have
            none.
        e2e: seconds from arrival to the last token.
        seconds: from the first arrival to the last token of those that count.
        tokens_per_second: of answers.
        per_device: that over the devices.
        per_user: the mean of 1 / TPOT.
        requests_per_second: done.
        goodput: requests a second whose promise is kept;
        kept: their share.
        promised: the share is what was promised, at least.
        concurrency: mean number in the system.
        queue: mean number that wait for admission.
    """

    num_requests: int
    num_refused: int
    ttft: Spread
    tpot: Spread
    e2e: Spread
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


def spread(values: FloatArray) -> Spread:
    """Mean, and the smallest values that 50, 90 and 99 % are not above; nan of none."""
    if not len(values):
        return Spread(mean=np.nan, p50=np.nan, p90=np.nan, p99=np.nan)
    ordered = np.sort(values)
    at = [
        float(ordered[max(0, int(np.ceil(share * len(ordered) - 1e-9)) - 1)])
        for share in (0.5, 0.9, 0.99)
    ]
    return Spread(mean=float(ordered.mean()), p50=at[0], p90=at[1], p99=at[2])


def metrics(
    requests: Requests,
    served: Served,
    *,
    devices: int = 1,
    promise: Promise | None = None,
    warm_up: int = 0,
    request_s: float = 0.0,
) -> Metrics:
    """What users saw.

    Args:
        devices: of all workers.
        promise: of requests.
        warm_up: the first requests that do not count. InferenceX sends 2 C of them before it starts
            its clock with a burst of its own: draw a loop for those alone, or leave it at 0 and
            count the burst, as it does.
        request_s: on a request's way to the queue and of its first token's back, which users wait
            for too.
    """
    counts = np.arange(len(requests.inputs)) >= warm_up
    there = counts & ~np.isnan(served.last_s)
    arrival, first, last = served.arrival_s[there], served.first_s[there], served.last_s[there]
    outputs = requests.outputs[there]
    ttft, e2e = first - arrival + request_s, last - arrival + request_s
    many = outputs > 1
    tpot = (last - first)[many] / (outputs[many] - 1)
    seconds = float(last.max() - arrival.min()) + request_s if len(last) else 0.0
    kept = _kept(promise, ttft, last - first, outputs, e2e)
    share = float(kept.sum() / counts.sum()) if counts.any() else 1.0
    rate = 1 / seconds if seconds > 0 else 0.0
    tokens = float(outputs.sum()) * rate
    return Metrics(
        num_requests=int(there.sum()),
        num_refused=int((counts & np.isnan(served.last_s)).sum()),
        ttft=spread(ttft),
        tpot=spread(tpot),
        e2e=spread(e2e),
        seconds=seconds,
        tokens_per_second=tokens,
        per_device=tokens / devices,
        per_user=float((1 / tpot[tpot > 0]).mean()) if (tpot > 0).any() else np.nan,
        requests_per_second=len(last) * rate,
        goodput=float(kept.sum()) * rate,
        kept=share,
        promised=share >= (promise.share if promise else 0.0),
        concurrency=float(e2e.sum()) * rate,
        queue=served.queue,
    )


def _kept(
    promise: Promise | None, ttft: FloatArray, rest: FloatArray, outputs: IntArray, e2e: FloatArray
) -> BoolArray:
    """Whether each request's promise is; one of a single token has no time of further ones."""
    kept = np.ones(len(ttft), dtype=np.bool_)
    if promise is None:
        return kept
    if promise.ttft_s is not None:
        kept &= ttft <= promise.ttft_s
    if promise.tpot_s is not None:
        kept &= rest <= promise.tpot_s * (outputs - 1)
    if promise.e2e_s is not None:
        kept &= e2e <= promise.e2e_s
    return kept
