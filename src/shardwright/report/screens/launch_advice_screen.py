"""The `advise` screen: a launch, its bottleneck and faster changes; and its JSON."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.files.plan_and_simulation_file_contents import plan_document, prediction_document
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.settings.setting_verdicts import LaunchSetting, Verdict
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.report.screens.step_time_table import part_name
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import labelled_lines, section
from shardwright.search.advice_answer import Advice, Change
from shardwright.search.answer_summary_text import Line
from shardwright.search.optimality_certificate import claim
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.units import format_seconds, format_time_change

LIMITS: Final = 3
"""Number of parts of the step that the screen names as its limits."""


def advice_document(launch: Launch, advice: Advice) -> dict[str, Any]:
    """JSON document of ``advise --json``: launch, settings, rules broken, prediction, changes."""
    return {
        "framework": launch.framework,
        "runtime": launch.runtime,
        "strategy": print_grid(launch.grid),
        "job": {
            "seq_len": launch.seq_len,
            "global_batch": launch.global_batch,
            "precision": launch.precision,
            "dropout": launch.dropout,
            "train": launch.train,
        },
        "settings": [
            {"name": s.name, "value": s.value, "verdict": s.verdict.value, "means": s.means}
            for s in launch.settings
        ],
        "notes": list(launch.notes),
        "legal": not advice.broken,
        "broken": [
            {"rule": b.rule, "path": b.path, "message": b.message, "hint": b.hint}
            for b in advice.broken
        ],
        "prediction": prediction_document(advice.now.prediction) if advice.now else None,
        "limited_by": [
            {"part": name, "seconds": seconds} for name, seconds in longest_parts(advice)
        ],
        "causes": [_change_document(change) for change in advice.causes],
        "considered": advice.considered,
        "changes": [_change_document(change) for change in advice.changes],
        "best": (
            {
                **_change_document(advice.everything),
                "certificate": plan_document(advice.best)["certificate"],
            }
            if advice.best and advice.everything
            else None
        ),
    }


def _change_document(change: Change) -> dict[str, Any]:
    """JSON object of a proposed change with its step time and its settings."""
    return {
        "change": change.text,
        "strategy": print_grid(change.grid),
        "step_time_s": change.step_time_s,
        "gain": change.gain,
        "remove": [{"name": name, "value": value} for name, value in change.removed],
        "add": [{"name": name, "value": value} for name, value in change.added],
    }


def longest_parts(advice: Advice) -> tuple[tuple[str, float], ...]:
    """(part, seconds) of the step's 3 longest parts but GEMM and attention; () if it cannot run."""
    if advice.now is None:
        return ()
    parts = [
        (name, seconds)
        for name, seconds in advice.now.prediction.breakdown_s
        if name not in ("gemm", "attention") and seconds > 0
    ]
    return tuple(sorted(parts, key=lambda part: -part[1])[:LIMITS])


def advice_line(launch: Launch, advice: Advice) -> str:
    """Line of ``advise --quiet``: the launch's seconds or illegal, the best's seconds and text.

    With the best strategy.
    """
    now = f"{advice.now.prediction.step_time_s:.6g}" if advice.now else "illegal"
    return (
        f"{now}\t{advice.everything.step_time_s:.6g}\t{advice.everything.text}\n"
        if advice.everything
        else f"{now}\t-\t-\n"
    )


def render_advice(launch: Launch, advice: Advice) -> RenderableType:
    """The `advise` screen: the launch as understood, its time and memory, and faster changes."""
    parts: list[RenderableType] = [labelled_lines(_understood(launch))]
    for verdict, title in (
        (Verdict.DIFFERENT, "The launch's model differs from MODEL"),
        (Verdict.UNKNOWN, "Not understood, so not counted"),
        (Verdict.IDLE, "No effect in this launch"),
    ):
        if launch.of(verdict):
            parts.append(section(title, _settings_table(launch.of(verdict))))
    if advice.now is None:
        rows = [(b.rule, b.message, b.hint) for b in advice.broken]
        parts.append(
            section(
                "The launch cannot run: the rules that it breaks",
                plain_table(("rule", "", "hint"), rows, whole=(0,)),
            )
        )
    else:
        parts += [Text(""), render_simulation(advice.now)]
        limited = ", ".join(
            f"{part_name(name)} {format_seconds(seconds)}"
            for name, seconds in longest_parts(advice)
        )
        parts.append(
            section(
                "What limits the step, besides matrix multiplication", Text(limited or "nothing")
            )
        )
    step = advice.now.prediction.step_time_s if advice.now else 0.0
    if advice.causes:
        parts.append(
            section(
                "Largest costs that no search option changes",
                Group(*(_change_text(cause, step) for cause in advice.causes)),
            )
        )
    parts += _improvement_sections(launch, advice)
    return Group(*parts)


