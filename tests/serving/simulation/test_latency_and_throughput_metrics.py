from __future__ import annotations

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Promise
from shardwright.serving.simulation.latency_and_throughput_metrics import metric_spread, metrics
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests


def served(first: list[float], last: list[float]) -> ServedRequests:
    n = len(first)
    none = np.zeros(n, dtype=np.int64)
    return ServedRequests(
        arrival_s=np.arange(n, dtype=np.float64),
        first_s=np.array(first),
        last_s=np.array(last),
        worker=none,
        preempted=none,
        cached=none,
        iterations=1,
        busy_s=1.0,
        peak_blocks=1,
        by_part=np.zeros(5),
        waiting_s=0.0,
        queue=0.25,
    )


def requests(outputs: list[int]) -> Requests:
    n = len(outputs)
    none = np.zeros(n, dtype=np.int64)
    return Requests(
        arrival_s=np.arange(n, dtype=np.float64),
        inputs=none + 1,
        outputs=np.array(outputs),
        concurrency=0,
        block_offsets=np.zeros(n + 1, dtype=np.int64),
        blocks=none[:0],
        block_tokens=1,
    )


def test_nearest_rank() -> None:
    found = metric_spread(np.arange(1.0, 101.0))
    assert (found.p50, found.p90, found.p99) == (50.0, 90.0, 99.0)
    assert found.mean == 50.5
    few = metric_spread(np.array([3.0, 1.0, 2.0]))
    assert (few.p50, few.p90, few.p99) == (2.0, 3.0, 3.0)
    assert np.isnan(metric_spread(np.zeros(0)).mean)


def test_what_users_see() -> None:
    found = metrics(
        requests([3, 1, 5, 2]),
        served([0.5, 1.2, 3.0, np.nan], [2.5, 1.2, 7.0, np.nan]),
        devices=2,
        promise=Promise(ttft_s=0.6, tpot_s=1.0),
    )
    assert found.num_requests == 3
    assert found.num_refused == 1
    assert found.ttft.mean == pytest.approx((0.5 + 0.2 + 1.0) / 3)
    assert found.tpot.mean == pytest.approx((1.0 + 1.0) / 2)
    assert found.e2e.mean == pytest.approx((2.5 + 0.2 + 5.0) / 3)
    assert found.tokens_per_second == pytest.approx(9 / 7)
    assert found.per_device == pytest.approx(9 / 14)
    assert found.per_user == pytest.approx(1.0)
    assert found.goodput == pytest.approx(2 / 7)
    assert found.kept == pytest.approx(2 / 4)
    assert not found.promised
    assert found.concurrency == pytest.approx(7.7 / 7)
    assert found.queue == 0.25


def test_warm_up_does_not_count() -> None:
    found = metrics(requests([3, 1, 5]), served([0.5, 1.2, 3.0], [2.5, 1.2, 7.0]), warm_up=2)
    assert found.num_requests == 1
    assert found.seconds == pytest.approx(5.0)
    assert found.tokens_per_second == pytest.approx(1.0)


def test_promises_are_of_each_request() -> None:
    answers = requests([3, 1])
    times = served([0.5, 1.2], [2.5, 1.2])
    assert metrics(answers, times, promise=Promise(e2e_s=1.0, share=0.5)).promised
    assert not metrics(answers, times, promise=Promise(e2e_s=1.0, share=0.6)).promised
    assert metrics(answers, times).kept == 1.0
