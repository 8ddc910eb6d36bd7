"""Answers on a terminal: everything a person asks about a plan, on one screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardwright.hardware.device import Evidence
from shardwright.report.memory_table import memory_table
from shardwright.report.plan_picture import Picture, printable
from shardwright.report.plan_text import PlanText
from shardwright.report.tables import plain_table
from shardwright.report.verdict import verdict
from shardwright.search.answer import Alternative, Answer, Goodput, Sensitivity
from shardwright.search.certificate import Certificate
from shardwright.search.request import Request
from shardwright.search.simulation import Simulation
from shardwright.simulator.prediction import Counted, Prediction
from shardwright.strategy.grid.axes import Grid
from shardwright.strategy.plan.order import Named
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_bytes, format_parameters, format_percent, format_seconds

BAR_WIDTH = 30
_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_PARTS = {
    "gemm": "matrix products",
    "attention": "attention core",
    "element": "element-wise kernels",
    "launch": "kernel launches",
    "recompute": "recompute",
    "tp": "exposed tensor-parallel communication",
    "cp": "exposed context-parallel communication",
    "ep": "exposed expert-parallel communication",
    "pp": "exposed pipeline communication",
    "sharding": "exposed gathers and reductions",
    "scales": "reduction of 8-bit scales",
    "uneven": "waiting for other devices of the stage",
    "slowdown": "slowdown beside communication",
    "optimizer": "optimizer step",
    "bubble": "pipeline bubble",
    "jitter": "jitter between devices",
}
_STYLE = {"title": "bold", "good": "green", "dim": "dim"}


def render_answer(answer: Answer, *, all_stages: bool = False) -> RenderableType:
    """The answer of a search: strategy, speed, time, memory, certificate, next best plans, sensitivity, goodput.

    Args:
        all_stages: every pipeline rank in the memory table, not the worst and a few others.
    """
    parts: list[RenderableType] = [_request_line(answer.request)] if answer.request else []
    parts += [
        _strategy_lines(answer.grid, prediction=answer.prediction, runtime=answer.request.runtime if answer.request else ""),
        *_prediction_parts(answer.prediction, all_stages=all_stages),
        _section("Certificate", certificate_text(answer.certificate, search_time_s=answer.search_time_s)),
    ]
    if answer.alternatives:
        close = " (~ closer than the prediction's interval)" if any(a.indistinguishable for a in answer.alternatives) else ""
        parts.append(_section(f"Next best, certified in rank{close}", _alternatives_table(answer)))
    if answer.sensitivity:
        parts.append(_section("If the cluster were another", Text(_sensitivity_line(answer.sensitivity, answer=answer))))
    if answer.goodput:
        parts.append(_section("Goodput", _goodput_lines(answer.goodput)))
    return Group(*parts)


def render_simulation(simulation: Simulation, *, picture: Picture | None = None, all_stages: bool = False) -> RenderableType:
    """One strategy's time and memory; a small general plan's picture below."""
    prediction, words = simulation.prediction, strategy_text(simulation)
    lines = [*_asked(prediction), ("Strategy", words), ("Runtime", simulation.request.runtime), *(("Note", n) for n in simulation.notes)]
    head = Text("\n").join(Text.assemble((f"{name:<10}", _STYLE["title"]), text) for name, text in lines)
    drawn = [_section("Devices and layers", PlanText(picture=picture))] if picture else []
    parts = _prediction_parts(simulation.prediction, all_stages=all_stages, classes=simulation.classes, fitting=simulation.fitting)
    return Group(Text.assemble("\n", head), *parts, *drawn)


def strategy_text(simulation: Simulation) -> str:
    """The grid that says a simulated strategy, or the name and the size of its plan."""
    if simulation.grid is not None:
        return print_grid(simulation.grid)
    assert simulation.plan is not None
    plan, name = simulation.plan, printable(simulation.name)
    stages = sum(len(lane.stages) for lane in plan.lanes)
    orders = ", ".join(o.schedule if isinstance(o, Named) else "a table" for o in plan.orders)
    counts = (_count(plan.devices, "device"), _count(len(plan.lanes), "lane"), _count(stages, "stage"))
    return f"{name or 'a plan'}: {', '.join(counts)}, order {orders}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def render_explained(simulation: Simulation, *, picture: Picture | None = None) -> RenderableType:
    """A stored simulation with every class of devices, and the source of each number that went into it."""
    return Group(render_simulation(simulation, picture=picture, all_stages=True), _sources(simulation.prediction))


def render_explanation(answer: Answer) -> RenderableType:
    """The answer with every pipeline rank, and the source of each number that went into it."""
    return Group(render_answer(answer, all_stages=True), _sources(answer.prediction))


def _sources(prediction: Prediction) -> RenderableType:
    rows = [(s.quantity, s.value, s.origin.evidence.value, s.origin.reference) for s in prediction.sources]
    return _section("Inputs and their sources", plain_table(("quantity", "value", "known by", "source"), rows))


def render_comparison(simulations: Sequence[Simulation]) -> RenderableType:
    """Strategies side by side, fastest first: what each does better or worse than the fastest."""
    ranked = sorted(((strategy_text(one), one.prediction) for one in simulations), key=lambda pair: pair[1].step_time_s)
    best = ranked[0][1]
    rows = [
        (
            str(rank),
            f"{p.step_time_s:.4g}",
            f"+{format_percent(p.step_time_s / best.step_time_s - 1)}",
            f"{p.tokens_per_s_per_device:,.0f}",
            format_percent(p.mfu_causal),
            format_bytes(p.allocated_bytes),
            "yes" if p.reserved_bytes <= p.capacity_bytes else "no",
            text,
        )
        for rank, (text, p) in enumerate(ranked, start=1)
    ]
    header = ("", "s/step", "slower", "tok/s/dev", "MFU", "memory", "fits", "strategy")
    names = list(dict.fromkeys(name for _, p in ranked for name, _ in p.breakdown_s))
    parts = [dict(p.breakdown_s) for _, p in ranked]
    times = [(name, *(f"{part.get(name, 0.0):.4g}" for part in parts)) for name in names]
    return Group(
        plain_table(header, rows, right=(1, 2, 3, 4, 5)),
        _section(
            "Where the time goes, in seconds",
            plain_table(("", *(row[0] for row in rows)), times, right=tuple(range(1, len(rows) + 1))),
        ),
    )


def _section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(f"\n{title}", style=_STYLE["title"]), Padding(body, (0, 0, 0, 2)))


def _request_line(request: Request) -> Text:
    devices = f", at most {request.max_devices:,} devices" if request.max_devices else ""
    chosen = [f"{axis}={','.join(values)}" for axis, values in request.pins]
    chosen += [f"not {axis}={','.join(values)}" for axis, values in request.excludes]
    limits = f"\npinned: {', '.join(chosen)}" if chosen else ""
    return Text(
        f"{request.model} on {request.cluster}{devices}: "
        f"{request.global_batch:,} sequences of {request.seq_len:,} tokens a step, {request.precision}"
        f"{f', trained: {request.train}' if request.train else ''}{limits}"
    )


def model_text(model: Counted) -> str:
    """The model's own name, how large it is, how much of it a token uses and is trained, where that is less; and what nobody read."""
    whole, active, trained = (format_parameters(count) for count in (model.parameters, model.active, model.trainable))
    text = f"{printable(model.name)}, {whole} parameters"
    text += f", {active} of them for a token" if active != whole else ""
    text += f", {trained} trained" if trained != whole else ""
    return text + (f"; not read: {', '.join(model.unread)}" if model.unread else "")


