"""Table of a mixed cluster's device kinds: busy share of the step, and what each kind waits for."""

from __future__ import annotations

from shardwright.report.terminal_table import PlainTable, plain_table
from shardwright.simulator.prediction import Prediction
from shardwright.units import format_percent


def kinds_table(prediction: Prediction) -> PlainTable:
    """Table by device kind: busy share of the step, and waits for other kinds or for links.

    A kind waits while another kind computes, or while only links are busy.
    """
    causes = list(dict.fromkeys(cause for kind in prediction.kinds for cause, _ in kind.waits_s))
    order = [
        *(kind.name for kind in prediction.kinds if kind.name in causes),
        *(cause for cause in causes if cause not in _names(prediction)),
    ]
    step = prediction.step_time_s
    rows = [
        (
            f"{kind.devices:,} x {kind.name}",
            format_percent(kind.busy_s / step),
            *(_share(dict(kind.waits_s), cause, step) for cause in order),
        )
        for kind in prediction.kinds
    ]
    header = ("devices", "busy", *(f"waits for {cause}" for cause in order))
    return plain_table(header, rows, right=range(1, len(header)))


def _names(prediction: Prediction) -> set[str]:
    """Set of the names of the cluster's device kinds."""
    return {kind.name for kind in prediction.kinds}


def _share(waits: dict[str, float], cause: str, step: float) -> str:
    """Percent of the step that a kind waits for `cause`, or a dash without such waits."""
    return format_percent(waits[cause] / step) if cause in waits else "-"
