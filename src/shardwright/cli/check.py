"""``shardwright check``: a plan file and its certificate, verified again."""

from __future__ import annotations

from typing import Annotated

import typer

from shardwright.api import execution, grids, simulations
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.report.json_face import recheck_document, to_text, verified_document
from shardwright.report.proof_face import proof_document, render_proof
from shardwright.report.simulation_file import read_saved
from shardwright.report.terminal import render_recheck, render_verified
from shardwright.search.simulation import Simulation


def check(
    path: flags.PlanFile,
    *,
    execute: Annotated[bool, typer.Option("--execute", help="Run a small model under the plan: loss and gradients equal?")] = False,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Verify a plan file again: rules, memory and seconds, and what a search claims: enumerated, bounded and simulated anew."""
    saved = read_saved(path)
    proof = execution.execution(saved) if execute else None
    if isinstance(saved, Simulation):
        verified = simulations.verify(saved)
        document, shown = verified_document(verified), render_verified(verified)
    else:
        request, answer = saved
        with screen.progress(quiet=quiet or as_json) as report:
            found = grids.check(request, answer, progress=report)
        document, shown = recheck_document(found), render_recheck(found)
    if as_json:
        screen.write(to_text(document | ({"execution": proof_document(proof)} if proof else {})))
    elif not quiet:
        screen.show(shown)
        if proof:
            screen.show(render_proof(proof))


main = verb(check, name="check")
