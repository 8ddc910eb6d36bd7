"""The result of an executed deployment: as a screen, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from shardwright.execute.serve.serving_proof import ServedProof
from shardwright.report.line_breaking import Words


def served_document(found: ServedProof) -> dict[str, Any]:
    """The part ``execution`` of ``serve-simulate --execute --json``."""
    return {
        "equal": found.equal,
        "devices": found.devices,
        "parameters": found.model.num_parameters,
        "tokens": [len(tokens) for tokens in found.tokens],
        "computed": found.computed,
        "preempted": found.preempted,
        "logit_difference": found.difference,
        "iterations": [list(part) for part in found.log],
        "log_equal": found.log == found.simulated,
    }


def render_served(found: ServedProof) -> Words:
    """The served requests, the difference of logits from the unsplit model's, and the comparison of
    its iterations with the simulator's.
    """
    served, lost = sum(bool(tokens) for tokens in found.tokens), found.preempted
    turns = len({turn for turn, _, _ in found.log})
    return Words(
        Text.assemble(
            (
                ("The deployment answers as the unsplit model does.\n", "green")
                if found.equal
                else ("The deployment does NOT answer as the unsplit model.\n", "red")
            ),
            f"{found.devices} virtual devices, a model of the same structure with"
            f" {found.model.num_parameters:,} parameters, float64.\n",
            f"{served} requests, {found.computed:,} tokens in {turns} iterations, {lost} preempted"
            f" and computed anew; logits differ by {found.difference:.1e} at most.\n",
            f"The log of iterations is {'' if found.log == found.simulated else 'NOT '}the"
            " simulator's.",
        )
    )
