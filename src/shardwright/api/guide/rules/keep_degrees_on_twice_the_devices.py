"""Rule: on twice as many devices keep the degrees and double the replicas."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import degree_pins
from shardwright.api.what_if.axes_of_request import AXES, DEVICES, request_at
from shardwright.errors import ShardwrightError
from shardwright.units import format_percent


def advise(facts: RequestFacts) -> Advice:
    """Training advice of the best plan's degrees on twice the devices; notes a search's gain."""
    try:
        request = request_at(facts.request, AXES[DEVICES], 2 * facts.devices, {})
    except ShardwrightError as error:
        return Advice(notes=(f"Not searched: {error.message} ({error.hint}).",))
    plan = facts.search(request)
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
