"""The `check` screen: a verified plan file, and its execution on virtual devices; and JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.execute.proof.proof_result import PlanProof
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.simulated_strategy import Verified
from shardwright.units import format_percent


def checked_document(check: Recheck | Verified) -> dict[str, Any]:
    """JSON document of ``check --json`` for a file that holds; a file that does not is an error."""
    return {"holds": True, **asdict(check)}


def checked_line(check: Recheck | Verified) -> str:
    """Sentence that a plan file holds, together with its certificate if that was checked too."""
    return "The plan and its certificate hold." if isinstance(check, Recheck) else "The plan holds."


def render_checked(check: Recheck | Verified) -> RenderableType:
    """The `check` screen: the parts of a file that were recomputed and are equal."""
    lines = (
        f"All {check.leaves:,} values of the file were recomputed and are equal. "
        if check.leaves
        else ""
    )
    drift = f"The step time differs by a fraction of {check.drift:.1g}."
    if isinstance(check, Recheck):
        return WrappedText(
            Text.assemble(
                (f"{checked_line(check)}\n", "green"),
                f"{lines}{check.strategies:,} distinct strategies were counted and bounded again;"
                f" {check.sampled:,} random ones and the {check.contenders:,} whose bound is below"
                f" the plan's time were simulated. {drift}",
            )
        )
    actions = f"{check.actions:,} actions end without a deadlock; " if check.actions else ""
    devices = f"{check.devices:,} device{'' if check.devices == 1 else 's'}"
    return WrappedText(
        Text.assemble(
            (f"{checked_line(check)}\n", "green"),
            f"{lines}Its rules hold on {devices}; {actions}the fullest device needs"
            f" {format_percent(check.full)} of its memory. {drift}",
        )
    )


def proof_document(proof: PlanProof) -> dict[str, Any]:
    """JSON object of ``check --execute``: loss and gradients compared with the unsplit model."""
    name, difference = proof.worst
    return {
        "equal": proof.equal,
        "devices": proof.devices,
        "tokens": dict(proof.tokens),
        "parameters": proof.model.num_parameters,
        "loss": proof.loss,
        "loss_difference": proof.loss_difference,
        "largest_gradient_difference": {"parameter": name, "difference": difference},
        "gradient_differences": dict(proof.gradients),
        "moved": {
            kind: {"requests": requests, "elements": elements}
            for kind, (requests, elements) in proof.moved.items()
        },
    }


def render_proof(proof: PlanProof) -> RenderableType:
    """The ``check --execute`` screen: differences of loss and gradients from the unsplit model.

    With the executed model and the bytes that moved.
    """
    name, difference = proof.worst
    moved = "; ".join(
        f"{kind} {requests:,} ({elements:,} elements)"
        for kind, (requests, elements) in proof.moved.items()
    )
    size, compared = proof.model.num_parameters, len(proof.gradients)
    tokens = ", ".join(f"{count} {sequence} tokens" for sequence, count in proof.tokens.items())
    return WrappedText(
        Text.assemble(
            (
                ("The plan trains as the unsplit model does.\n", "green")
                if proof.equal
                else ("The plan does NOT train as the unsplit model.\n", "red")
            ),
            f"{proof.devices} virtual devices, a model of the same structure with {size:,}"
            f" parameters, {tokens} per sample, float64.\n",
            f"Loss {proof.loss:.12g} differs by {abs(proof.loss_difference):.1e}; "
            f"the gradient that differs most, of {name}, by {difference:.1e} of "
            f"its largest element ({compared:,} parameters compared).\n",
            f"Moved: {moved or 'nothing'}.",
        )
    )
