"""What queueing theory says of limits, and what must be so whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Poisson,
    ServingJob,
    Trace,
)
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.latency_and_throughput_metrics import metrics
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import Requests
from tests.serving.random_runs import constant, lengths, scheduler, step_table


def poisson(
    per_second: float, count: int, inputs: tuple[int, int], outputs: tuple[int, int], seed: int = 0
) -> Requests:
    job = ServingJob(
        arrivals=Poisson(per_second=per_second, requests=count),
        lengths=lengths(inputs, outputs),
        seed=seed,
    )
    return draw_requests(job, block_tokens=16)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_server_of_equal_service(load: float) -> None:
    """M/D/1: a request waits load s / (2 (1 - load)) in the mean (Pollaczek and Khinchine)."""
    requests = poisson(load / 0.01, 60_000, (100, 100), (1, 1), seed=3)
    served = serve_requests(requests, constant(0.01), Fleet(scheduler=scheduler(max_sequences=1)))
    assert served.waiting_s == pytest.approx(load * 0.01 / (2 * (1 - load)), rel=0.05)


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (4, 0.8), (16, 0.9)])
def test_many_servers_of_any_service(servers: int, load: float) -> None:
    """M/M/c: Erlang's C says who waits, and how long."""
    random = np.random.default_rng(5)
    outputs, count = 200.0, 40_000
    answers = np.ceil(random.exponential(outputs, count)).astype(np.int64)
    rate = servers * load / (answers.mean() * 1e-4)
    arrival = np.cumsum(random.exponential(1 / rate, count))
    trace = Trace(arrival_s=arrival, inputs=np.ones(count, dtype=np.int64), outputs=answers)
    requests = draw_requests(ServingJob(arrivals=trace), block_tokens=16)
    served = serve_requests(
        requests, constant(1e-4), Fleet(scheduler=scheduler(max_sequences=servers))
    )
    offered = servers * load
    last = offered**servers / factorial(servers) / (1 - load)
    waits = last / (sum(offered**i / factorial(i) for i in range(servers)) + last)
    expected = waits * answers.mean() * 1e-4 / (servers * (1 - load))
    # An iteration that is under way delays everybody by half of it.
    assert served.waiting_s == pytest.approx(expected + 0.5e-4, rel=0.12)


@pytest.mark.parametrize("batching", tuple(Batching))
def test_first_tokens_come_in_order(batching: Batching) -> None:
    requests = poisson(20.0, 400, (100, 3000), (1, 100))
    served = serve_requests(
        requests, step_table(), Fleet(scheduler=scheduler(batching, token_budget=4096))
    )
    assert not served.preempted.any()
    assert np.all(np.diff(served.first_s) >= 0)


@pytest.mark.parametrize("batching", tuple(Batching))
def test_slower_under_more_load(batching: Batching) -> None:
    """With the same random numbers every percentile rises with the rate."""
    found = []
    for rate in (2.0, 6.0, 12.0, 24.0):
        requests = poisson(rate, 400, (200, 2000), (20, 200))
        seen = metrics(
            requests,
            serve_requests(
                requests, step_table(), Fleet(scheduler=scheduler(batching, token_budget=4096))
            ),
        )
        found.append(
            (
                seen.ttft.mean,
                seen.ttft.p50,
                seen.ttft.p99,
                seen.e2e.mean,
                seen.e2e.p99,
                seen.concurrency,
            )
        )
    assert np.all(np.diff(np.array(found), axis=0) > 0)


def test_whole_prompts_are_the_limit_of_chunks() -> None:
    requests = poisson(5.0, 200, (100, 3000), (1, 100))
    whole = serve_requests(
        requests,
        step_table(),
        Fleet(scheduler=scheduler(token_budget=10**5, chunked_prefill=False)),
    )
    chunks = serve_requests(requests, step_table(), Fleet(scheduler=scheduler(token_budget=10**5)))
    np.testing.assert_array_equal(whole.last_s, chunks.last_s)


def test_ranks_run_in_lockstep() -> None:
    """Two ranks of a worker take as long as the slower one; alone each is as fast as two
    workers."""
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=2, requests=2), lengths=lengths((500, 500), (50, 50))
    )
    requests = draw_requests(job, block_tokens=16)
    skewed = replace(requests, inputs=np.array([4000, 10]))
    together = serve_requests(skewed, step_table(), Fleet(scheduler=scheduler(), ranks=2))
    apart = serve_requests(skewed, step_table(), Fleet(scheduler=scheduler(), workers=2))
    assert together.first_s[1] > apart.first_s[1]
    assert together.first_s[0] == pytest.approx(apart.first_s[0])


def test_stages_hide_one_another() -> None:
    """With two batches under way throughput is higher than with one whose iterations take as
    long."""
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=32, requests=128), lengths=lengths((100, 100), (50, 50))
    )
    requests = draw_requests(job, block_tokens=16)
    fleet = Fleet(scheduler=scheduler(max_sequences=16, token_budget=256))
    one = serve_requests(requests, step_table(), fleet)
    two = serve_requests(requests, step_table(stages=2), fleet)
    assert np.nanmax(two.last_s) < np.nanmax(one.last_s)


def test_reserved_answers_are_never_evicted() -> None:
    requests = poisson(50.0, 200, (100, 1000), (50, 400))
    tight = scheduler(Batching.IN_FLIGHT, admission=Admission.WHOLE, blocks=300)
    served = serve_requests(requests, step_table(), Fleet(scheduler=tight))
    assert not served.preempted.any()
    assert served.peak_blocks <= 300
    eager = serve_requests(
        requests, step_table(), Fleet(scheduler=replace(tight, admission=Admission.PROMPT))
    )
    assert eager.preempted.any()
