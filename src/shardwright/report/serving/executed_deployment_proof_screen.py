"""The ``serve-simulate --execute`` screen: logits and log of an executed deployment; and JSON."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from shardwright.execute.serve.serving_proof_result import ServedProof
from shardwright.report.terminal_line_wrapping import WrappedText


def served_document(proof: ServedProof) -> dict[str, Any]:
    """JSON object ``execution`` of ``serve-simulate --execute --json``: results of the proof."""
    return {
        "equal": proof.equal,
        "devices": proof.devices,
        "parameters": proof.model.num_parameters,
        "tokens": [len(tokens) for tokens in proof.tokens],
        "computed": proof.computed,
        "preempted": proof.preempted,
        "logit_difference": proof.difference,
        "iterations": [list(part) for part in proof.log],
        "log_equal": proof.log == proof.simulated,
    }


def render_served(proof: ServedProof) -> WrappedText:
    """Screen of an executed deployment: logit difference from the unsplit model, equality of logs.

    The log of iterations is compared with the simulator's.
    """
    served, lost = sum(bool(tokens) for tokens in proof.tokens), proof.preempted
    turns = len({iteration for iteration, _, _ in proof.log})
    return WrappedText(
        Text.assemble(
            (
                ("The deployment answers as the unsplit model does.\n", "green")
                if proof.equal
                else ("The deployment does NOT answer as the unsplit model.\n", "red")
            ),
            f"{proof.devices} virtual devices, a model of the same structure with"
            f" {proof.model.num_parameters:,} parameters, float64.\n",
            f"{served} requests, {proof.computed:,} tokens in {turns} iterations, {lost} preempted"
            f" and computed anew; logits differ by {proof.difference:.1e} at most.\n",
            f"The log of iterations is {'' if proof.log == proof.simulated else 'NOT '}the"
            " simulator's.",
        )
    )
