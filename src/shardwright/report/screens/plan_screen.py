"""The `plan` screen: strategy, speed, time, memory, certificate and alternatives of a plan."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.report.pictures.plan_picture_content import PlanPicture
from shardwright.report.pictures.plan_text import PlanText
from shardwright.report.screens.alternatives_table import alternatives_section, strategy_difference
from shardwright.report.screens.busy_and_waiting_by_device_kind_table import kinds_table
from shardwright.report.screens.certificate_text import certificate_text, unsearched_parts
from shardwright.report.screens.memory_by_pipeline_rank_table import host_table, memory_table
from shardwright.report.screens.step_time_table import breakdown_table
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import REMARK_STYLE, labelled_lines, section
from shardwright.search.search_answer import (
    Answer,
    Goodput,
    Sensitivity,
    Unsearched,
    answer_lines,
)
from shardwright.search.simulated_strategy import Simulation, simulation_lines
from shardwright.simulator.prediction import HostMemory, Prediction
from shardwright.units import format_bytes, format_percent


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
        parts.append(section(f"Next best, certified in rank{close}", alternatives_section(answer)))
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
        section("Where the time of the critical device goes", breakdown_table(prediction)),
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


def _sensitivity_line(sensitivity: Sensitivity, *, answer: Answer) -> str:
    """Sentence: percent change of the step on a changed cluster, and the best plan there."""
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
        text.append("\nassuming " + "; ".join(goodput.assumptions), style=REMARK_STYLE)
    return text
