"""A verified plan file, and a proof on virtual devices: as a screen, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from shardwright.execute.proof.proof_result import PlanProof
from shardwright.report.line_breaking import Words
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.simulated_strategy import Verified
from shardwright.units import format_percent


def checked_document(found: Recheck | Verified) -> dict[str, Any]:
    """``check --json`` of a file that holds (one that does not is an error)."""
    return {"holds": True, **asdict(found)}


def checked_line(found: Recheck | Verified) -> str:
    """The line of ``--quiet``: a plan file holds."""
    return "The plan and its certificate hold." if isinstance(found, Recheck) else "The plan holds."


def render_checked(found: Recheck | Verified) -> RenderableType:
    """The screen of `check`: the parts of a file that were recomputed and are equal."""
    lines = (
        f"All {found.leaves:,} values of the file were recomputed and are equal. "
        if found.leaves
        else ""
    )
    drift = f"The step time differs by a fraction of {found.drift:.1g}."
    if isinstance(found, Recheck):
        return Words(
            Text.assemble(
                (f"{checked_line(found)}\n", "green"),
                f"{lines}{found.strategies:,} distinct strategies were counted and bounded again;"
                f" {found.sampled:,} random ones and the {found.contenders:,} whose bound is below"
                f" the plan's time were simulated. {drift}",
            )
        )
    acts = f"{found.actions:,} actions end without a deadlock; " if found.actions else ""
    devices = f"{found.devices:,} device{'' if found.devices == 1 else 's'}"
    return Words(
        Text.assemble(
            (f"{checked_line(found)}\n", "green"),
            f"{lines}Its rules hold on {devices}; {acts}the fullest device needs"
            f" {format_percent(found.full)} of its memory. {drift}",
        )
    )


def proof_document(found: PlanProof) -> dict[str, Any]:
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
        "moved": {
            kind: {"requests": requests, "elements": elements}
            for kind, (requests, elements) in found.moved.items()
        },
    }


def render_proof(found: PlanProof) -> RenderableType:
    """The screen of ``check --execute``: the executed model, the differences of loss and gradients
    from the unsplit model's, and the bytes that moved.
    """
    name, difference = found.worst
    moved = "; ".join(
        f"{kind} {requests:,} ({elements:,} elements)"
        for kind, (requests, elements) in found.moved.items()
    )
    size, compared = found.model.num_parameters, len(found.gradients)
    tokens = ", ".join(f"{count} {sequence} tokens" for sequence, count in found.tokens.items())
    return Words(
        Text.assemble(
            (
                ("The plan trains as the unsplit model does.\n", "green")
                if found.equal
                else ("The plan does NOT train as the unsplit model.\n", "red")
            ),
            f"{found.devices} virtual devices, a model of the same structure with {size:,}"
            f" parameters, {tokens} per sample, float64.\n",
            f"Loss {found.loss:.12g} differs by {abs(found.loss_difference):.1e}; "
            f"the gradient that differs most, of {name}, by {difference:.1e} of "
            f"its largest element ({compared:,} parameters compared).\n",
            f"Moved: {moved or 'nothing'}.",
        )
    )
