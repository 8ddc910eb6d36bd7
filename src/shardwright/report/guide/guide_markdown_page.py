"""Markdown page of a guide: the best plan, a table of verdicts, formulas and break-evens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from shardwright.report.guide.guide_screen import loss_text, plan_text, value_text
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Guide,
    Rule,
)


def guide_markdown(guide: Guide, *, level: int = 1) -> str:
    """Markdown page, title at heading `level`: best plan, tables of rules and formulas, changes."""
    mark = "#" * level
    lines = [
        f"{mark} {guide.title}",
        "",
        f"`{guide.command}`",
        "",
        f"Best: {plan_text(guide.best)}.",
        "",
        *table(("Question", "Advice of the rule", "Here"), verdict_rows(guide.rules)),
        "",
        f"{mark}# Formulas",
        "",
        *table(("Quantity", "Formula", "With these numbers", "Value"), formula_rows(guide.rules)),
    ]
    sentences = [rule.break_even.sentence for rule in guide.rules if rule.break_even is not None]
    if sentences:
        lines += ["", f"{mark}# Where the best plan changes", ""]
        lines += [f"- {sentence}" for sentence in sentences]
    return "\n".join(lines) + "\n"


def verdict_rows(rules: Sequence[Rule]) -> Iterator[tuple[str, ...]]:
    """Cells of each rule: question, advice or "", and the outcome with other choices or notes."""
    for rule in rules:
        verdict = rule.verdict
        if verdict is None:
            yield rule.question, "", " ".join(rule.notes)
            continue
        others = ", ".join(map(loss_text, verdict.others))
        outcome = f"{verdict.sentence}{f' Others: {others}.' if others else ''}"
        yield rule.question, verdict.advice, outcome


def formula_rows(rules: Sequence[Rule]) -> Iterator[tuple[str, ...]]:
    """Cells of each formula: quantity, symbols, numbers, value."""
    for rule in rules:
        for formula in rule.formulas:
            yield (
                formula.quantity,
                f"`{formula.expression}`",
                f"`{formula.substituted}`",
                value_text(formula.value, formula.unit),
            )


def table(header: Sequence[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Lines of a Markdown table; a vertical bar inside a cell becomes a slash."""
    cells = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
