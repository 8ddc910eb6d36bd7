"""The `plan` screen: strategy, speed, time, memory, certificate and alternatives of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.pictures.plan_picture import PlanPicture
from shardwright.report.pictures.plan_text import PlanText
from shardwright.report.screens.device_kind_waiting_table import kinds_table
from shardwright.report.screens.memory_table import host_table, memory_table
from shardwright.report.terminal_line_wrapping import Indented, WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.search.answer_summary import LABEL, NO_FIT, WARNING, Line
from shardwright.search.optimality_certificate import Certificate, claim
from shardwright.search.search_answer import (
    Alternative,
    Answer,
    Goodput,
    Sensitivity,
    Unsearched,
    answer_lines,
)
from shardwright.search.simulated_strategy import Simulation, simulation_lines
from shardwright.simulator.prediction import HostMemory, Prediction
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes, format_percent, format_seconds

BAR_WIDTH = 30
EQUAL_TIME_TOLERANCE = 1e-9
"""Relative difference up to which two step times count as equal."""
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_PARTS = {
    "gemm": "GEMMs",
    "attention": "attention",
    "element": "element-wise kernels",
    "launch": "kernel launches",
    "recompute": "recompute",
    "tp": "exposed TP communication",
    "cp": "exposed CP communication",
    "ep": "exposed EP communication",
    "pp": "exposed PP communication",
    "sharding": "exposed DP communication",
    "scales": "reduction of FP8 scales",
    "host": "exposed copies to and from the host",
    "uneven": "imbalance within the stage",
    "slowdown": "slowdown from overlap",
    "optimizer": "optimizer step",
    "bubble": "pipeline bubble",
    "jitter": "jitter between devices",
}
_STYLE = {"title": "bold", "good": "green", "dim": "dim"}


def part_name(part: str) -> str:
    """Name of a part of the step-time breakdown in words."""
    return _PARTS.get(part, part)


def render_answer(
    answer: Answer, *, all_stages: bool = False, left: Unsearched | None = None
) -> RenderableType:
    """The screen of a search's answer: strategy, time, memory, certificate and alternatives.

    With the options that were not searched, the sensitivity and the goodput.

    Args:
        left: options that were not searched.
        all_stages: every stage in the memory table, not the worst and a few others.
    """
    parts: list[RenderableType] = [
        labelled_lines(answer_lines(answer)),
        *_prediction_parts(answer.prediction, all_stages=all_stages),
        section(
            "Certificate",
            certificate_text(
                answer.certificate, search_time_s=answer.search_time_s, whole=all_stages
            ),
        ),
    ]
    parts += unsearched_parts(left)
    if answer.alternatives:
        close = (
            " (~ closer than the prediction's interval)"
            if any(a.indistinguishable for a in answer.alternatives)
            else ""
        )
        parts.append(section(f"Next best, certified in rank{close}", _alternatives(answer)))
    if answer.sensitivity:
        parts.append(
            section(
                "If the cluster were different",
                Text(_sensitivity_line(answer.sensitivity, answer=answer)),
            )
        )
    if answer.goodput:
        parts.append(section("Goodput", _goodput_lines(answer.goodput)))
    return Group(*parts)


def render_simulation(
    simulation: Simulation, *, picture: PlanPicture | None = None, all_stages: bool = False
) -> RenderableType:
    """The screen of one strategy's time and memory, with an optional picture below."""
    picture_section = [section("Devices and layers", PlanText(picture=picture))] if picture else []
    parts = _prediction_parts(
        simulation.prediction, all_stages=all_stages, classes=simulation.classes
    )
    return Group(labelled_lines(simulation_lines(simulation)), *parts, *picture_section)


def render_explained(
    simulation: Simulation, *, picture: PlanPicture | None = None
) -> RenderableType:
    """The `explain` screen of a stored simulation: all device classes, sources of numbers."""
    return Group(
        render_simulation(simulation, picture=picture, all_stages=True),
        _sources(simulation.prediction),
    )


def render_explanation(answer: Answer) -> RenderableType:
    """The `explain` screen of an answer: every stage, and the source of each input number."""
    return Group(render_answer(answer, all_stages=True), _sources(answer.prediction))


