"""The folded loop against the one that takes every iteration by itself, and laws that every run
obeys."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ClosedLoop, ServingJob
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.policy.scheduler_state import (
    FREE,
    NUM_RUNNING,
    NUM_WAITING,
    PROMISED,
    SchedulerState,
)
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import ServedRequests
from tests.serving.random_runs import lengths, random_run, scheduler, step_table
from tests.tiers import cases

SEEDS = cases(range(60), 30)


@pytest.mark.parametrize("seed", SEEDS)
def test_folded_is_unfolded(seed: int) -> None:
    requests, table, fleet = random_run(seed)
    folded, unfolded = (
        serve_requests(requests, table, fleet),
        serve_requests_in_python(requests, table, fleet),
    )
    for field in fields(ServedRequests):
        one, other = getattr(folded, field.name), getattr(unfolded, field.name)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15, err_msg=field.name)


@pytest.mark.parametrize("seed", range(8))
def test_who_is_brought_early_comes_before_the_first_ones_that_come_late(seed: int) -> None:
    """The first of a closed loop spread over a second: time never goes back, and both loops
    agree."""
    random, count = np.random.default_rng(seed), 20
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=count, requests=150, burst=False),
        lengths=lengths((1, 300), (1, 30)),
        seed=seed,
    )
    requests = draw_requests(job, block_tokens=16, answer_s=1.0)
    fleet = Fleet(
        scheduler=scheduler(tuple(Batching)[random.integers(3)]),
        workers=2,
        think_s=float(random.choice([0.0, 0.01])),
    )
    served, unfolded = (
        serve_requests(requests, step_table(), fleet),
        serve_requests_in_python(requests, step_table(), fleet),
    )
    brought = np.sort(served.last_s)[: 150 - count] + fleet.think_s
    np.testing.assert_array_equal(
        served.arrival_s, np.sort(np.concatenate([requests.arrival_s[:count], brought]))
    )
    assert brought[0] < requests.arrival_s[count - 1]
    np.testing.assert_allclose(served.last_s, unfolded.last_s, rtol=1e-12)
    assert np.all(served.first_s > served.arrival_s)


@pytest.mark.parametrize(
    ("seed", "workers"),
    [(seed, workers) for workers in (4, 5, 13) for seed in range(workers, workers + 8)],
)
def test_many_workers(seed: int, workers: int) -> None:
    """The next event is that of the first of the workers that are the soonest, however many there
    are."""
    requests, table, fleet = random_run(seed)
    many = replace(fleet, workers=workers)
    folded, unfolded = (
        serve_requests(requests, table, many),
        serve_requests_in_python(requests, table, many),
    )
    for field in fields(ServedRequests):
        one, other = getattr(folded, field.name), getattr(unfolded, field.name)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15, err_msg=field.name)


@pytest.mark.parametrize("seed", SEEDS)
def test_laws_of_a_run(seed: int) -> None:
    requests, table, fleet = random_run(seed)
    served = serve_requests(requests, table, fleet)
    done = ~np.isnan(served.last_s)
    assert np.array_equal(done, ~np.isnan(served.first_s))
    arrival, first, last = served.arrival_s[done], served.first_s[done], served.last_s[done]
    assert np.all(first > arrival)
    assert np.all(last >= first)
    assert np.all((last == first)[requests.outputs[done] == 1])
    assert np.all(served.cached[done] < requests.inputs[done])
    assert 0 < served.peak_blocks <= fleet.scheduler.blocks or not done.any()
    assert served.by_part.sum() == pytest.approx(served.busy_s, rel=1e-9)
    # Little's law of the queue: who waits in the mean is who arrives times how long each waits, if
    # nobody comes back to it.
    if done.any() and not served.preempted.any():
        horizon = last.max()
        assert served.queue * horizon == pytest.approx(
            served.waiting_s * done.sum(), rel=1e-9, abs=1e-9
        )


@pytest.mark.parametrize("seed", range(0, 60, 3))
def test_little_of_the_system(seed: int) -> None:
    """The integral of the number of requests in the system, counted iteration by iteration, is the
    sum of their times."""
    requests, table, fleet = random_run(seed)
    seen: list[tuple[float, int]] = []

    def watch(now: float, state: SchedulerState, rank: int, slot: int) -> None:
        seen.append(
            (now, int(state.ranks[:, NUM_WAITING].sum() + state.ranks[:, NUM_RUNNING].sum()))
        )

    served = serve_requests_in_python(requests, table, fleet, watcher=watch)
    done = ~np.isnan(served.last_s)
    start = requests.arrival_s[0]
    for now, count in seen[:: max(1, len(seen) // 20)]:
        at = now - start
        inside = (served.arrival_s <= at) & (served.last_s > at)
        chunked = fleet.scheduler.batching == "prefill-first"
        # A prompt that goes on is in neither queue where prompts run alone.
        assert 0 <= inside[done].sum() - count <= (fleet.workers * fleet.ranks if chunked else 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_is_given_back(seed: int) -> None:
    requests, table, fleet = random_run(seed)
    states: list[SchedulerState] = []
    serve_requests_in_python(
        requests,
        table,
        fleet,
        watcher=lambda now, state, rank, slot: states.append(state) if not states else None,
    )
    if not states:
        return
    (state,) = states
    assert np.all(state.ranks[:, FREE] == fleet.scheduler.blocks)
    assert not state.ranks[:, (NUM_WAITING, NUM_RUNNING, PROMISED)].any()
