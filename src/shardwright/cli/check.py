"""``shardwright check``: a plan file and its certificate, verified again."""

from __future__ import annotations

from shardwright import api
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.report.json_face import recheck_document, to_text
from shardwright.report.plan_file import read_plan_file
from shardwright.report.terminal import render_recheck


def check(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Verify a plan and its certificate again: enumerate, bound and simulate anew, and compare with what the file says."""
    request, answer = read_plan_file(path)
    with screen.progress(quiet=quiet or as_json) as report:
        found = api.check(request, answer, progress=report)
    if as_json:
        screen.write(to_text(recheck_document(found)))
    elif not quiet:
        screen.show(render_recheck(found))


main = verb(check, name="check")
