"""Rule: offload to host memory where the host link is wide, else recompute."""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, pin
from shardwright.api.guide.rules.build_break_even_questions import memory_question


def advise(facts: RequestFacts) -> Advice:
    """Training advice of offloaded optimizer states if copying activations beats recomputing."""
    host = facts.problem.cluster.node.host.pcie.bandwidth
    needed = formula(
        "host link from which copying a layer's activations both ways is faster than recomputing",
        "2 * 34 * h * C / (2 * L)",
        symbol("h", "width of the residual stream", facts.problem.model.hidden),
        symbol("C", "peak FLOP/s of a device", facts.peak_flops),
        symbol("L", "parameters of a layer that a token uses", facts.layer_parameters),
        unit="bytes/s",
        source="34 bytes of activations for each element of h (Korthikanti et al. 2022, table 2)",
    )
    own = formula(
        "host link of a device",
        "H",
        symbol("H", "bytes/s", host),
        unit="bytes/s",
        source="catalog or cluster file",
    )
    wide = own.value >= needed.value
    words = (
        "The host link is wide: keep optimizer states in host memory."
        if wide
        else "The host link is narrow: keep nothing in host memory, recompute where needed."
    )
    return Advice(
        words=words,
        pins=(pin("offload", 100 if wide else 0),),
        others=(("nothing in host memory", (pin("offload", 0),)),)
        if wide
        else (("optimizer states in host memory", (pin("offload", 100),)),),
        formulas=(needed, own),
        break_even=memory_question(
            facts,
            has=lambda grid: grid.offload == 0,
            change="The best plan keeps the optimizer states in device memory",
        ),
    )


RULE = GuideRule(
    name="recompute_or_offload",
    question="Recompute or offload?",
    statement="Offload where the host link is wide (GB200's C2C) and all layers are recomputed.",
    source=BRIDGE,
    advise=advise,
)