def _asked(prediction: Prediction) -> list[tuple[str, str]]:
    """What was planned, in the tool's own words."""
    return [("Model", model_text(prediction.model)), ("Cluster", prediction.cluster)]


def _strategy_lines(grid: Grid, *, prediction: Prediction, runtime: str) -> RenderableType:
    lines = [*_asked(prediction), ("Strategy", print_grid(grid)), *([("Runtime", runtime)] if runtime else [])]
    return Text.assemble("\n", Text("\n").join(Text.assemble((f"{name:<10}", _STYLE["title"]), text) for name, text in lines))


def _prediction_parts(
    prediction: Prediction, *, all_stages: bool, classes: tuple[str, ...] = (), fitting: tuple[str, ...] = ()
) -> list[RenderableType]:
    low, high = prediction.interval_s
    speed = Text.assemble(
        ("Step      ", _STYLE["title"]),
        f"{prediction.step_time_s:.4g} s (80 % interval {low:.4g} to {high:.4g} s)\n",
        ("Speed     ", _STYLE["title"]),
        f"{prediction.tokens_per_s:,.0f} tokens/s, {prediction.tokens_per_s_per_device:,.1f} tokens/s/device, ",
        f"MFU {format_percent(prediction.mfu_causal)} (causal attention), {format_percent(prediction.mfu_full)} (full)\n",
        ("Memory    ", _STYLE["title"]),
        verdict(prediction, classes=classes, fitting=fitting),
    )
    assumed = [s.quantity for s in prediction.sources if s.origin.evidence is Evidence.ASSUMED]
    parts: list[RenderableType] = [speed]
    if assumed:
        parts.append(Text.assemble(("Assumed   ", _STYLE["title"]), ", ".join(dict.fromkeys(assumed))))
    capacity = format_bytes(prediction.capacity_bytes)
    share = format_percent(prediction.reserved_bytes / prediction.capacity_bytes) if prediction.capacity_bytes else "-"
    worst = f"{format_bytes(prediction.allocated_bytes)} allocated, {format_bytes(prediction.reserved_bytes)} reserved"
    title = f"Memory of the worst device: {worst} of {capacity} ({share})"
    parts.append(_section("Where the time of the critical device goes", _breakdown_table(prediction)))
    by = "class of devices" if classes else "stage"
    parts.append(_section(f"{title}; by {by}, in GiB", memory_table(prediction, all_stages=all_stages, classes=classes)))
    return parts


