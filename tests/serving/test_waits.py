"""Prompts that wait for company: as TensorRT-LLM's rules say, the same in both loops."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    ServingJob,
    Trace,
)
from shardwright.runtime.serving_engines.engine_options import engine_with_options
from shardwright.runtime.serving_engines.engine_registry import load_engine
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.deployments.deployment_notation import parse_worker
from shardwright.serving.deployments.scheduler_settings import scheduler_settings
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.serving.traffic.requests_and_outcomes import ServedRequests
from tests.serving.random_runs import constant, lengths, scheduler, step_table
from tests.tiers import cases


@pytest.mark.parametrize("seed", cases(range(24), 12))
def test_folded_is_unfolded(seed: int) -> None:
    random = np.random.default_rng(seed)
    balanced = bool(random.integers(2))
    limit = int(random.integers(1, 30))
    waits = (
        {"balance_iterations": limit}
        if balanced
        else {"wait_iterations": limit, "wait_tokens": int(random.integers(10, 2000))}
    )
    one = scheduler(
        Batching.IN_FLIGHT,
        asynchronous=bool(random.integers(2)),
        chunked_prefill=bool(random.integers(2)),
        max_sequences=int(random.integers(3, 20)),
        blocks=int(random.integers(60, 1000)),
        draft_tokens=int(random.integers(2)),
        **waits,
    )
    fleet = Fleet(
        scheduler=one, workers=int(random.integers(1, 3)), ranks=4 if balanced else 1, think_s=0.01
    )
    loop = ClosedLoop(concurrency=int(random.integers(5, 40)), requests=150)
    requests = draw_requests(
        ServingJob(arrivals=loop, lengths=lengths((1, 300), (1, 60)), seed=seed), block_tokens=16
    )
    folded, unfolded = (
        serve_requests(requests, step_table(), fleet),
        serve_requests_in_python(requests, step_table(), fleet),
    )
    for field in fields(ServedRequests):
        first, other = getattr(folded, field.name), getattr(unfolded, field.name)
        np.testing.assert_allclose(first, other, rtol=1e-12, atol=1e-15, err_msg=field.name)


def late(count: int) -> Trace:
    """Two long answers from the beginning, and `count` short ones that come during the iteration
    behind a second of iterations of 10 ms."""
    return Trace(
        arrival_s=np.array([0.0, 0.0, *[1.005] * count]),
        inputs=np.array([100] * (2 + count)),
        outputs=np.array([400, 400, *[5] * count]),
    )


def first_tokens(trace: Trace, fleet: Fleet) -> list[float]:
    """Seconds at which the late ones have their first token."""
    requests = draw_requests(ServingJob(arrivals=trace), block_tokens=16)
    served = serve_requests(requests, constant(0.01), fleet)
    np.testing.assert_allclose(
        served.first_s,
        serve_requests_in_python(requests, constant(0.01), fleet).first_s,
        rtol=1e-12,
    )
    return [float(seconds) for seconds in served.first_s[2:]]


def test_a_prompt_alone_waits_for_the_count_of_iterations_without_all_ranks() -> None:
    """It counts on, prompts or none, so that a prompt waits for what is left of it: here 19 of
    20."""
    one = scheduler(Batching.IN_FLIGHT, balance_iterations=20)
    assert first_tokens(late(1), Fleet(scheduler=one, ranks=2)) == pytest.approx([1.21])
    assert first_tokens(
        late(1), Fleet(scheduler=replace(one, balance_iterations=0), ranks=2)
    ) == pytest.approx([1.02])


def test_prompts_of_all_ranks_do_not_wait() -> None:
    one = scheduler(Batching.IN_FLIGHT, balance_iterations=20)
    assert first_tokens(late(2), Fleet(scheduler=one, ranks=2)) == pytest.approx([1.02, 1.02])


def test_a_rank_without_answers_ends_the_waiting() -> None:
    """Two of three ranks decode; the third has nothing else to do than the prompt that comes to
    it."""
    one = scheduler(Batching.IN_FLIGHT, balance_iterations=20)
    assert first_tokens(late(1), Fleet(scheduler=one, ranks=3)) == pytest.approx([1.02])


def test_prompts_wait_to_fill_a_share_of_the_budget() -> None:
    """The count begins with the first prompt, and ends early with enough tokens, those of answers
    among them."""
    one = Fleet(scheduler=scheduler(Batching.IN_FLIGHT, wait_iterations=15, wait_tokens=1000))
    assert first_tokens(late(1), one) == pytest.approx([1.17])
    assert first_tokens(late(9), one) == pytest.approx([1.17] * 9)
    assert first_tokens(late(10), one) == pytest.approx([1.02] * 10)


def test_which_rule_a_worker_has() -> None:
    options = {"balance_iterations": "60", "wait_iterations": "40", "wait_share": "0.8"}
    engine = engine_with_options(load_engine("tensorrt-llm-1.2"), options.items())
    ranks = scheduler_settings(engine, parse_worker("dpa8 ep8"), blocks=100)
    assert (ranks.balance_iterations, ranks.wait_iterations, ranks.wait_tokens) == (60, 0, 0)
    alone = scheduler_settings(engine, parse_worker("tp8"), blocks=100)
    assert (alone.balance_iterations, alone.wait_iterations, alone.wait_tokens) == (0, 40, 6554)


def test_only_batches_in_flight_wait() -> None:
    with pytest.raises(ValueError, match="in-flight batching alone"):
        scheduler(Batching.MIXED, wait_iterations=3)
    with pytest.raises(ValueError, match="either"):
        scheduler(Batching.IN_FLIGHT, wait_iterations=3, balance_iterations=3)
