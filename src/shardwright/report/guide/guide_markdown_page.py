"""Markdown page of a guide: best plan, pictures, a table of verdicts, formulas, break-evens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shardwright.files.dataclass_to_json import to_json_value
from shardwright.report.guide.guide_pictures import GuidePicture, guide_pictures
from shardwright.report.guide.guide_screen import loss_text, plan_text, value_text
from shardwright.report.page.markup.sentences_with_json_values import sentence_text
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Guide,
    Rule,
)


def guide_markdown(guide: Guide, *, level: int = 1, pictures: str = "") -> str:
    """Markdown page, title at heading `level`: best plan, tables of rules and formulas, changes.

    Args:
        pictures: beginning of the paths of the SVG files (`guide_pictures.picture_file`), which
            end in ``-NAME.svg``; empty = their sentences alone.
    """
    mark = "#" * level
    guide_json = to_json_value(guide, names={})
    sections = {
        picture.name: [
            "",
            f"{mark}# {picture.question}",
            "",
            *_lines(picture, guide_json, pictures),
        ]
        for picture in guide_pictures(guide_json)
    }
    lines = [
        f"{mark} {guide.title}",
        "",
        f"`{guide.command}`",
        "",
        f"Best: {plan_text(guide.best)}.",
        *sections.get("rules", []),
        "",
        *table(("Question", "Advice of the rule", "Here"), verdict_rows(guide.rules)),
        "",
        f"{mark}# Formulas",
        "",
        *table(("Quantity", "Formula", "With these numbers", "Value"), formula_rows(guide.rules)),
    ]
    sentences = [rule.break_even.sentence for rule in guide.rules if rule.break_even is not None]
    if sentences:
        heading = ["", f"{mark}# Where does the best plan change?"]
        lines += [*sections.get("break-evens", heading), ""]
        lines += [f"- {sentence}" for sentence in sentences]
    return "\n".join(lines) + "\n"


def _lines(picture: GuidePicture, guide_json: Any, files: str) -> list[str]:
    """Lines of a picture: link to its file unless `files` is "", reading, next change."""
    link = [f"![{picture.question}]({files}-{picture.name}.svg)", ""] if files else []
    sentences = [picture.reading, f"Next change: {picture.next_change}"]
    marked = [
        sentence_text(guide_json, re.sub(r"(\{[^}]*:command\})", r"`\1`", words))
        for words in sentences[: 2 if picture.next_change else 1]
    ]
    return [*link, marked[0], *(line for words in marked[1:] for line in ("", words))]


def verdict_rows(rules: Sequence[Rule]) -> Iterator[tuple[str, ...]]:
    """Cells of each rule: question, advice or "", and the outcome with other choices or notes."""
    for rule in rules:
        verdict = rule.verdict
        if verdict is None:
            yield rule.question, "", " ".join(rule.notes) or _values(rule)
            continue
        others = ", ".join(map(loss_text, verdict.others))
        outcome = f"{verdict.sentence}{f' Others: {others}.' if others else ''}"
        yield rule.question, verdict.advice, outcome


def _values(rule: Rule) -> str:
    """The quantity and value of each of a rule's formulas, in one text."""
    return "; ".join(
        f"{formula.quantity}: {value_text(formula.value, formula.unit)}"
        for formula in rule.formulas
    )


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
