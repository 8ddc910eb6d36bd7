"""Rule: does the model fit, and how large a model does plain data parallelism hold?"""

from __future__ import annotations

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.guide_rule_and_advice_classes import Advice, GuideRule
from shardwright.api.guide.request_facts import RequestFacts
from shardwright.api.guide.rules.build_axis_pins_shared_by_rules import SCALING_BOOK, pin
from shardwright.api.guide.rules.build_break_even_questions import fit_question
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Formula
from shardwright.units import format_bytes, format_percent

ESTIMATOR = "Megatron Bridge, memory estimator (docs.nvidia.com)"


def advise(facts: RequestFacts) -> Advice:
    """Training formulas of state bytes; advises plain data parallelism if states fit one device."""
    fits_one = facts.unsharded_bytes <= facts.usable_bytes
    single = (pin("tp", 1), pin("cp", 1), pin("pp", 1), pin("zero", 0))
    expert = (pin("ep", 1),) if facts.experts else ()
    return Advice(
        words="Every device holds the whole model and its states." if fits_one else "",
        pins=(*single, *expert) if fits_one else (),
        formulas=state_formulas(facts),
        notes=(_memory_note(facts),),
        break_even=fit_question(facts),
    )


def _memory_note(facts: RequestFacts) -> str:
    """Sentence on the memory that the best plan needs, or on the reason why no plan fits."""
    prediction = facts.best.prediction
    if prediction is None:
        return f"It does not fit: {facts.best.why}."
    return (
        f"It fits: the best plan's fullest device holds {format_bytes(prediction.reserved_bytes)}"
        f" of {format_bytes(prediction.capacity_bytes)}"
        f" ({format_percent(prediction.reserved_bytes / prediction.capacity_bytes)})."
    )


def state_formulas(facts: RequestFacts) -> tuple[Formula, ...]:
    """Bytes a parameter (plain, sharded states), largest plain-DP model, floor with all sharded."""
    grid = facts.best.grid
    weights = symbol("w", "bytes of a weight", facts.weight_bytes, "bytes")
    gradients = symbol("g", "bytes of an accumulated gradient", facts.gradient_bytes, "bytes")
    states = symbol("o", "bytes of the optimizer's states", facts.state_bytes, "bytes")
    memory = symbol("H", "memory that a program can allocate", facts.memory_bytes, "bytes")
    parameters = symbol("N", "parameters", facts.parameters)
    shards = facts.devices if grid is None else grid.dp * grid.cp
    return (
        formula(
            "bytes a parameter without sharding",
            "w + g + o",
            weights,
            gradients,
            states,
            unit="bytes",
            source=ESTIMATOR,
        ),
        formula(
            "bytes a parameter with a sharded optimizer",
            "w + g + o / d",
            weights,
            gradients,
            states,
            symbol("d", "devices that share the optimizer's states", shards),
            unit="bytes",
            source=ESTIMATOR,
        ),
        formula(
            "largest model of plain data parallelism with these bytes, without activations",
            "H / (w + g + o)",
            memory,
            weights,
            gradients,
            states,
            unit="parameters",
            source=ESTIMATOR,
        ),
        formula(
            "the same with bf16 weights and two fp32 moments alone",
            "H / 10",
            memory,
            unit="parameters",
            source=SCALING_BOOK,
        ),
        formula(
            "states of a device if all are sharded over all devices",
            "N * (w + g + o) / n",
            parameters,
            weights,
            gradients,
            states,
            symbol("n", "devices", facts.devices),
            unit="bytes",
            source=ESTIMATOR,
        ),
    )


RULE = GuideRule(
    name="does_it_fit",
    question="Does it fit?",
    statement=(
        "Plain data parallelism with Adam holds a model of at most a tenth of the memory's bytes;"
        " sharding the optimizer leaves weights and gradients."
    ),
    source=f"{SCALING_BOOK}; {ESTIMATOR}",
    advise=advise,
)
