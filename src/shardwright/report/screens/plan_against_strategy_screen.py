"""The `why` screen: a plan and another strategy side by side; and its JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.files.plan_and_simulation_file_contents import prediction_document
from shardwright.report.screens.step_time_table import part_name
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from shardwright.search.answer_summary_text import answer_line, misfit_text, verdict
from shardwright.search.grid.fate_of_grid import Fate, LocatedGrid
from shardwright.search.plan_against_strategy_result import Beside, Why, missing_bytes
from shardwright.search.simulated_strategy import strategy_text
from shardwright.strategy.rule_violations import Violation
from shardwright.units import (
    GIB,
    format_bytes,
    format_seconds,
    format_time_change,
    zero_below_clock,
)

LABEL: Final = 10
_FATES: Final = {
    Fate.BEST: "this is the plan ({reason})",
    Fate.RANKED: "simulated, and ranked behind the plan ({reason})",
    Fate.SIMULATED: "simulated: its bound, {bound} ({reason}), did not rule it out",
    Fate.BOUNDED: "bounded: at least {bound} ({reason})",
    Fate.INFEASIBLE: "infeasible: {reason}",
    Fate.ILLEGAL: "illegal: {reason}",
    Fate.OUTSIDE: "not in the space: {reason}",
    Fate.UNSEARCHED: "not searched: {reason}",
}


def why_document(why: Why) -> dict[str, Any]:
    """JSON document of ``why --json``: both strategies, broken rules, fate, changes by part."""
    document: dict[str, Any] = {
        "plan": {
            "strategy": strategy_text(why.plan),
            "prediction": prediction_document(why.plan.prediction),
        },
        "strategy": why.strategy,
        "read_as": why.read_as,
        "legal": not why.broken,
        "broken": [
            {"rule": b.rule, "path": b.path, "message": b.message, "hint": b.hint}
            for b in why.broken
        ],
        "search": {
            "fate": why.placed.fate.value,
            "reason": why.placed.reason,
            "bound_s": why.placed.bound_s or None,
        },
    }
    if why.other is None:
        return document
    prediction = why.other.prediction
    return document | {
        "prediction": prediction_document(prediction),
        "missing_bytes": [
            {"rank": rank, "bytes": count} for rank, count in missing_bytes(prediction)
        ],
        "fits_with": list(why.other.fitting),
        "changes_s": {name: zero_below_clock(other - plan) for name, plan, other in why.seconds},
        "changes_bytes": {name: other - plan for name, plan, other in why.memory},
        "missing_host_bytes": [
            {"node": one.node, "bytes": one.lacking}
            for one in prediction.host_memory
            if one.lacking
        ],
        "changes_host_bytes": {name: other - plan for name, plan, other in why.host_memory},
    }


def render_why(why: Why) -> RenderableType:
    """The `why` screen: both strategies, the fate of the other, and changes of time and memory.

    An illegal strategy has a table of all rules that it breaks instead.
    """
    read = [("Read", Text(why.read_as))] if why.read_as else []
    lines = [
        ("Plan", Text(strategy_text(why.plan))),
        ("Other", Text(why.strategy)),
        *read,
        ("Search", Text(fate_text(why.placed))),
    ]
    if why.other is None:
        return Group(
            _labelled_lines(lines),
            section("Illegal: the rules that it breaks", _broken_rules_table(why.broken)),
        )
    plan, other = why.plan.prediction, why.other.prediction
    change = format_time_change(other.step_time_s / plan.step_time_s - 1)
    step = (
        f"{format_seconds(other.step_time_s)} instead of {format_seconds(plan.step_time_s)}:"
        f" {change}"
    )
    lines += [
        ("Step", Text(step + (" (if it fitted)" if not other.fits else ""))),
        ("Memory", Text(verdict(other, classes=why.other.classes, fitting=why.other.fitting))),
    ]
    return Group(
        _labelled_lines(lines),
        section(
            "Where the time goes, in seconds",
            _change_table(why.seconds, total="the step", names=part_name, scale=1.0, digits=4),
        ),
        section(
            "Memory of the fullest device, in GiB",
            _change_table(why.memory, total="reserved", names=str, scale=GIB, digits=2),
        ),
        *_host_memory_section(why),
        *_missing_memory_section(why),
    )


def why_line(why: Why) -> str:
    """Line of ``why --quiet``: seconds, strategy, slow-down or misfit, fate; only fate if illegal.

    The fate is the strategy's place in the search.
    """
    placed = fate_text(why.placed)
    if why.other is None:
        return f"{placed}\n"
    step, plan = why.other.prediction.step_time_s, why.plan.prediction.step_time_s
    misfit = misfit_text(why.other.prediction, classes=why.other.classes)
    return answer_line(
        why.strategy,
        step_time_s=step,
        misfit=f"{misfit or format_time_change(step / plan - 1)}\t{placed}",
    )


def fate_text(placed: LocatedGrid) -> str:
    """Sentence on whether the search excluded, bounded or simulated a strategy, and why."""
    return _FATES[placed.fate].format(reason=placed.reason, bound=format_seconds(placed.bound_s))


def _labelled_lines(lines: list[tuple[str, Text]]) -> Text:
    """Lines of text, each after a bold label of fixed width."""
    return Text("\n").join(
        Text.assemble((f"{name:<{LABEL}}", "bold"), text) for name, text in lines
    )


def _broken_rules_table(broken: tuple[Violation, ...]) -> RenderableType:
    """Table of broken rules: id, message with its place, and hint."""
    return plain_table(
        ("rule", "", "hint"),
        [(b.rule, f"{b.path}: {b.message}" if b.path else b.message, b.hint) for b in broken],
        whole=(0,),
    )


def _change_table(
    rows: Beside, *, total: str, names: Any, scale: float, digits: int
) -> RenderableType:
    """Table by part of plan, other and change, all over `scale`; increases first, then sums."""
    ranked = sorted(rows, key=lambda row: round((row[1] - row[2]) / scale, digits))
    summed = (total, sum(row[1] for row in rows), sum(row[2] for row in rows))
    shown = [
        (
            name,
            f"{plan_value / scale:.{digits}f}",
            f"{other_value / scale:.{digits}f}",
            _signed((other_value - plan_value) / scale, digits=digits),
        )
        for name, plan_value, other_value in [
            *((names(name), plan_value, other_value) for name, plan_value, other_value in ranked),
            summed,
        ]
    ]
    return plain_table(("", "plan", "other", "change"), shown, right=(1, 2, 3))


def _signed(change: float, *, digits: int) -> str:
    """Format a change with its sign, or ``=`` if it rounds to zero."""
    text = f"{change:+.{digits}f}"
    return text if float(text) else "="


def _host_memory_section(why: Why) -> list[RenderableType]:
    """Section of the fullest node's host memory under both, if either offloads; else []."""
    body = _change_table(why.host_memory, total="needed", names=str, scale=GIB, digits=2)
    return [section("Host memory of the fullest node, in GiB", body)] if why.host_memory else []


def _missing_memory_section(why: Why) -> list[RenderableType]:
    """Section of every stage and node that lacks memory, with the missing bytes; [] if all fit."""
    assert why.other is not None
    classes = why.other.classes
    lacks = missing_bytes(why.other.prediction)
    rows = [
        (
            f"devices {classes[rank]}" if classes else f"stage {rank}",
            f"{format_bytes(count)} too much",
        )
        for rank, count in lacks
    ]
    hosts = [host for host in why.other.prediction.host_memory if host.lacking]
    rows += [
        (f"host memory of node {host.node}", f"{format_bytes(host.lacking)} too much")
        for host in hosts
    ]
    return [section("What does not fit", plain_table(("", ""), rows))] if rows else []
