"""Rule: the tokens of a device below which data parallelism is bound by communication."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.break_even_plan_properties import splits_model
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import (
    SCALING_BOOK,
    data_parallel_pins,
    pin,
    powers_of_two,
)
from shardwright.api.guide.rules.build_break_even_questions import batch_question
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Formula


def advise(facts: RequestFacts) -> Advice:
    """Training advice of sharded data parallelism if each device has enough tokens, else of TP."""
    needed = critical_tokens(facts)
    own = facts.tokens / facts.devices
    alone = data_parallel_pins(zero=(max(facts.problem.runtime.zero_stages),))
    split = (pin("tp", *powers_of_two(2, min(facts.island, facts.devices))),)
    enough = own >= max(bound.value for bound in needed)
    return Advice(
        words=(
            "Each device has enough tokens: shard over all devices (ZeRO-3, FSDP)."
            if enough
            else "Each device has too few tokens for data parallelism alone: add TP."
        ),
        pins=alone if enough else split,
        others=(("with TP", split) if enough else ("ZeRO-3 over all devices", alone),),
        formulas=(
            formula(
                "tokens of a device in a step",
                "B / n",
                symbol("B", "tokens of a step", facts.tokens, "tokens"),
                symbol("n", "devices", facts.devices),
                unit="tokens",
                source="definition",
            ),
            *needed,
        ),
        break_even=batch_question(
            facts,
            has=lambda grid: not splits_model(grid),
            change="The best plan is data parallelism alone",
        ),
    )


def critical_tokens(facts: RequestFacts) -> tuple[Formula, ...]:
    """Tokens of a device at which communication takes as long as computation, for each network.

    Of experts only some are used by a token, and all are communicated.
    """
    peak = symbol("C", "peak FLOP/s of a device", facts.peak_flops)
    sparse = (
        (
            symbol("E", "experts of a layer", facts.experts),
            symbol("k", "experts that a token uses", facts.topk),
        )
        if facts.experts
        else ()
    )
    factor = "E / k * " if facts.experts else ""
    source = f"{SCALING_BOOK}, data parallelism and FSDP"
    inside = symbol("W", "bytes/s of a device in its domain", facts.island_bytes_per_s)
    bounds = [
        formula(
            "tokens of a device that keep data parallelism inside a domain bound by computation",
            f"{factor}C / W",
            *sparse,
            peak,
            inside,
            unit="tokens",
            source=source,
        )
    ]
    if facts.islands > 1:
        bounds.append(
            formula(
                "tokens of a device that keep data parallelism across domains bound by computation",
                f"{factor}C / (g * W)",
                *sparse,
                peak,
                symbol("g", "devices of a domain, which share the work", facts.island),
                symbol("W", "bytes/s of a device's network card", facts.network_bytes_per_s),
                unit="tokens",
                source=source,
            )
        )
    return tuple(bounds)


RULE = GuideRule(
    name="data_parallel_bound",
    question="Where is data parallelism or FSDP bound by communication?",
    statement=(
        "Data parallelism and FSDP are bound by computation if each device has more tokens than its"
        " FLOP/s over its bytes/s."
    ),
    source=f"{SCALING_BOOK}, data parallelism and FSDP",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