def _sources(prediction: Prediction) -> RenderableType:
    """Section with the input quantities, their values, evidence and sources."""
    rows = [
        (s.quantity, s.value, s.origin.evidence.value, s.origin.reference)
        for s in prediction.sources
    ]
    return section(
        "Inputs and their sources", plain_table(("quantity", "value", "known by", "source"), rows)
    )


def labelled_lines(lines: Sequence[Line]) -> RenderableType:
    """Lines with bold labels; warnings and "does not fit" are coloured."""
    return Group(
        *(WrappedText(_line(label, words), hanging=LABEL if label else 0) for label, words in lines)
    )


def _line(label: str, words: str) -> Text:
    """One line with its bold label and coloured warnings."""
    text = Text.assemble((f"{label:<{LABEL}}", _STYLE["title"]) if label else "", words)
    for highlighted, style in ((NO_FIT, "bold red"), (WARNING, "yellow")):
        text.highlight_words((highlighted,), style)
    return text


def section(title: str, body: RenderableType) -> RenderableType:
    """A bold title after an empty line, and an indented body below."""
    wrapped = WrappedText(body) if isinstance(body, Text) and not body.no_wrap else body
    return Group(WrappedText(Text(f"\n{title}", style=_STYLE["title"])), Indented(wrapped))


def _prediction_parts(
    prediction: Prediction, *, all_stages: bool, classes: tuple[str, ...] = ()
) -> list[RenderableType]:
    """Sections of the time breakdown, the device kinds, and device and host memory."""
    capacity = format_bytes(prediction.capacity_bytes)
    share = (
        format_percent(prediction.reserved_bytes / prediction.capacity_bytes)
        if prediction.capacity_bytes
        else "-"
    )
    worst = (
        f"{format_bytes(prediction.allocated_bytes)} allocated,"
        f" {format_bytes(prediction.reserved_bytes)} reserved"
    )
    title = f"Memory of the fullest device: {worst} of {capacity} ({share})"
    by = "class of devices" if classes else "stage"
    kinds = (
        [section("Where the time of each kind of device goes", kinds_table(prediction))]
        if prediction.kinds
        else []
    )
    return [
        section("Where the time of the critical device goes", _breakdown_table(prediction)),
        *kinds,
        section(
            f"{title}; by {by}, in GiB",
            memory_table(prediction, all_stages=all_stages, classes=classes),
        ),
        *(
            [section(_host_title(prediction.host_memory[0]), host_table(prediction.host_memory))]
            if prediction.host_memory
            else []
        ),
    ]


def _host_title(fullest: HostMemory) -> str:
    """Title ``Host memory of the fullest node: 394.2 GiB of 512 GiB (77.0 %); by node, in GiB``."""
    capacity = (
        f" of {format_bytes(fullest.capacity)} ({format_percent(fullest.need / fullest.capacity)})"
        if fullest.capacity
        else ""
    )
    return (
        f"Host memory of the fullest node: {format_bytes(fullest.need)}{capacity}; by node, in GiB"
    )


def part_order(part: tuple[str, float]) -> int:
    """Position of a part of the breakdown in the display order, for sorting."""
    return list(_PARTS).index(part[0]) if part[0] in _PARTS else len(_PARTS)


def _breakdown_table(prediction: Prediction) -> RenderableType:
    """Table of the parts of the step with seconds, shares and bars; they add up to the step."""
    total = prediction.step_time_s
    scale, unit = next(((k, u) for k, u in _TIME_UNITS if total >= k), _TIME_UNITS[-1])
    rows = [
        (
            part_name(name),
            f"{seconds / scale:.3f} {unit}",
            format_percent(seconds / total),
            "█" * round(BAR_WIDTH * min(max(seconds / total, 0.0), 1.0)),
        )
        for name, seconds in sorted(prediction.breakdown_s, key=part_order)
        if seconds
    ]
    covered = sum(seconds for _, seconds in prediction.breakdown_s)
    rows.append(("the step", f"{covered / scale:.3f} {unit}", format_percent(covered / total), ""))
    return plain_table(("", "", "", ""), rows, right=(1, 2), whole=(0, 3), spare=(3,))


