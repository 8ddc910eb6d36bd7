"""Iterations of a pipeline: groups of requests that stay apart, and hosts that work ahead of their
devices or wait for them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import ClosedLoop, ServingJob
from shardwright.runtime.serving_engines.engine_defaults_on_device import (
    EngineSite,
    engine_on_device,
)
from shardwright.runtime.serving_engines.engine_registry import load_engine
from shardwright.runtime.serving_engines.serving_engine import Batching
from shardwright.serving.deployments.deployment_notation import parse_worker
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.scheduler_settings import running_at_once, scheduler_settings
from shardwright.serving.policy.scheduler_state import SchedulerState
from shardwright.serving.simulation.compiled_simulation_loop import serve_requests
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.step_times.build_step_table import step_table as table_of
from shardwright.serving.traffic.draw_requests import draw_requests
from shardwright.units import GIB
from tests.serving.problems import problem
from tests.serving.random_runs import constant, lengths, scheduler, step_table

STAGES = 4


@pytest.mark.parametrize("batching", [Batching.MIXED, Batching.IN_FLIGHT])
def test_requests_of_iterations_that_end_together_stay_apart(batching: Batching) -> None:
    """Sixteen prompts fill a budget, so that four groups of sixteen decode; iterations with prompts
    are thirty times as long, and those behind them end when they do.
    """
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=64, requests=640), lengths=lengths((128, 128), (50, 50))
    )
    requests = draw_requests(job, block_tokens=16)
    fleet = Fleet(scheduler=scheduler(batching, token_budget=2048 + 16))
    sizes: list[int] = []

    def watch(_: float, state: SchedulerState, rank: int, slot: int) -> None:
        sizes.append(int(state.batch_size[rank, slot]))

    served = serve_requests_in_python(requests, step_table(stages=STAGES), fleet, watcher=watch)
    assert max(sizes) <= 32
    assert np.mean(sizes) == pytest.approx(16, rel=0.1)
    np.testing.assert_allclose(
        served.last_s, serve_requests(requests, step_table(stages=STAGES), fleet).last_s, rtol=1e-12
    )


def test_a_group_has_its_turn_once_in_as_many_iterations_as_there_are_stages() -> None:
    """Of 10 ms in four stages: a token each 10 ms, whichever of the four groups a request is in."""
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=8, requests=8), lengths=lengths((64, 64), (101, 101))
    )
    fleet = Fleet(scheduler=scheduler(Batching.IN_FLIGHT, token_budget=128))
    served = serve_requests(
        draw_requests(job, block_tokens=16), constant(0.01, stages=STAGES, asynchronous=True), fleet
    )
    np.testing.assert_allclose((served.last_s - served.first_s) / 100, 0.01, rtol=0.02)


def test_the_host_hands_kernels_over_before_it_does_the_rest() -> None:
    """8 ms of launches and 5 ms of the rest, in one thread: 13 ms where the device has 10, and 15
    where it is waited for."""
    nothing, two = np.zeros(2), np.array([0, 1])
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=1, requests=1), lengths=lengths((1, 1), (101, 101))
    )
    requests = draw_requests(job, block_tokens=16)
    fleet = Fleet(scheduler=scheduler())
    for ahead, expected in ((True, 0.013), (False, 0.015)):
        base = constant(0.010, asynchronous=ahead)
        table = replace(base, tokens=two, launching=nothing + 0.008, host_s=0.005)
        served = serve_requests(requests, table, fleet)
        assert (served.last_s - served.first_s)[0] / 100 == pytest.approx(expected)
        graphs = replace(table, captured=np.array([1, 2]))
        served = serve_requests(requests, graphs, fleet)
        assert (served.last_s - served.first_s)[0] / 100 == pytest.approx(0.010 if ahead else 0.015)


def test_tensorrt_llm_waits_for_each_stage_and_counts_requests_by_stage() -> None:
    engine = load_engine("tensorrt-llm-1.0")
    site = EngineSite(memory_bytes=96 * GIB, generation=10)
    assert engine_on_device(engine, site).asynchronous
    assert not engine_on_device(engine, replace(site, pp=STAGES)).asynchronous
    assert engine_on_device(load_engine("vllm-0.15"), replace(site, pp=STAGES)).asynchronous
    own = engine_on_device(engine, replace(site, pp=STAGES))
    worker = parse_worker("tp1 pp4 seqs256")
    assert (
        running_at_once(own, worker)
        == scheduler_settings(own, worker, blocks=10).max_sequences
        == 1024
    )
    assert running_at_once(load_engine("vllm-0.15"), worker) == 256


def test_each_stages_host_adds_to_what_it_waits_for() -> None:
    asked = replace(problem("llama-3.1-70b", "h200-sxm:8"), engine=load_engine("tensorrt-llm-1.0"))
    worker = parse_worker("tp2 pp4")
    own = problem_on_worker(asked, worker)
    table = table_of(own, worker)
    assert not table.asynchronous
    assert table.host_s == pytest.approx(4 * own.constants.host_iteration_s)
    assert table.host_sequence_s == pytest.approx(4 * own.constants.host_sequence_s)
