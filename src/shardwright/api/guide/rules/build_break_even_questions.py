"""Break-even questions along an axis of the request, which several rules ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from shardwright.api.guide.best_plan_record import BestPlan, with_pins
from shardwright.api.guide.find_value_where_best_plan_changes import BreakEvenQuestion
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import powers_of_two
from shardwright.api.what_if.axes_of_request import (
    AXES,
    DEVICES,
    request_at,
    usual_values,
    why_without,
)
from shardwright.errors import ShardwrightError
from shardwright.hardware.split_and_apply_scale_factors_of_cluster_text import MEMORY, NETWORK
from shardwright.search.search_request import Choices, Request
from shardwright.strategy.grid.parallelism_grid import Grid

LENGTHS: Final = (2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
MOST_DEVICES: Final = 32768
"""Devices up to which a number that fits is searched."""


def batch_question(
    facts: RequestFacts, *, has: Callable[[Grid], bool], change: str, pins: Choices = ()
) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from which global batch on has the best plan a property? 1/8 to 8 x the request's.

    Args:
        pins: further pins of all plans; None is returned where they contradict the request's.
    """
    least = max(facts.request.global_batch // 8, 1)
    request = with_pins(facts.request, pins)
    if request is None:
        return None
    return _question(
        facts,
        axis="global batch",
        values=tuple(least * factor for factor in powers_of_two(1, 64)),
        request_at=lambda batch: replace(request, global_batch=batch),
        has=has,
        change=change,
    )


def length_question(
    facts: RequestFacts, *, has: Callable[[Grid], bool], change: str, pins: Choices = ()
) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from which sequence length on has the best plan a property, at equal tokens a step?

    None where the pins contradict the request's.
    """
    request = with_pins(facts.request, pins)
    if request is None:
        return None
    return _question(
        facts,
        axis="sequence length",
        values=LENGTHS,
        request_at=lambda length: request_of_length(request, length),
        has=has,
        change=change,
    )


def request_of_length(request: Request, length: int) -> Request:
    """The request with sequences of another length and about as many tokens a step."""
    tokens = request.seq_len * request.global_batch
    return replace(request, seq_len=length, global_batch=max(tokens // length, 1))


def device_question(
    facts: RequestFacts, *, values: Sequence[int], has: Callable[[Grid], bool], change: str
) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from which of some numbers of devices on has the best plan a property?

    None where fewer than two of the numbers make a valid request.
    """
    requests = {count: _request_of_devices(facts, count) for count in values}
    valid = {count: request for count, request in requests.items() if request is not None}
    if len(valid) < 2:
        return None
    return _question(
        facts,
        axis="devices",
        values=tuple(valid),
        request_at=valid.__getitem__,
        has=has,
        change=change,
    )


def _request_of_devices(facts: RequestFacts, count: int) -> Request | None:
    """The request on a number of devices, of its cluster or a larger one; None if invalid."""
    if count == facts.devices:
        return facts.request
    if count < facts.devices:
        return replace(facts.request, max_devices=count)
    try:
        return request_at(facts.request, AXES[DEVICES], count, {})
    except ShardwrightError:
        return None


def fit_question(facts: RequestFacts) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from how many devices on does a plan fit? Up to 64 x the request's number.

    None if a plan fits already: the search on the fewest devices takes longest of all.
    """
    if facts.best.grid is not None:
        return None
    numbers = (facts.devices * factor for factor in powers_of_two(1, 64))
    return device_question(
        facts,
        values=tuple(number for number in numbers if number <= MOST_DEVICES),
        has=lambda _: True,
        change="A plan fits",
    )


def network_question(
    facts: RequestFacts, *, has: Callable[[Grid], bool], change: str, pins: Choices = ()
) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from which bandwidth of a network card on has the best plan a property?

    None where one scale-up domain has all devices.
    """
    if why_without(facts.request, AXES[NETWORK], {}):
        return None
    return _factor_question(facts, name=NETWORK, has=has, change=change, pins=pins)


def memory_question(
    facts: RequestFacts, *, has: Callable[[Grid], bool], change: str, pins: Choices = ()
) -> BreakEvenQuestion[BestPlan] | None:
    """Question: from which memory of a device on has the best plan a property?"""
    return _factor_question(facts, name=MEMORY, has=has, change=change, pins=pins)


def _factor_question(
    facts: RequestFacts, *, name: str, has: Callable[[Grid], bool], change: str, pins: Choices
) -> BreakEvenQuestion[BestPlan] | None:
    """Question along a quantity of the cluster, at the values of what-if questions.

    None where pins contradict the request's, or the cluster's text cannot have the factor.
    """
    axis, request = AXES[name], with_pins(facts.request, pins)
    assert axis.amount is not None
    own = axis.amount(facts.problem.cluster, {})
    factors = {round(own * factor): factor for factor in usual_values(facts.request, axis, {})}
    if request is None or len(factors) < 2:
        return None

    def with_amount(amount: int) -> Request:
        """The request on a cluster with an amount of the quantity."""
        return request_at(request, axis, factors[amount], {})

    return _question(
        facts,
        axis=f"{name} of a device",
        values=tuple(factors),
        request_at=with_amount,
        has=has,
        change=change,
    )


def _question(
    facts: RequestFacts,
    *,
    axis: str,
    values: tuple[int, ...],
    request_at: Callable[[int], Request],
    has: Callable[[Grid], bool],
    change: str,
) -> BreakEvenQuestion[BestPlan]:
    """Question about the searched plans of requests; a request without a plan has no property.

    Args:
        request_at: request with a value of the axis.
        has: the property of a plan that fits.
    """
    return BreakEvenQuestion(
        axis=axis,
        values=values,
        plan_at=lambda value: facts.search(request_at(value)),
        has=lambda plan: plan.grid is not None and has(plan.grid),
        change=change,
    )