def _breakdown_table(prediction: Prediction) -> RenderableType:
    """Parts of the step with bars; they add up to it."""
    total = prediction.step_time_s
    scale, unit = next(((k, u) for k, u in _TIME_UNITS if total >= k), _TIME_UNITS[-1])
    rows = [
        (
            _PARTS.get(name, name),
            f"{seconds / scale:.3f} {unit}",
            format_percent(seconds / total),
            "█" * round(BAR_WIDTH * min(max(seconds / total, 0.0), 1.0)),
        )
        for name, seconds in prediction.breakdown_s
        if seconds
    ]
    covered = sum(seconds for _, seconds in prediction.breakdown_s)
    rows.append(("the step", f"{covered / scale:.3f} {unit}", format_percent(covered / total), ""))
    return plain_table(("", "", "", ""), rows, right=(1, 2))


def certificate_text(c: Certificate, *, search_time_s: float) -> Text:
    """Whether the answer is proven best, every member of the space by its fate, the bounds, and the space."""
    if c.optimal:
        words = "Optimal: no other strategy of the space is faster."
    else:
        words = f"Not proven optimal: no strategy of the space takes less than {c.lower_bound_s:.4g} s."
    parts = (
        f"{c.illegal:,} illegal + {c.duplicates:,} duplicates + {c.infeasible:,} infeasible + "
        f"{c.bounded_b0:,} + {c.bounded_b1:,} bounded + {c.simulated:,} simulated"
    )
    lines = [
        words + (f" Searched in {format_seconds(search_time_s)}." if search_time_s else ""),
        f"{c.enumerated:,} enumerated = {parts}",
        f"Best {c.best_s:.6g} s, lower bound {c.lower_bound_s:.6g} s, gap {format_percent(c.gap, digits=2)}",
        f"Any plan whatever, in the space or not, takes at least {format_percent(1 - c.universal_gap)} of the best's time.",
        f"Space {c.digest[:12]}: {_shortened(c.space)}",
    ]
    return Text("\n".join(lines))


def _shortened(text: str, limit: int = 96) -> str:
    return text if len(text) <= limit else text[: limit - 4].rstrip() + " ..."


def difference(grid: Grid, *, best: Grid) -> str:
    """The words of `grid` that `best` has not, and, behind a minus, the words that it lacks and no other replaces."""
    words, others = print_grid(grid).split(), print_grid(best).split()
    new = [w for w in words if w not in others]
    keys = {_key(w) for w in new}
    return " ".join([*new, *(f"-{w}" for w in others if w not in words and _key(w) not in keys)])


def _key(word: str) -> str:
    return word.split("=")[0].rstrip("0123456789")


def _alternatives_table(answer: Answer) -> RenderableType:
    rows = [_alternative_row(a, rank=rank, answer=answer) for rank, a in enumerate(answer.alternatives, start=2)]
    return plain_table(("", "s/step", "slower", "memory", "differs in", "against the best"), rows, right=(0, 1, 2, 3))


def _alternative_row(alternative: Alternative, *, rank: int, answer: Answer) -> tuple[str, ...]:
    slower = alternative.step_time_s / answer.prediction.step_time_s - 1
    changes = ", ".join(f"{name} {_signed(seconds)}" for name, seconds in telling(alternative.changes))
    return (
        str(rank),
        f"{alternative.step_time_s:.4g}",
        f"+{format_percent(slower)}" + (" ~" if alternative.indistinguishable else ""),
        format_bytes(alternative.allocated_bytes),
        difference(alternative.grid, best=answer.grid),
        changes,
    )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{format_seconds(abs(seconds), digits=3)}"


def telling(changes: tuple[tuple[str, float], ...]) -> tuple[tuple[str, float], ...]:
    """The two largest changes, and the largest one the other way where both go one way: what is gained stands beside what it costs."""
    shown = changes[:2]
    other = [change for change in changes[2:] if (change[1] > 0) != (shown[0][1] > 0)]
    return shown + tuple(other[:1] if len({seconds > 0 for _, seconds in shown}) == 1 else ())


def _sensitivity_line(sensitivity: Sensitivity, *, answer: Answer) -> str:
    slower = sensitivity.same_plan_s / answer.prediction.step_time_s - 1
    if sensitivity.best_grid == answer.grid:
        return f"{sensitivity.change}: {slower:+.1%}, the same plan is best"
    gain = sensitivity.best_s / answer.prediction.step_time_s - 1
    return f"{sensitivity.change}: {slower:+.1%}; best then {difference(sensitivity.best_grid, best=answer.grid)} ({gain:+.1%})"


def _goodput_lines(goodput: Goodput) -> Text:
    line = (
        f"{format_percent(goodput.goodput)} of the time is useful: {goodput.failures_per_day:.3g} failures a day, "
        f"a checkpoint every {goodput.checkpoint_interval_s / 60:.3g} minutes"
    )
    text = Text(line)
    if goodput.assumptions:
        text.append("\nassuming " + "; ".join(goodput.assumptions), style=_STYLE["dim"])
    return text
