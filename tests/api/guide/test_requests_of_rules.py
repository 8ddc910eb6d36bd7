"""Requests that rules make of the user's: other numbers of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from shardwright.api.guide.best_plan_record import BestPlan, searched_plan
from shardwright.api.guide.find_value_where_best_plan_changes import (
    BreakEvenQuestion,
    find_break_even,
)
from shardwright.api.guide.request_facts import facts_of_request
from shardwright.api.guide.rules import keep_degrees_on_twice_the_devices as twice_the_devices
from shardwright.api.guide.rules import technique_by_device_count
from shardwright.api.guide.rules.build_break_even_questions import (
    fit_question,
    memory_question,
    network_question,
)
from shardwright.api.guide.search_cached_plans import PlanSearches
from shardwright.api.request_to_problem import problem_of
from shardwright.hardware.cluster import Cluster
from shardwright.search.search_request import Request
from tests.api.guide.facts_of_requests import training_facts_without_plans

SMALL = Request(model="llama-3.2-1b", cluster="h100-sxm:2", seq_len=2048, global_batch=8)
REQUEST = Request(model="llama-3.2-1b", cluster="h100-sxm:64", seq_len=4096, global_batch=64)


@pytest.mark.parametrize("limit", [0, 16])
def test_a_number_of_devices_is_that_of_its_request(limit: int) -> None:
    """The largest is the user's own, also under ``--max-devices``."""
    request = replace(REQUEST, max_devices=limit)
    question = technique_by_device_count.advise(training_facts_without_plans(request)).break_even
    assert question is not None
    assert question.values[-1] == (limit or 64)
    assert question.plan_at(question.values[-1]).request == request
    for devices in question.values:
        assert problem_of(question.plan_at(devices).request).cluster.num_devices == devices


@pytest.mark.parametrize(
    ("question", "amount"),
    [
        (network_question, lambda cluster: cluster.node.network_per_device.bandwidth),
        (memory_question, lambda cluster: float(cluster.node.accelerator.memory_bytes)),
    ],
)
@pytest.mark.parametrize("cluster", ["h100-sxm:64", "h100-sxm:64,network=2x,memory=0.5x"])
def test_an_amount_is_that_of_the_cluster_of_its_request(
    question: Callable[..., BreakEvenQuestion[BestPlan] | None],
    amount: Callable[[Cluster], float],
    cluster: str,
) -> None:
    """The user's own amount is on the axis, with the user's own request."""
    request = replace(REQUEST, cluster=cluster)
    found = question(training_facts_without_plans(request), has=bool, change="")
    assert found is not None
    requests = [found.plan_at(value).request for value in found.values]
    assert request in requests
    for value, other in zip(found.values, requests, strict=True):
        assert amount(problem_of(other).cluster) == pytest.approx(value, rel=1e-9)


def test_no_network_inside_one_domain_and_no_factor_of_yaml_text() -> None:
    assert network_question(training_facts_without_plans(SMALL), has=bool, change="") is None
    assert memory_question(
        training_facts_without_plans(SMALL), has=bool, change="", pins=(("tp", ("2",)),)
    )
    pinned = replace(SMALL, pins=(("tp", ("1",)),))
    assert (
        memory_question(
            training_facts_without_plans(pinned), has=bool, change="", pins=(("tp", ("2",)),)
        )
        is None
    )


def test_devices_on_which_a_model_that_does_not_fit_fits() -> None:
    """70B on one device of 80 GB: the larger clusters are searched, up to 64 times as many."""
    large = replace(SMALL, model="llama-3.1-70b", cluster="h100-sxm:1")
    searches = PlanSearches()
    question = fit_question(facts_of_request(large, BestPlan(request=large), searches.best))
    assert question is not None
    assert question.values == (1, 2, 4, 8, 16, 32, 64)
    found = find_break_even(question, contents=searched_plan)
    below, above = found.sides
    assert (below.has, below.plan.strategy) == (False, "")
    assert above.has
    assert above.plan.strategy
    assert found.sentence.startswith(f"A plan fits from {above.value:,} devices on")


@pytest.mark.parametrize(
    ("cluster", "limit", "doubled"),
    [
        ("h100-sxm:2", 0, ("h100-sxm:4", 0)),
        ("2xh100-sxm", 0, ("4xh100-sxm", 0)),
        ("h100-sxm:2,network=2x", 0, ("h100-sxm:4,network=2x", 0)),
        ("h100-sxm:4", 2, ("h100-sxm:4", 4)),
    ],
)
def test_twice_the_devices_of_each_form_of_cluster(
    cluster: str, limit: int, doubled: tuple[str, int]
) -> None:
    request = replace(SMALL, cluster=cluster, max_devices=limit)
    searches = PlanSearches()
    advice = twice_the_devices.advise(
        facts_of_request(request, searches.best(request), searches.best)
    )
    assert advice.request is not None
    assert (advice.request.cluster, advice.request.max_devices) == doubled
    assert advice.words.startswith("On 4 devices")


def test_twice_the_devices_of_a_limited_cluster_are_too_many() -> None:
    advice = twice_the_devices.advise(training_facts_without_plans(replace(SMALL, max_devices=2)))
    assert advice.words == ""
    assert "4 devices of a cluster of 2" in advice.notes[0]
