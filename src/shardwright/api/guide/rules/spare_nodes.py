"""Rule: how many spare nodes stand by for those that are being repaired."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import ML_ENGINEERING
from shardwright.hardware.failure_rate_storage_restart import job_reliability

REPAIR_H: Final = 133.0
"""Mean hours of a node's repair: 584 faults of 400 nodes in 348 days (InfiniteHBD's trace)."""
LEVEL: Final = 2.33
"""Standard deviations of the 99th percentile of a normal distribution."""
BURSTS: Final = 5.6
"""Variance over mean of the nodes in repair at once, in the same trace."""
TRACE: Final = (
    "InfiniteHBD fault trace (400 servers, 348 days): a repair takes 133 h in the mean, and the"
    " nodes in repair at once have a variance of 5.6 times their mean"
)


def advise(facts: RequestFacts) -> Advice:
    """Training formulas: mean nodes in repair at once, and spares that suffice 99 % of the time."""
    cluster = facts.problem.cluster
    job = job_reliability(cluster, devices=facts.devices)
    rate = job.failures_per_hour.value / facts.devices
    if not rate:
        return Advice(notes=("No failure rate of these devices is known.",))
    nodes = facts.devices / cluster.node.num_devices
    mean = formula(
        "nodes in repair at once, in the mean",
        "k * g * f * R",
        symbol("k", "nodes", nodes),
        symbol("g", "devices of a node", cluster.node.num_devices),
        symbol("f", "failures of a device in an hour", rate),
        symbol("R", "hours of a repair", REPAIR_H),
        unit="nodes",
        source=f"{job.failures_per_hour.origin.reference}; {TRACE}",
    )
    level = symbol("z", "standard deviations of the 99th percentile", LEVEL)
    load = symbol("m", "nodes in repair at once, in the mean", mean.value)
    spares = formula(
        "spares that suffice 99 % of the time",
        "ceil(m + z * sqrt(D * m))",
        load,
        level,
        symbol("D", "variance over mean: failures come in bursts (1 = independent)", BURSTS),
        unit="nodes",
        source=f"normal approximation; {TRACE}",
    )
    share = formula(
        "the same as a share of the nodes",
        "s / k",
        symbol("s", "spares", spares.value),
        symbol("k", "nodes", nodes),
        unit="share",
        source="definition",
    )
    usual = 0.05 <= share.value <= 0.10
    return Advice(
        formulas=(mean, spares, share),
        notes=(
            "The usual 5 to 10 % holds here."
            if usual
            else "The usual 5 to 10 % is not what these rates give here.",
        ),
    )


RULE = GuideRule(
    name="spare_nodes",
    question="How many spare nodes?",
    statement="5 to 10 % of the nodes as a rule.",
    source=ML_ENGINEERING,
    advise=advise,
)
