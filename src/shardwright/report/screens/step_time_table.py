"""Table of the parts of a step's time, and their names in words."""

from __future__ import annotations

from rich.console import RenderableType

from shardwright.report.terminal_table import plain_table
from shardwright.simulator.prediction import Prediction
from shardwright.units import format_percent

BAR_WIDTH = 30


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


def part_name(part: str) -> str:
    """Name in words of a step-time part's key: ``gemm`` is ``GEMMs``; unknown keys stay."""
    return _PARTS.get(part, part)


def part_order(part: tuple[str, float]) -> int:
    """Position of a (part, seconds) pair in the display order; unknown parts come last."""
    return list(_PARTS).index(part[0]) if part[0] in _PARTS else len(_PARTS)


def breakdown_table(prediction: Prediction) -> RenderableType:
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
