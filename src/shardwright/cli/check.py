"""``shardwright check``: a plan file and its certificate, verified again."""

from __future__ import annotations

import typer

from shardwright import api
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.errors import DataError
from shardwright.report.json_face import to_text, verdict_document
from shardwright.report.terminal import render_verdict


def check(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Verify a plan and its certificate again: enumerate, bound and simulate anew, and compare with what the file says."""
    with screen.progress(quiet=quiet or as_json) as report:
        verdict = api.check(path, progress=report)
    if as_json:
        screen.write(to_text(verdict_document(verdict)))
    elif not quiet:
        screen.show(render_verdict(verdict))
    if not verdict.holds:
        raise typer.Exit(DataError.exit_code)


main = verb(check, name="check")
