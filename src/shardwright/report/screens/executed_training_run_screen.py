"""The `run` screen: the result of a training run; and its JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.execute.launch.run_options_and_report import RunEvaluation, RunReport, RunStep
from shardwright.report.pictures.devices_with_equal_shares import device_text
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.units import format_bytes, format_count, format_seconds


def step_text(step: RunStep, *, steps: int, tokens: int) -> str:
    """One line of a training step: loss, gradient norm, tokens a second."""
    rate = f"{format_count(tokens / step.seconds)} tokens/s" if step.seconds else ""
    return (
        f"step {step.step:>{len(str(steps))}}/{steps}  loss {step.loss:.4f}  norm {step.norm:.3g} "
        f" {rate}"
    )


def evaluation_text(evaluation: RunEvaluation, *, steps: int) -> str:
    """One line of an evaluation: step, loss and seconds."""
    return (
        f"step {evaluation.step:>{len(str(steps))}}/{steps}  evaluated {evaluation.loss:.4f}  in"
        f" {format_seconds(evaluation.seconds)}"
    )


def run_document(report: RunReport) -> dict[str, Any]:
    """JSON document of ``run --json``: steps, evaluations, step times, memory, remarks."""
    return {
        "steps": [asdict(step) for step in report.steps],
        "evaluations": [asdict(entry) for entry in report.evaluations],
        "step_time_s": {"predicted": report.predicted_s, "measured": report.step_s},
        "tokens_per_s": report.tokens_per_s,
        "memory": [asdict(entry) for entry in report.memory],
        "device": report.on,
        "resumed_from_step": report.first,
        "stopped": report.stopped,
        "remarks": list(report.remarks),
        "checkpoint": str(report.checkpoint) if report.checkpoint is not None else None,
    }


def render_run(
    report: RunReport, *, cluster: str, measured: bool = False, dtype: str = ""
) -> RenderableType:
    """Screen of a run: loss, step time against prediction on `cluster`, memory by device class.

    Args:
        cluster: cluster of the prediction.
        measured: the prediction is for this machine, by its profile.
        dtype: number format for the proposed `calibrate` command; empty for its default.
    """
    if not report.steps:
        return Text("No step was done.")
    first, last = report.steps[0], report.steps[-1]
    origin = f" (from a checkpoint of step {report.first})" if report.first else ""
    lines = [
        (
            f"{'Stopped after' if report.stopped else 'Trained'} {len(report.steps)} steps{origin}:"
            f" loss {first.loss:.4f} -> {last.loss:.4f}"
        ),
        (
            f"A step takes {format_seconds(report.step_s)} on {report.on}"
            f" ({format_count(report.tokens_per_s)} tokens/s); {format_seconds(report.predicted_s)}"
            f" predicted on {cluster}, {report.step_s / report.predicted_s:.3g} times the"
            " prediction"
        ),
    ]
    if report.evaluations:
        lines.append(
            f"Evaluated: loss {report.evaluations[0].loss:.4f} -> {report.evaluations[-1].loss:.4f}"
        )
    if report.checkpoint is not None:
        lines.append(f"Checkpoint: {report.checkpoint}")
    lines += report.remarks
    if report.on == "cpu" and not measured:
        command = f"calibrate --dtype {dtype}" if dtype else "calibrate"
        lines.append(
            f"`shardwright {command} -o here.json` measures this machine; `run --profile here.json`"
            " predicts for it."
        )
    # What freed memory an allocator keeps is no part of the plan: of a CPU's it is shown beside.
    columns = (
        "devices",
        "hold",
        "predicted",
        "measured",
        *(("process grew by",) if report.on == "cpu" else ()),
    )
    rows = [
        (
            device_text(np.array(m.devices)),
            m.holds,
            *(format_bytes(size) for size in (m.predicted, m.measured, m.grown)),
        )[: len(columns)]
        for m in report.memory
    ]
    table = plain_table(columns, rows, right=(2, 3, 4)[: len(columns) - 2], whole=(0,))
    return Group(WrappedText(Text("\n".join(lines))), table)
