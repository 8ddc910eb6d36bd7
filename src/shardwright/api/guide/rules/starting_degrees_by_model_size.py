"""Rule: degrees to start from by the number of parameters of a dense model."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import BRIDGE_STRATEGIES, pin
from shardwright.search.search_request import Choices

STARTS: Final[tuple[tuple[float, str, Choices], ...]] = (
    (1e9, "Data parallelism alone.", (pin("tp", 1), pin("pp", 1), pin("cp", 1))),
    (10e9, "TP 2 to 4 with data parallelism.", (pin("tp", 2, 4), pin("pp", 1), pin("cp", 1))),
    (70e9, "TP 4 to 8 with PP 2 to 4.", (pin("tp", 4, 8), pin("pp", 2, 4))),
    (175e9, "TP 8 with PP 4 to 8.", (pin("tp", 8), pin("pp", 4, 8))),
    (
        float("inf"),
        "TP 8 with PP 8 to 16 and CP 2.",
        (pin("tp", 8), pin("pp", 8, 16), pin("cp", 2)),
    ),
)
"""(parameters below which a row applies, advice, pins)."""


def advise(facts: RequestFacts) -> Advice:
    """Training advice of TP, PP and CP to start from, by the model's number of parameters."""
    words, pins = next((w, p) for most, w, p in STARTS if facts.parameters < most)
    return Advice(words=words, pins=pins)


RULE = GuideRule(
    name="starting_point_by_size",
    question="Which degrees does the usual table give for this size?",
    statement=(
        "Below 1B parameters DP; to 10B TP 2-4 and DP; to 70B TP 4-8 and PP 2-4; to 175B TP 8 and"
        " PP 4-8; above TP 8, PP 8-16 and CP 2."
    ),
    source=f"{BRIDGE_STRATEGIES}, Strategy Selection Guide",
    advise=advise,
    applies=lambda facts: not facts.experts and facts.devices > 1,
)
