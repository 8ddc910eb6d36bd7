"""More devices are never worse: plans may leave some idle, say so, and say what else to ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwright.api.request_to_problem import problem_of, with_defaults
from shardwright.api.searches.grid_search import check, plan
from shardwright.api.searches.joint_layer_cut_and_schedule_search import plan_joint
from shardwright.api.searches.nearby_batches_and_devices import MIN_GAIN
from shardwright.hardware.scale_network_limit_devices_reserve_memory import limit_devices
from shardwright.search.search_answer import Answer
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid

ASKED = Request(model="llama-3.1-8b", cluster="h100-sxm:72", seq_len=4096, global_batch=64)
"""Nine nodes and a batch that nine does not divide."""


@pytest.fixture(scope="module")
def answer() -> Answer:
    return plan(ASKED)


def test_devices_stay_idle_where_that_is_faster(answer: Answer) -> None:
    assert (
        answer.prediction.devices == answer.grid.devices == 72 - answer.prediction.idle_devices < 72
    )
    assert answer.grid.devices % 8 == 0
    assert answer.certificate.optimal


def test_a_plan_costs_the_same_where_the_others_are_idle_and_where_there_are_none(
    answer: Answer,
) -> None:
    problem = problem_of(ASKED)
    fewer = replace(
        problem, cluster=limit_devices(problem.cluster, num_devices=answer.grid.devices)
    )
    assert simulate_grid(fewer, answer.grid).step_time_s == answer.prediction.step_time_s


@pytest.mark.proof
def test_more_devices_are_never_slower() -> None:
    steps = [
        plan(replace(ASKED, cluster=f"h100-sxm:{count}", top=0)).prediction.step_time_s
        for count in range(24, 48, 8)
    ]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.proof
def test_using_all_of_them_is_slower(answer: Answer) -> None:
    everything = plan(replace(ASKED, use_all=True, top=0))
    assert everything.grid.devices == 72
    assert not everything.prediction.idle_devices
    assert answer.prediction.step_time_s < everything.prediction.step_time_s


def test_what_would_use_all_is_named_and_holds(answer: Answer) -> None:
    assert answer.nearby
    for other in answer.nearby:
        asked = replace(
            ASKED,
            cluster=f"h100-sxm:{other.devices}",
            global_batch=other.global_batch,
            use_all=True,
            top=0,
        )
        found = plan(asked).prediction
        assert found.step_time_s == other.step_time_s
        rates = [p.tokens_per_s / (p.devices + p.idle_devices) for p in (found, answer.prediction)]
        assert other.gain == pytest.approx(rates[0] / rates[1] - 1)
        assert other.gain >= MIN_GAIN


@pytest.mark.proof
def test_an_answer_with_idle_devices_is_checked_like_any_other(answer: Answer) -> None:
    assert check(with_defaults(ASKED), answer).enumerated == answer.certificate.enumerated


@pytest.mark.proof
def test_the_joint_space_begins_with_the_devices_of_the_best_grid(answer: Answer) -> None:
    asked = replace(
        ASKED, model="llama-3.2-1b", cluster="h100-sxm:24", global_batch=16, seq_len=2048, top=0
    )
    grid, joint = plan(asked), plan_joint(replace(asked, space="joint-named"))
    assert grid.prediction.idle_devices
    assert joint.step_time_s <= grid.prediction.step_time_s
