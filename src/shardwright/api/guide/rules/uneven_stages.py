"""Rule: the first and the last stage have one layer less each, for embedding and head."""

from __future__ import annotations

from shardwright.api.guide.best_plan_record import with_pins
from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE, pin
from shardwright.api.guide.rules.pipeline_or_not_by_bubble import pipelined_plan


def advise(facts: RequestFacts) -> Advice:
    """Training advice of one layer less at both ends if the other stages then have equally many."""
    plan = pipelined_plan(facts)
    if plan is None or plan.grid is None:
        return Advice(notes=("No plan with a pipeline fits.",))
    stages = plan.grid.pp
    model = facts.problem.model
    weight = formula(
        "layers that cost as much as the output head",
        "V * h / L",
        symbol("V", "rows of the vocabulary", model.vocab),
        symbol("h", "width of the residual stream", model.hidden),
        symbol("L", "parameters of a layer that a token uses", facts.layer_parameters),
        source="multiplications are in proportion to parameters",
    )
    ends = -(-(facts.counts.layers + 2) // stages) - 1
    inner = facts.counts.layers - 2 * ends
    if stages < 3 or ends < 1 or inner != (stages - 2) * (ends + 1):
        return Advice(
            formulas=(weight,),
            notes=(
                f"{facts.counts.layers} layers on {stages} stages cannot have one layer less at"
                " both ends and equally many elsewhere.",
            ),
        )
    return Advice(
        words=(
            f"With PP {stages} and no virtual stages: {ends} layers on the first and the last"
            f" stage, {ends + 1} on others."
        ),
        pins=(pin("first", ends), pin("last", ends)),
        formulas=(weight,),
        request=with_pins(facts.request, (pin("pp", stages), pin("vpp", 1))),
    )


RULE = GuideRule(
    name="uneven_stages",
    question="Uneven first and last stage?",
    statement="One layer less on the first and the last stage where the vocabulary is large.",
    source=f"{BRIDGE}; NVIDIA/Megatron-LM issues 381 and 857",
    advise=advise,
    applies=lambda facts: facts.devices > 2,
)
