"""Rule: for sequences four times as long multiply context parallelism by four."""

from __future__ import annotations

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import pin
from shardwright.api.guide.rules.build_break_even_questions import request_of_length


def advise(facts: RequestFacts) -> Advice:
    """Training advice of 4 x the CP degree for sequences 4 x as long, tokens a step equal."""
    request = request_of_length(facts.request, 4 * facts.request.seq_len)
    grid = facts.grid
    tensor, pipeline = pin("tp", grid.tp), pin("pp", grid.pp)
    return Advice(
        words=(
            f"For sequences of {request.seq_len:,} tokens, {request.global_batch:,} a step: CP"
            f" {4 * grid.cp} with TP {grid.tp} and PP {grid.pp}."
        ),
        pins=(tensor, pipeline, pin("cp", 4 * grid.cp)),
        others=(("the same degrees", (tensor, pipeline, pin("cp", grid.cp))),),
        request=request,
    )


RULE = GuideRule(
    name="longer_sequences",
    question="What changes for sequences four times as long?",
    statement="Keep the tokens of a device: multiply context parallelism with the length.",
    source="NVIDIA Megatron Bridge, docs/parallelisms.md (commit 067f987, August 2026)",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