def certificate_text(c: Certificate, *, search_time_s: float, whole: bool = True) -> Text:
    """The certificate in words: claim, numbers of strategies, bounds, and the space.

    The space is shortened unless `whole`.
    """
    lines = (
        claim_text(c, search_time_s=search_time_s),
        *count_lines(c),
        *bound_lines(c),
        f"Space {c.digest[:12]}: {c.space if whole else _shortened(c.space)}",
    )
    return Text("\n".join(lines))


def unsearched_parts(left: Unsearched | None) -> list[RenderableType]:
    """Section of the options that a search left at one value, with the best possible gain."""
    if left is None or not left.fixed:
        return []
    return [
        section(
            "Options that change no numerics and were not searched", Text(_unsearched_text(left))
        )
    ]


def _unsearched_text(left: Unsearched) -> str:
    """Text of the options that were not searched, and the best gain of another value."""
    held = f"The runtime's own values: {' '.join(f'{name}={value}' for name, value in left.fixed)}"
    if left.best is None:
        return f"No other value of one of them makes this strategy 0.1 % faster.\n{held}"
    best = f"{left.best.option}={left.best.value}"
    seconds = format_seconds(left.best.step_time_s, digits=4)
    return (
        f"{best} would gain most: {seconds}, {format_percent(left.best.gain)} faster. To search"
        f" with it: --pin {best}\n{held}"
    )


def claim_text(c: Certificate, *, search_time_s: float) -> str:
    """Sentence with the proven claim and the seconds of the search."""
    spent = f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""
    return claim(optimal=c.optimal, lower_bound_s=c.lower_bound_s) + spent


def count_lines(c: Certificate) -> tuple[str, ...]:
    """Numbers of strategies that are infeasible, bounded, simulated, illegal and duplicates."""
    bounded = c.bounded_b0 + c.bounded_b1
    fates = (
        f"{c.strategies:,} distinct legal strategies: {c.infeasible:,} do not fit in memory,"
        f" {bounded:,} are ruled out by a lower bound of their time ({c.bounded_b0:,} by counting,"
        f" {c.bounded_b1:,} by the longest path), {c.simulated:,} simulated"
    )
    if not (c.illegal or c.duplicates):
        return (fates,)
    values = f"{c.enumerated:,} combinations of axis values"
    return (
        fates,
        (
            f"{values}: {c.illegal:,} break a rule, and {c.duplicates:,} mean the same strategy as"
            " another one"
        ),
    )


def bound_lines(c: Certificate) -> tuple[str, str]:
    """Lines of the best time against the lower bound of the space, and of every possible plan."""
    return (
        (
            f"Best {c.best_s:.6g} s, lower bound {c.lower_bound_s:.6g} s, gap"
            f" {format_percent(c.gap, digits=2)}"
        ),
        (
            "Any plan at all, in the space or not, takes at least"
            f" {format_percent(1 - c.universal_gap)} of the best's time."
        ),
    )


def _shortened(text: str, limit: int = 96) -> str:
    """Text cut to `limit` characters with a hint at `explain`."""
    return (
        text
        if len(text) <= limit
        else text[: limit - 4].rstrip() + " ... (explain prints all of it)"
    )


def strategy_difference(grid: Grid, *, best: Grid) -> str:
    """Words of `grid` that `best` lacks; after a minus, words of `best` not replaced."""
    words, others = print_grid(grid).split(), print_grid(best).split()
    new = [w for w in words if w not in others]
    keys = {_key(w) for w in new}
    return " ".join([*new, *(f"-{w}" for w in others if w not in words and _key(w) not in keys)])


def _key(word: str) -> str:
    """Axis name of a strategy's word, without its value: ``tp8`` and ``tp=8`` are ``tp``."""
    return word.split("=")[0].rstrip("0123456789")


