"""What a proof on virtual devices found: as a screen, and as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.execute.proof import Proof


def proof_document(found: Proof) -> dict[str, Any]:
    """The part ``execution`` of ``check --execute --json``."""
    name, difference = found.worst
    return {
        "equal": found.equal,
        "devices": found.devices,
        "tokens": dict(found.tokens),
        "parameters": found.model.num_parameters,
        "loss": found.loss,
        "loss_difference": found.loss_difference,
        "largest_gradient_difference": {"parameter": name, "difference": difference},
        "gradient_differences": dict(found.gradients),
        "moved": {kind: {"requests": requests, "elements": elements} for kind, (requests, elements) in found.moved.items()},
    }


def render_proof(found: Proof) -> RenderableType:
    """What was run, how far loss and gradients are from the unsplit model's, and what moved."""
    name, difference = found.worst
    moved = "; ".join(f"{kind} {requests:,} ({elements:,} elements)" for kind, (requests, elements) in found.moved.items())
    size, compared = found.model.num_parameters, len(found.gradients)
    tokens = ", ".join(f"{count} {sequence} tokens" for sequence, count in found.tokens.items())
    return Text.assemble(
        ("The plan trains as the unsplit model does.\n", "green")
        if found.equal
        else ("The plan does NOT train as the unsplit model.\n", "red"),
        f"{found.devices} virtual devices, the same structure with {size:,} parameters, {tokens} a sample, float64.\n",
        f"Loss {found.loss:.12g} differs by {abs(found.loss_difference):.1e}; "
        f"the gradient that differs most, of {name}, by {difference:.1e} of "
        f"its largest element ({compared:,} parameters compared).\n",
        f"Moved: {moved or 'nothing'}.",
    )