def _understood(launch: Launch) -> list[Line]:
    """Labelled lines of the launch: counts of settings, strategy, job, ignored settings, notes."""
    counts = ", ".join(
        f"{len(launch.of(verdict))} {verdict.value}" for verdict in Verdict if launch.of(verdict)
    )
    lines = [
        ("Launch", f"{launch.framework}: {len(launch.settings)} settings: {counts}"),
        ("Strategy", print_grid(launch.grid)),
    ]
    job_text = (
        f"{launch.global_batch:,} samples of {launch.seq_len:,} tokens a step, {launch.precision}"
    )
    job_text += ", dropout" if launch.dropout else ""
    lines.append(("Job", f"{job_text}, trained: {launch.train}" if launch.train else job_text))
    ignored = launch.of(Verdict.IGNORED)
    if ignored:
        lines.append(("Ignored", ", ".join(setting.name for setting in ignored)))
    return [*lines, *(("Note", note) for note in launch.notes)]


def _settings_table(settings: tuple[LaunchSetting, ...]) -> RenderableType:
    """Table of a launch's settings: name, value and meaning."""
    return plain_table(
        ("setting", "value", ""),
        [(setting.name, setting.value[:60], setting.means) for setting in settings],
        whole=(0,),
    )


def _improvement_sections(launch: Launch, advice: Advice) -> list[RenderableType]:
    """Sections of the best single changes and of the best strategy with all changes."""
    parts: list[RenderableType] = []
    step = advice.now.prediction.step_time_s if advice.now else 0.0
    if advice.changes:
        title = (
            f"Changes of one decision that gain most, of {advice.considered} that were simulated"
        )
        parts.append(
            section(title, Group(*(_change_text(change, step) for change in advice.changes)))
        )
    elif advice.considered:
        parts.append(
            section(
                "Changes of one decision",
                Text(f"none of {advice.considered} that were simulated is faster"),
            )
        )
    if advice.everything is None or advice.best is None:
        parts.append(section("Everything at once", Text("no strategy of the space fits")))
        return parts
    certificate = advice.best.certificate
    same = advice.everything.step_time_s == certificate.best_s
    beside = (
        ""
        if same
        else (
            "Of the strategies that the search compares the best takes"
            f" {format_seconds(certificate.best_s)}. "
        )
    )
    proven = claim(optimal=certificate.optimal, lower_bound_s=certificate.lower_bound_s)
    parts.append(
        section(
            "Everything at once",
            Group(_change_text(advice.everything, step), Text(f"{beside}{proven}")),
        )
    )
    return parts


def _change_text(change: Change, step: float) -> RenderableType:
    """Text of a change: its step against `step` seconds (0: unknown), settings removed or added."""
    ratio = step / change.step_time_s
    gain = (
        f"{ratio:.1f} times as fast"
        if ratio >= 2
        else format_time_change(change.step_time_s / step - 1)
        if step
        else ""
    )
    instead = f" instead of {format_seconds(step)}: {gain}" if step else ""
    marked = [*(("- ", pair) for pair in change.removed), *(("+ ", pair) for pair in change.added)]
    lines = [
        Text(f"  {mark}{name}{'' if value == 'true' else f' {value}'}")
        for mark, (name, value) in marked
    ]
    if not marked and step:
        lines = [Text("  not set in these files; the framework's default applies")]
    return Group(Text(f"{change.text}: {format_seconds(change.step_time_s)}{instead}"), *lines)
