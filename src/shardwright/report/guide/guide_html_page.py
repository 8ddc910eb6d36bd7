"""HTML page of a guide: a view of the best plan and one of each rule."""

from __future__ import annotations

from functools import partial
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement

from shardwright.report.guide.guide_pictures import GuidePicture, guide_pictures
from shardwright.report.page.markup.page_frame import page_html
from shardwright.report.page.markup.value_tables import Column, append_table
from shardwright.report.page.markup.view import View
from shardwright.report.pictures.guide.break_evens_picture_content import FORM_OF_UNIT

FORMULAS: Final = (
    Column(field="quantity", heading="Quantity"),
    Column(field="expression", heading="Formula"),
    Column(field="substituted", heading="With your numbers"),
    Column(field="value", heading="Value", form="number"),
    Column(field="unit", heading="Unit"),
    Column(field="source", heading="Source"),
)
SIDES: Final = (
    Column(field="has", heading="Property", form="yes_no"),
    Column(field="plan/step_s", heading="Step", form="seconds"),
    Column(field="plan/strategy", heading="Plan"),
    Column(field="plan/command", heading="Command"),
)
CHOICES: Final = (
    Column(field="choice", heading="Choice"),
    Column(field="loss", heading="Time against the best plan", form="signed_percent"),
    Column(field="plan/step_s", heading="Step", form="seconds"),
    Column(field="plan/strategy", heading="Plan"),
    Column(field="plan/command", heading="Command"),
)


def guide_html(guide_json: Any) -> str:
    """HTML page of a guide, made from its JSON document."""
    views = [_best_view(guide_json)]
    views += [_picture_view(picture) for picture in guide_pictures(guide_json)]
    views += [_rule_view(guide_json, place) for place in range(len(guide_json["rules"]))]
    return page_html(guide_json, views, scripts=())


def _best_view(guide_json: Any) -> View:
    """View of the best plan, or of why there is none, with the rules skipped for lack of time."""
    searched = (
        "{/searches:count} plans were searched for this guide."
        if guide_json["kind"] == "training"
        else "{/searches:count} deployments were simulated for this guide, and none was searched."
    )
    if guide_json["best"]["step_s"] is None:
        hint = " {/hint}" if guide_json["hint"] else ""
        reading = f"No plan fits: {{/best/why}}.{hint}"
    else:
        unit = "A step takes" if guide_json["kind"] == "training" else "A token takes"
        reading = f"{unit} {{/best/step_s:seconds}} with {{/best/strategy}}. {searched}"
    if guide_json["skipped"]:
        names = ", ".join(f"{{/skipped/{place}}}" for place in range(len(guide_json["skipped"])))
        reading += f" The time was over before these rules were judged: {names}."
    return View(
        name="best",
        question="What is the best plan?",
        reading=reading,
        next_change="Repeat it with {/best/command}",
    )


def _picture_view(picture: GuidePicture) -> View:
    """View of a picture, whose numbers are in the views of the rules."""
    return View(
        name=picture.name,
        question=picture.question,
        reading=picture.reading,
        next_change=picture.next_change,
        chart=lambda parent, guide_json: picture.append(SubElement(parent, "figure"), guide_json),
    )


def _rule_view(guide_json: Any, place: int) -> View:
    """View of the rule at index `place`: statement, any advice, outcome, break-even, and notes."""
    rule, at = guide_json["rules"][place], f"/rules/{place}"
    parts = [f"Rule: {{{at}/statement}}"]
    verdict = rule["verdict"]
    if verdict is not None:
        parts.append(f"Advice: {{{at}/verdict/advice}} {{{at}/verdict/sentence}}")
    if rule["break_even"] is not None:
        parts.append(f"{{{at}/break_even/sentence}}")
    parts += [f"{{{at}/notes/{number}}}" for number in range(len(rule["notes"]))]
    loses = verdict is not None and verdict["outcome"] == "loses"
    return View(
        name=f"rule-{rule['name'].replace('_', '-')}",
        question=rule["question"],
        reading=" ".join(parts),
        next_change=(
            f"Do not follow the rule: {{{at}/verdict/followed/command}} shows the plan that does,"
            " {/best/command} the better one."
            if loses
            else ""
        ),
        tables=(
            partial(_append_tables, at=at, rule_json=rule)
            if rule["formulas"] or rule["break_even"] or (verdict and verdict["others"])
            else None
        ),
        tables_open=True,
    )


def _append_tables(parent: Element, guide_json: Any, *, at: str, rule_json: Any) -> None:
    """Append tables of the rule at pointer `at`: formulas, verdict's choices, break-even sides."""
    if rule_json["formulas"]:
        append_table(parent, guide_json, f"{at}/formulas", FORMULAS, caption="Formulas")
    if rule_json["verdict"] is not None and rule_json["verdict"]["others"]:
        append_table(
            parent, guide_json, f"{at}/verdict/others", CHOICES, caption="Other choices, searched"
        )
    if rule_json["break_even"] is not None:
        form = FORM_OF_UNIT.get(rule_json["break_even"]["unit"], "count")
        append_table(
            parent,
            guide_json,
            f"{at}/break_even/sides",
            (
                Column(
                    field="value", heading=rule_json["break_even"]["axis"].capitalize(), form=form
                ),
                *SIDES,
            ),
            caption="Both sides of the break-even: whether the plan has the property",
        )
