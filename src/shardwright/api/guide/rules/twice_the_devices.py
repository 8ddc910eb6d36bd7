"""Rule: on twice as many devices keep the degrees and double the replicas."""

from __future__ import annotations

import re
from dataclasses import replace

from shardwright.api.guide.guide_rule import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.pin_choices import degree_pins
from shardwright.search.search_request import Request
from shardwright.units import format_percent

_COUNTED = re.compile(r"([^:+,\s]+):([0-9][0-9_,]*)")


def doubled(request: Request) -> Request | None:
    """The request on twice the devices; None without a NAME:COUNT cluster or with max_devices."""
    match = _COUNTED.fullmatch(request.cluster.strip())
    if match is None or request.max_devices:
        return None
    count = int(re.sub("[_,]", "", match[2]))
    return replace(request, cluster=f"{match[1]}:{2 * count}")


def advise(facts: RequestFacts) -> Advice:
    """The best plan's degrees on twice the devices, against a new search."""
    request = doubled(facts.request)
    if request is None:
        return Advice(notes=("The cluster is a file: plan again with a larger one.",))
    plan = facts.searches.best(request)
    if plan.prediction is None or facts.best.prediction is None:
        return Advice(notes=(f"On twice the devices there is no plan: {plan.why}.",))
    gain = plan.prediction.tokens_per_s / facts.best.prediction.tokens_per_s
    return Advice(
        words=f"On {2 * facts.devices:,} devices keep TP, CP, EP and PP, and double DP.",
        pins=degree_pins(facts.grid),
        request=request,
        notes=(
            f"The best plan there has {gain:.2f} times the tokens a second:"
            f" {format_percent(gain / 2)} of twice as many.",
        ),
    )


RULE = GuideRule(
    name="twice_the_devices",
    question="What changes on twice the devices?",
    statement="Scale out by data parallelism: keep the other degrees.",
    source="common practice",
    advise=advise,
)
