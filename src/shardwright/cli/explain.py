"""``shardwright explain``: a plan file's answer, with the source of each number."""

from __future__ import annotations

from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.report.json_face import plan_document, to_text
from shardwright.report.plan_file import read_plan_file
from shardwright.report.terminal import render_explanation
from shardwright.strategy.grid_notation import print_grid


def explain(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Print the answer of a plan file with the formulas' inputs and the source of each number."""
    _, answer = read_plan_file(path)
    if as_json:
        screen.write(to_text(plan_document(answer)))
    elif quiet:
        screen.write(print_grid(answer.grid) + "\n")
    else:
        screen.show(render_explanation(answer))


main = verb(explain, name="explain")
