"""Skill file of a guide for coding agents: facts, commands, and when to run a search."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

from shardwright.report.guide.guide_screen import plan_text, value_text
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import Guide

HEADER: Final = """---
name: parallelism-plan
description: Choose and check how a model is split over a cluster with the shardwright command.
---
"""
WHEN: Final = """## When to run a search

- Run `plan` whenever model, cluster, devices, sequence length, batch, precision or framework differ
  from the title of this file. Do not adapt the plan below by hand.
- Run `guide` before you repeat a rule of thumb: some of them lose here.
- Run `simulate` with `--strategy` to check a plan that somebody proposes, and `check` to verify a
  plan file.
- A plan that does not fit ends with exit code 6; its hint names what would fit.
"""


def agent_skill(guide: Guide) -> str:
    """Markdown text of a skill file for coding agents: a guide's plan, rules and commands."""
    return "\n".join(
        [
            HEADER,
            f"# {guide.title}",
            "",
            f"The best plan: {plan_text(guide.best)}.",
            "",
            "## Rules here",
            "",
            *_rule_lines(guide),
            "",
            "## Numbers here",
            "",
            *_formula_lines(guide),
            "",
            WHEN,
            "## Commands",
            "",
            "```console",
            *skill_commands(guide),
            "```",
            "",
        ]
    )


def skill_commands(guide: Guide) -> tuple[str, ...]:
    """Commands of the skill file: plan, guide, simulation; fewer if serving or if no plan fits."""
    words = shlex.split(guide.best.command)
    if guide.kind == "serving":
        return (guide.best.command, guide.command)
    if guide.best.step_s is None:
        return (guide.best.command,)
    places = [place for place, word in enumerate(words) if word in _ONLY_OF_PLAN]
    kept = [
        word for place, word in enumerate(words) if place not in places and place - 1 not in places
    ]
    simulated = ["shardwright", "simulate", *kept[2:], "--strategy", guide.best.strategy]
    return (guide.best.command, guide.command, shlex.join(simulated))


_ONLY_OF_PLAN: Final = ("--pin", "--exclude", "--max-devices", "--headroom")
"""Options of `plan` with a value that `simulate` does not have."""


def _rule_lines(guide: Guide) -> Iterator[str]:
    """Markdown lines: question, advice, outcome of each judged rule; each break-even sentence."""
    for rule in guide.rules:
        if rule.verdict is not None:
            yield f"- {rule.question} {rule.verdict.advice} {rule.verdict.sentence}"
        if rule.break_even is not None:
            yield f"- {rule.break_even.sentence}"


def _formula_lines(guide: Guide) -> Iterator[str]:
    """A Markdown line for each formula of the rules: quantity, formula with numbers, value."""
    for rule in guide.rules:
        for formula in rule.formulas:
            value = value_text(formula.value, formula.unit)
            terms = f"`{formula.expression}` = `{formula.substituted}`"
            yield f"- {formula.quantity}: {terms} = {value}"
