"""Prompts and answers apart: laws, and both pools in turns against both run in rounds until
arrivals settle."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from shardwright.errors import InfeasibleError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Poisson,
    ServingJob,
)
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.disaggregated_serving import serve_disaggregated
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.kv_cache_transfer import CacheLink, CacheTransfers
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests
from tests.serving.random_runs import constant, lengths, random_run, scheduler, step_table
from tests.serving.split_rounds import shared_ends, split_in_rounds
from tests.tiers import seeds

FREE = CacheLink(bandwidth=np.inf, latency_s=0.0, bytes_per_token=1.0)


def test_equal_parts_of_a_link() -> None:
    """Two transfers of a second that overlap by half of it."""
    link = CacheTransfers()
    link.begin(0.0, alone=1.0, transfer=0)
    assert link.next_end == 1.0
    assert not link.pop_ended(until=0.5)
    link.begin(0.5, alone=1.0, transfer=1)
    # Until 0.5 the first is alone; then each has a half; the first ends at 1.5, the second at 2.
    assert link.pop_ended(until=1.7) == [(1.5, 0)]
    assert link.pop_ended(until=np.inf) == [(2.0, 1)]
    assert link.next_end == np.inf


def test_a_link_that_is_looked_at_again_and_again_is_the_one_that_knows_all() -> None:
    random = np.random.default_rng(0)
    begins, work = np.sort(random.random(200) * 40), random.random(200)
    link, found = CacheTransfers(), np.zeros(200)
    for i, begin in enumerate(begins.tolist()):
        for until in np.sort(random.random(3)) * (begin - link.now) + link.now:
            for at, which in link.pop_ended(until=float(until)):
                found[which] = at
        for at, which in link.pop_ended(until=begin):
            found[which] = at
        link.begin(begin, alone=float(work[i]), transfer=i)
    for at, which in link.pop_ended(until=np.inf):
        found[which] = at
    assert np.array_equal(found, shared_ends(begins, work, np.zeros(200, dtype=np.int64)))
    # Nothing is lost or made: a link that is busy all the time ends when all its work is done.
    early = begins / 1000
    ends = shared_ends(early, work, np.zeros(200, dtype=np.int64))
    assert ends.max() == pytest.approx(early[0] + work.sum())
    assert np.all(ends - early >= work - 1e-12)


def random_split(
    seed: int,
) -> tuple[Requests, tuple[StepTable, StepTable], tuple[Fleet, Fleet], CacheLink, float]:
    """Two pools of `random_run`, a link that may be slow, fast or in layers, and a pause that may
    be none."""
    random = np.random.default_rng(seed)
    (requests, before, first), (_, behind, second) = random_run(seed), random_run(seed + 1_000_000)
    think_s = float(random.choice([0.0, 1e-3, 0.1]))
    # Some requests fit the one pool and not the other, but where there is no pause: who is refused
    # would bring himself in a round.
    one, block = first.scheduler, first.scheduler.block_tokens
    most = int(random.choice([150, 600, 20_000])) if think_s else 20_000
    other = replace(
        second.scheduler,
        batching=one.batching,
        admission=one.admission,
        estimate=one.estimate,
        chunked_prefill=one.chunked_prefill or not think_s,
        prefix_cache=False,
        block_tokens=block,
        blocks=most // block + 2,
    )
    if not think_s:
        one = replace(one, chunked_prefill=True, blocks=other.blocks)
    link = CacheLink(
        bandwidth=float(random.choice([1e6, 1e9, np.inf])),
        latency_s=float(random.choice([0.0, 1e-5, 0.03])),
        bytes_per_token=float(random.choice([1.0, 1e4])),
        bytes_per_sequence=float(random.choice([0.0, 1e3])),
        layers=int(random.choice([1, 8])),
    )
    if requests.concurrency and think_s:
        # Those of the beginning arrive one after the other, some behind who is brought by the first
        # that are done.
        count = min(requests.concurrency, len(requests.inputs))
        requests.arrival_s[:count] += np.linspace(0.0, float(random.choice([0.1, 2.0])), count)
    return (
        requests,
        (before, behind),
        (replace(first, scheduler=one), replace(second, scheduler=other)),
        link,
        think_s,
    )


@pytest.mark.parametrize("seed", seeds(30, 600))
def test_both_pools_in_turns_are_both_in_rounds(seed: int) -> None:
    requests, tables, fleets, link, think_s = random_split(seed)
    try:
        rounds, _ = split_in_rounds(requests, tables, fleets, link, think_s=think_s)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            serve_disaggregated(requests, tables, fleets, link, think_s=think_s)
        return
    turns = serve_disaggregated(requests, tables, fleets, link, think_s=think_s)
    for name in ("served", "prefill", "decode"):
        for each in fields(ServedRequests):
            one, other = (
                getattr(getattr(turns, name), each.name),
                getattr(getattr(rounds, name), each.name),
            )
            np.testing.assert_array_equal(one, other, err_msg=f"{name}.{each.name}")
    np.testing.assert_array_equal(turns.transfer_s, rounds.transfer_s)


@pytest.mark.parametrize("batching", tuple(Batching))
def test_free_transfer_and_endless_decode_are_the_prefill_queue_alone(batching: Batching) -> None:
    requests = draw_requests(
        ServingJob(
            arrivals=Poisson(per_second=30.0, requests=300),
            lengths=lengths((100, 2000), (2, 50)),
            seed=7,
        ),
        block_tokens=16,
    )
    own = scheduler(batching, token_budget=4096)
    endless = scheduler(max_sequences=1000, blocks=10**6, token_budget=10**4)
    split = serve_disaggregated(
        requests,
        (step_table(), constant(1e-12)),
        (Fleet(scheduler=own), Fleet(scheduler=endless)),
        FREE,
    )
    alone = serve_requests(
        replace(requests, outputs=np.ones_like(requests.outputs)),
        step_table(),
        Fleet(scheduler=own),
    )
    np.testing.assert_allclose(split.served.first_s, alone.last_s, rtol=1e-8)
    np.testing.assert_allclose(split.served.last_s, alone.last_s, rtol=1e-8)


def test_a_transfer_waits_for_its_bytes() -> None:
    requests = draw_requests(
        ServingJob(
            arrivals=Poisson(per_second=0.01, requests=20), lengths=lengths((512, 512), (2, 2))
        ),
        block_tokens=16,
    )
    fleets = (Fleet(scheduler=scheduler()), Fleet(scheduler=scheduler()))
    link = CacheLink(bandwidth=1e9, latency_s=0.001, bytes_per_token=1e6)
    split = serve_disaggregated(requests, (constant(0.01), constant(0.002)), fleets, link)
    np.testing.assert_allclose(split.transfer_s, 0.001 + 0.512)
    np.testing.assert_allclose(split.served.first_s - split.served.arrival_s, 0.010 + 0.513 + 0.002)
    np.testing.assert_allclose(split.served.last_s - split.served.first_s, 0.002)
    brought = (fleets[0], Fleet(scheduler=scheduler(Batching.PREFILL_FIRST)))
    split = serve_disaggregated(requests, (constant(0.01), constant(0.002)), brought, link)
    np.testing.assert_allclose(split.served.first_s - split.served.arrival_s, 0.010 + 0.513)
    np.testing.assert_allclose(split.served.last_s - split.served.first_s, 0.002)
    layered = serve_disaggregated(
        requests, (constant(0.01), constant(0.002)), fleets, replace(link, layers=16)
    )
    np.testing.assert_allclose(layered.transfer_s, 0.001 + 0.032)


def test_a_closed_loop_goes_round_both_pools() -> None:
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=8, requests=80),
        lengths=lengths((100, 1000), (1, 60)),
        seed=3,
    )
    requests = draw_requests(job, block_tokens=16)
    fleets = (Fleet(scheduler=scheduler(), workers=2), Fleet(scheduler=scheduler(), workers=3))
    link = CacheLink(bandwidth=5e9, latency_s=0.0005, bytes_per_token=1e5)
    split = serve_disaggregated(requests, (step_table(), step_table()), fleets, link, think_s=0.001)
    served = split.served
    inside = [
        ((served.arrival_s <= t) & (served.last_s > t)).sum() for t in np.sort(served.arrival_s)
    ]
    assert max(inside) == 8
    # The k-th to be done brings the k-th behind the first eight.
    np.testing.assert_allclose(
        served.arrival_s[8:], np.sort(served.last_s)[:72] + 0.001, rtol=1e-12
    )
    assert np.all(served.last_s >= served.first_s)


def test_who_brings_his_cache_needs_no_part_of_a_chunk() -> None:
    """A decode worker of SGLang whose chunk is smaller than a block still lets everybody in, all
    that came at once."""
    requests = draw_requests(
        ServingJob(
            arrivals=ClosedLoop(concurrency=8, requests=40),
            lengths=lengths((100, 200), (5, 9)),
            seed=1,
        ),
        block_tokens=64,
    )
    own = scheduler(Batching.PREFILL_FIRST, block_tokens=64, token_budget=4096, knows_ends=True)
    fleets = (Fleet(scheduler=own), Fleet(scheduler=replace(own, token_budget=16)))
    split = serve_disaggregated(requests, (constant(0.01), constant(0.002)), fleets, FREE)
    assert np.all(split.served.last_s > split.served.first_s)
    # The first eight prompts end together, and each answer's further tokens take an iteration each
    # from then on.
    np.testing.assert_allclose(split.served.last_s[:8], 0.01 + 0.002 * (requests.outputs[:8] - 1))


def test_a_prompt_that_comes_with_its_cache_takes_none_of_the_budget() -> None:
    """Eight requests of 1,024 tokens on a worker whose iterations have eight: one token of each."""
    requests = draw_requests(
        ServingJob(
            arrivals=ClosedLoop(concurrency=8, requests=24), lengths=lengths((1024, 1024), (9, 9))
        ),
        block_tokens=16,
    )
    few = scheduler(
        Batching.IN_FLIGHT,
        token_budget=8,
        max_sequences=8,
        chunked_prefill=False,
        admission=Admission.WHOLE,
        blocks=1000,
    )
    before = scheduler(
        Batching.IN_FLIGHT,
        token_budget=8192,
        chunked_prefill=False,
        admission=Admission.WHOLE,
        blocks=1000,
    )
    split = serve_disaggregated(
        requests,
        (step_table(), step_table()),
        (Fleet(scheduler=before), Fleet(scheduler=few)),
        FREE,
    )
    assert not np.isnan(split.served.last_s).any()
    assert np.isnan(serve_requests(requests, step_table(), Fleet(scheduler=few)).last_s).all()