def distinct_alternatives(answer: Answer) -> tuple[tuple[int, Alternative], ...]:
    """(rank, strategy) of the alternatives that are not equivalent to a better-ranked one.

    An alternative is left out if a better-ranked strategy is as fast and needs as much memory, or
    if only the order of axes differs and the alternative is neither faster nor smaller.
    """
    better_ranked = [
        (answer.grid, answer.prediction.step_time_s, answer.prediction.allocated_bytes)
    ]
    distinct: list[tuple[int, Alternative]] = []
    for rank, alternative in enumerate(answer.alternatives, start=2):
        if not any(
            alternative.allocated_bytes >= size
            and (
                replace(alternative.grid, order=grid.order) == grid
                or (
                    alternative.step_time_s <= seconds * (1 + EQUAL_TIME_TOLERANCE)
                    and alternative.allocated_bytes == size
                )
            )
            for grid, seconds, size in better_ranked
        ):
            distinct.append((rank, alternative))
        better_ranked.append(
            (alternative.grid, alternative.step_time_s, alternative.allocated_bytes)
        )
    return tuple(distinct)


def _alternatives(answer: Answer) -> RenderableType:
    """Table of the distinct alternatives, and a note on the number of equivalent strategies."""
    shown = distinct_alternatives(answer)
    hidden = len(answer.alternatives) - len(shown)
    others = "1 other strategy takes" if hidden == 1 else f"{hidden} other strategies take"
    more = f"--json lists all; --top {2 * len(answer.alternatives)} ranks more"
    note_text = f"{others} as long and as much memory as one of these or the best ({more})"
    note = [WrappedText(Text(note_text, style=_STYLE["dim"]))] if hidden else []
    return Group(*([_alternatives_table(answer, shown)] if shown else []), *note)


def _alternatives_table(answer: Answer, shown: Sequence[tuple[int, Alternative]]) -> RenderableType:
    """Table of alternatives: step time, slow-down, memory, difference in strategy and in time."""
    rows = [_alternative_row(a, rank=rank, answer=answer) for rank, a in shown]
    header = ("", "s/step", "slower", "allocated", "differs in", "against the best")
    return plain_table(header, rows, right=(0, 1, 2, 3), spare=(3, 5))


def _alternative_row(alternative: Alternative, *, rank: int, answer: Answer) -> tuple[str, ...]:
    """Cells of one alternative."""
    slower = alternative.step_time_s / answer.prediction.step_time_s - 1
    changes = ", ".join(
        f"{part_name(name)} {_signed(seconds)}"
        for name, seconds in main_changes(alternative.changes)
    )
    return (
        str(rank),
        f"{alternative.step_time_s:.4g}",
        f"+{format_percent(slower)}" + (" ~" if alternative.indistinguishable else ""),
        format_bytes(alternative.allocated_bytes),
        strategy_difference(alternative.grid, best=answer.grid),
        changes,
    )


def _signed(seconds: float) -> str:
    """Seconds with a sign."""
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds), digits=3)}"


def main_changes(changes: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """The two largest changes, and the largest opposite change if both have one sign."""
    largest = changes[:2]
    opposite = [change for change in changes[2:] if (change[1] > 0) != (largest[0][1] > 0)]
    return largest + tuple(
        opposite[:1] if len({seconds > 0 for _, seconds in largest}) == 1 else ()
    )


def _sensitivity_line(sensitivity: Sensitivity, *, answer: Answer) -> str:
    """Sentence on the step time and the best plan on a changed cluster."""
    slower = sensitivity.same_plan_s / answer.prediction.step_time_s - 1
    if sensitivity.best_grid == answer.grid:
        return f"{sensitivity.change}: {slower:+.1%}, the same plan is best"
    gain = sensitivity.best_s / answer.prediction.step_time_s - 1
    return (
        f"{sensitivity.change}: {slower:+.1%}; best then"
        f" {strategy_difference(sensitivity.best_grid, best=answer.grid)} ({gain:+.1%})"
    )


def _goodput_lines(goodput: Goodput) -> Text:
    """Text of goodput, failures a day, checkpoint interval and assumptions."""
    line = (
        f"{format_percent(goodput.goodput)} of the time is useful: {goodput.failures_per_day:.3g}"
        f" failures a day, a checkpoint every {goodput.checkpoint_interval_s / 60:.3g} minutes"
    )
    text = Text(line)
    if goodput.assumptions:
        text.append("\nassuming " + "; ".join(goodput.assumptions), style=_STYLE["dim"])
    return text
