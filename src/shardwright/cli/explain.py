"""``shardwright explain``: a plan file's answer, with the source of each number."""

from __future__ import annotations

from shardwright.api import simulations
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.report.json_face import plan_document, simulation_document, to_text
from shardwright.report.simulation_file import read_saved
from shardwright.report.terminal import render_explained, render_explanation, strategy_text
from shardwright.search.simulation import Simulation
from shardwright.strategy.grid_notation import print_grid


def explain(
    path: flags.PlanFile,
    *,
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Print the answer of a plan file with the formulas' inputs and the source of each number."""
    saved = read_saved(path)
    if isinstance(saved, Simulation):
        if as_json:
            screen.write(to_text(simulation_document(saved)))
        elif quiet:
            screen.write(strategy_text(saved) + "\n")
        else:
            screen.show(render_explained(saved, picture=simulations.small_picture(saved)))
        return
    _, answer = saved
    if as_json:
        screen.write(to_text(plan_document(answer)))
    elif quiet:
        screen.write(print_grid(answer.grid) + "\n")
    else:
        screen.show(render_explanation(answer))


main = verb(explain, name="explain")
