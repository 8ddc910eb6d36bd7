from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.job.serving import ClosedLoop, Poisson, ServingJob
from shardwright.runtime.engines.engine import Batching
from shardwright.serving.disaggregation import Link, serve_split, shared_seconds
from shardwright.serving.draw import draw
from shardwright.serving.fleet import Fleet
from shardwright.serving.loop import serve
from tests.serving.random_runs import constant, lengths, scheduler, step_table

FREE = Link(bandwidth=np.inf, latency_s=0.0, bytes_per_token=1.0)


def test_equal_parts_of_a_link() -> None:
    """Two transfers of a second that overlap by half of it."""
    alone = np.ones(3)
    found = shared_seconds(np.array([0.0, 0.5, 0.5]), alone, np.array([0, 0, 1]))
    # Until 0.5 the first is alone; then each has a half; the first ends at 1.5, the second at 2.
    assert found.tolist() == pytest.approx([1.5, 1.5, 1.0])
    # Nothing is lost or made: a link that is busy all the time ends when all its work is done.
    random = np.random.default_rng(0)
    begins, work = np.sort(random.random(50) * 0.1), random.random(50)
    ends = begins + shared_seconds(begins, work, np.zeros(50, dtype=np.int64))
    assert ends.max() == pytest.approx(begins[0] + work.sum())
    assert np.all(ends - begins >= work - 1e-12)


@pytest.mark.parametrize("batching", tuple(Batching))
def test_free_transfer_and_endless_decode_are_the_prefill_queue_alone(batching: Batching) -> None:
    requests = draw(
        ServingJob(arrivals=Poisson(per_second=30.0, requests=300), lengths=lengths((100, 2000), (2, 50)), seed=7), block_tokens=16
    )
    own = scheduler(batching, token_budget=4096)
    endless = scheduler(max_sequences=1000, blocks=10**6, token_budget=10**4)
    split = serve_split(requests, (step_table(), constant(1e-12)), (Fleet(scheduler=own), Fleet(scheduler=endless)), FREE)
    alone = serve(replace(requests, outputs=np.ones_like(requests.outputs)), step_table(), Fleet(scheduler=own))
    np.testing.assert_allclose(split.served.first_s, alone.last_s, rtol=1e-8)
    np.testing.assert_allclose(split.served.last_s, alone.last_s, rtol=1e-8)


def test_a_transfer_waits_for_its_bytes() -> None:
    requests = draw(ServingJob(arrivals=Poisson(per_second=0.01, requests=20), lengths=lengths((512, 512), (2, 2))), block_tokens=16)
    fleets = (Fleet(scheduler=scheduler()), Fleet(scheduler=scheduler()))
    link = Link(bandwidth=1e9, latency_s=0.001, bytes_per_token=1e6)
    split = serve_split(requests, (constant(0.01), constant(0.002)), fleets, link)
    np.testing.assert_allclose(split.transfer_s, 0.001 + 0.512)
    np.testing.assert_allclose(split.served.first_s - split.served.arrival_s, 0.010 + 0.513 + 0.002)
    np.testing.assert_allclose(split.served.last_s - split.served.first_s, 0.002)
    brought = (fleets[0], Fleet(scheduler=scheduler(Batching.PREFILL_FIRST)))
    split = serve_split(requests, (constant(0.01), constant(0.002)), brought, link)
    np.testing.assert_allclose(split.served.first_s - split.served.arrival_s, 0.010 + 0.513)
    np.testing.assert_allclose(split.served.last_s - split.served.first_s, 0.002)
    layered = serve_split(requests, (constant(0.01), constant(0.002)), fleets, replace(link, layers=16))
    np.testing.assert_allclose(layered.transfer_s, 0.001 + 0.032)


def test_a_closed_loop_goes_round_both_pools() -> None:
    job = ServingJob(arrivals=ClosedLoop(concurrency=8, requests=80), lengths=lengths((100, 1000), (1, 60)), seed=3)
    requests = draw(job, block_tokens=16)
    fleets = (Fleet(scheduler=scheduler(), workers=2), Fleet(scheduler=scheduler(), workers=3))
    link = Link(bandwidth=5e9, latency_s=0.0005, bytes_per_token=1e5)
    split = serve_split(requests, (step_table(), step_table()), fleets, link, think_s=0.001)
    served = split.served
    inside = [((served.arrival_s <= t) & (served.last_s > t)).sum() for t in np.sort(served.arrival_s)]
    assert max(inside) == 8
    # The k-th to be done brings the k-th behind the first eight.
    np.testing.assert_allclose(served.arrival_s[8:], np.sort(served.last_s)[:72] + 0.001, rtol=1e-12)
    assert split.rounds > 2
    assert np.all(served.last_s >= served.first_s)
