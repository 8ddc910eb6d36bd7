"""Rule: tensor or pipeline parallelism inside a node, by the bytes that each sends."""

from __future__ import annotations

from typing import Final

from shardwright.api.guide.evaluate_formula import formula, symbol
from shardwright.api.guide.serving_request_facts_and_simulations import ServingFacts
from shardwright.api.guide.serving_rule_and_advice_classes import ServingAdvice, ServingRule
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers

FAST_LINK: Final = 100e9
"""Bytes/s of a device inside the domain from which its link is no PCIe."""


def advise(facts: ServingFacts) -> ServingAdvice:
    """Serving formulas of a prompt's message seconds with TP and with PP, at the least width."""
    width = min(max(facts.smallest_width, 2), facts.devices)
    link = facts.problem.cluster.node.scale_up.achieved
    shared = (
        symbol("h", "width of the residual stream", facts.problem.model.hidden),
        symbol("T", "tokens of a prompt", facts.prompt, "tokens"),
        symbol("W", "bytes/s that a device reaches in its domain", link),
    )
    tensor = formula(
        "seconds of a prompt's messages with TP: two all-reduces a layer in 16 bits",
        "2 * L * 2 * (t - 1) / t * 2 * h * T / W",
        symbol("L", "layers", num_layers(facts.problem.model)),
        symbol("t", "tensor-parallel degree", width),
        *shared,
        unit="seconds",
        source="Shoeybi et al. 2019, Megatron-LM; a ring all-reduce",
    )
    pipeline = formula(
        "seconds of a prompt's messages with PP: one message between two stages",
        "(p - 1) * 2 * h * T / W",
        symbol("p", "pipeline stages", width),
        *shared,
        unit="seconds",
        source="definition",
    )
    fast = facts.problem.cluster.node.scale_up.bandwidth >= FAST_LINK
    return ServingAdvice(
        formulas=(tensor, pipeline),
        notes=(
            f"By the rule: {'TP' if fast else 'PP'} {width} inside the node. It is not judged"
            " here: a pipeline's latency is not simulated.",
        ),
    )


RULE = ServingRule(
    name="tensor_or_pipeline",
    question="Tensor or pipeline parallelism?",
    statement="PP inside nodes without NVLink; with it TP in the node, and PP over nodes.",
    source="vllm-omni issue 4617; AMD ROCm documentation of vLLM",
    advise=advise,
    applies=lambda facts: facts.devices > 1,
)
