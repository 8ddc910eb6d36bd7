"""``shardwright check``: a plan file and its certificate, verified again."""

from __future__ import annotations

from shardwright import api
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.report.json_face import recheck_document, to_text, verified_document
from shardwright.report.simulation_file import read_saved
from shardwright.report.terminal import render_recheck, render_verified
from shardwright.search.simulation import Simulation


def check(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Verify a plan file again: rules, memory and seconds, and what a search claims: enumerated, bounded and simulated anew."""
    saved = read_saved(path)
    if isinstance(saved, Simulation):
        verified = api.verify(saved)
        if as_json:
            screen.write(to_text(verified_document(verified)))
        elif not quiet:
            screen.show(render_verified(verified))
        return
    request, answer = saved
    with screen.progress(quiet=quiet or as_json) as report:
        found = api.check(request, answer, progress=report)
    if as_json:
        screen.write(to_text(recheck_document(found)))
    elif not quiet:
        screen.show(render_recheck(found))


main = verb(check, name="check")
