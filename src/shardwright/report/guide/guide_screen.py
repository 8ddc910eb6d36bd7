"""Screen of a guide: each rule's question, formulas, verdict and break-even."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    Comparison,
    Formula,
    Guide,
    GuidePlan,
    Rule,
    Verdict,
)
from shardwright.report.terminal_line_wrapping import Indented, WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from shardwright.units import (
    format_bytes,
    format_count,
    format_parameters,
    format_percent,
    format_seconds,
)


def render_guide(guide: Guide) -> RenderableType:
    """The guide on the screen: the best plan, a section a rule, and rules left out for time."""
    parts: list[RenderableType] = [Text(guide.title, style="bold")]
    parts.append(section("The best plan", Group(*map(WrappedText, map(Text, _best_lines(guide))))))
    parts += [section(rule.question, Group(*_rule_parts(rule))) for rule in guide.rules]
    if guide.skipped:
        words = f"Left out by --time-limit: {', '.join(guide.skipped)}"
        parts.append(section("Not judged", WrappedText(Text(words))))
    return Group(*parts)


def guide_line(guide: Guide) -> str:
    """Line of ``--quiet``: step or "-", strategy or reason, "m of n rules do not hold"; by tabs."""
    judged = [rule for rule in guide.rules if rule.verdict is not None]
    wrong = [rule for rule in judged if rule.verdict and rule.verdict.outcome.value != "holds"]
    step = "-" if guide.best.step_s is None else f"{guide.best.step_s:.9g} s"
    return (
        f"{step}\t{guide.best.strategy or guide.best.why}\t{len(wrong)} of {len(judged)} rules do"
        " not hold\n"
    )


def _best_lines(guide: Guide) -> Iterator[str]:
    """Lines: best plan or why none; any hint; the number of searches and the plan's command."""
    yield plan_text(guide.best)
    if guide.hint:
        yield f"hint: {guide.hint}"
    noun = "plans were searched" if guide.kind == "training" else "deployments were simulated"
    yield f"{guide.searches:,} {noun} for this guide; {guide.best.command}"


def plan_text(plan: GuidePlan) -> str:
    """Text of a plan: step time, strategy, memory in percent of capacity; or why there is none."""
    if plan.step_s is None:
        return f"no plan: {plan.why}"
    memory = (
        "" if plan.memory_share is None else f", {format_percent(plan.memory_share, digits=0)} full"
    )
    return f"{format_seconds(plan.step_s)}: {plan.strategy}{memory}"


def _rule_parts(rule: Rule) -> Iterator[RenderableType]:
    """Parts of a rule's section: statement, formulas, verdict, break-even, notes."""
    yield WrappedText(Text(f"Rule: {rule.statement}", style="dim"))
    if rule.formulas:
        yield plain_table(
            ("", "", ""), list(map(_formula_row, rule.formulas)), right=(2,), spare=()
        )
    if rule.verdict is not None:
        yield from _verdict_parts(rule.verdict)
    if rule.break_even is not None:
        yield WrappedText(Text(rule.break_even.sentence))
        for side in rule.break_even.sides:
            yield _indented_plan(side.plan)
    for note in rule.notes:
        yield WrappedText(Text(note))


def _verdict_parts(verdict: Verdict) -> Iterator[RenderableType]:
    """Advice and outcome, with the plan that follows the advice and the other choices."""
    style = "green" if verdict.outcome.value == "holds" else "yellow"
    yield WrappedText(Text.assemble(f"Advice: {verdict.advice} ", (verdict.sentence, style)))
    if verdict.followed.command:
        yield _indented_plan(verdict.followed)
    if verdict.others:
        yield WrappedText(
            Text(f"Time against the best plan: {', '.join(map(loss_text, verdict.others))}")
        )


def loss_text(comparison: Comparison) -> str:
    """Text of another choice with its time above the best plan's in percent, or ``no plan``."""
    loss = "no plan" if comparison.loss is None else f"{100 * comparison.loss:+.1f} %"
    return f"{comparison.choice} {loss}"


def _indented_plan(plan: GuidePlan) -> RenderableType:
    """A plan's line (none if nothing fits) above its command, both indented."""
    lines = [] if plan.step_s is None else [WrappedText(Text(plan_text(plan)))]
    return Indented(Group(*lines, WrappedText(Text(plan.command, style="dim"))))


def _formula_row(formula: Formula) -> tuple[str, str, str]:
    """Cells of a formula: quantity, formula with numbers, value."""
    return (
        formula.quantity,
        f"{formula.expression} = {formula.substituted}",
        value_text(formula.value, formula.unit),
    )


def value_text(value: float, unit: str) -> str:
    """Text of a formula's value in its unit: bytes, seconds, parameters, percent or a count."""
    text_of = _TEXT_OF_UNIT.get(unit)
    return f"{format_count(value)} {unit}" if text_of is None else text_of(value)


_TEXT_OF_UNIT: Final[Mapping[str, Callable[[float], str]]] = {
    "": "{:.4g}".format,
    "bytes": format_bytes,
    "seconds": format_seconds,
    "parameters": format_parameters,
    "share": format_percent,
}
"""Text of a value by its unit; other units stand behind a count."""
