from __future__ import annotations

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Poisson,
    ServingJob,
)
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.simulation.closed_form_mean_estimate import (
    MeanLoad,
    estimate_stacked,
    stack_tables,
)
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import (
    DraftAcceptance,
    Fleet,
)
from shardwright.serving.simulation.latency_and_throughput_metrics import metrics
from shardwright.serving.traffic.draw_requests import draw_requests
from tests.serving.random_runs import constant, lengths, scheduler, step_table


def test_one_request_at_a_time() -> None:
    """A request alone: an iteration for its prompt, and one for each further token."""
    fleet = Fleet(scheduler=scheduler(draft_tokens=0))
    found = estimate_stacked(
        stack_tables([constant(0.01)], [fleet], context=0.0),
        MeanLoad(inputs=100, outputs=101, concurrency=1),
    )
    assert found.tpot_s[0] == pytest.approx(0.01)
    assert found.ttft_s[0] == pytest.approx(0.01, rel=1e-6)
    assert found.requests_per_second[0] == pytest.approx(1 / 1.01, rel=1e-6)


@pytest.mark.parametrize("batching", tuple(Batching))
@pytest.mark.parametrize("concurrency", [1, 8, 48])
def test_near_the_simulation(batching: Batching, concurrency: int) -> None:
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=concurrency, requests=20 * concurrency),
        lengths=lengths((480, 520), (190, 210)),
    )
    requests = draw_requests(job, block_tokens=16)
    fleet = Fleet(scheduler=scheduler(batching, token_budget=4096))
    seen = metrics(requests, serve_requests(requests, step_table(), fleet))
    load = MeanLoad(inputs=500, outputs=200, concurrency=concurrency)
    found = estimate_stacked(stack_tables([step_table()], [fleet], context=600.0), load)
    assert found.tpot_s[0] == pytest.approx(seen.tpot.mean, rel=0.12)
    assert found.tokens_per_second[0] == pytest.approx(seen.tokens_per_second, rel=0.15)


def test_guesses_yield_more_tokens() -> None:
    fleets = [
        Fleet(scheduler=scheduler(draft_tokens=2), acceptance=DraftAcceptance(acceptance=a))
        for a in (0.0, 0.7)
    ]
    found = estimate_stacked(
        stack_tables([constant(0.01)] * 2, fleets, context=0.0),
        MeanLoad(inputs=100, outputs=220, concurrency=1),
    )
    assert found.tpot_s[0] / found.tpot_s[1] == pytest.approx(2.19)


def test_a_stream_is_served_or_is_not() -> None:
    fleet = Fleet(scheduler=scheduler(max_sequences=8))
    tables = stack_tables([step_table()], [fleet], context=600.0)
    most = estimate_stacked(
        tables, MeanLoad(inputs=500, outputs=200, concurrency=10**6)
    ).requests_per_second[0]
    under = estimate_stacked(tables, MeanLoad(inputs=500, outputs=200, per_second=0.5 * most))
    assert under.requests_per_second[0] == pytest.approx(0.5 * most, rel=1e-3)
    assert np.isfinite(under.e2e_s[0])
    over = estimate_stacked(tables, MeanLoad(inputs=500, outputs=200, per_second=1.5 * most))
    assert np.isinf(over.ttft_s[0])
    requests = draw_requests(
        ServingJob(
            arrivals=Poisson(per_second=0.5 * most, requests=400),
            lengths=lengths((480, 520), (190, 210)),
        ),
        block_tokens=16,
    )
    seen = metrics(requests, serve_requests(requests, step_table(), fleet))
    assert under.tpot_s[0] == pytest.approx(seen.tpot.mean, rel=0.15)


def test_more_workers_serve_more() -> None:
    fleets = [Fleet(scheduler=scheduler(), workers=n) for n in (1, 4)]
    found = estimate_stacked(
        stack_tables([step_table()] * 2, fleets, context=600.0),
        MeanLoad(inputs=500, outputs=200, concurrency=128),
    )
    assert found.tokens_per_second[1] > 1.5 * found.tokens_per_second[0]
    assert found.tpot_s[1] < found.tpot_s[0]
