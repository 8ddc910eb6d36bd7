"""The kinds of device of a mixed cluster: what part of the step each is busy, and which one it
waits for.
"""

from __future__ import annotations

from shardwright.report.table_style import PlainTable, plain_table
from shardwright.simulator.prediction import Prediction
from shardwright.units import format_percent


def kinds_table(prediction: Prediction) -> PlainTable:
    """A row a kind: shares of the step in which its mean device computes, and waits while another
    kind computes or only links are busy.
    """
    causes = list(dict.fromkeys(what for one in prediction.kinds for what, _ in one.waits_s))
    order = [
        *(one.name for one in prediction.kinds if one.name in causes),
        *(what for what in causes if what not in _names(prediction)),
    ]
    step = prediction.step_time_s
    rows = [
        (
            f"{one.devices:,} x {one.name}",
            format_percent(one.busy_s / step),
            *(_share(dict(one.waits_s), what, step) for what in order),
        )
        for one in prediction.kinds
    ]
    header = ("devices", "busy", *(f"waits for {what}" for what in order))
    return plain_table(header, rows, right=range(1, len(header)))


def _names(prediction: Prediction) -> set[str]:
    return {one.name for one in prediction.kinds}


def _share(waits: dict[str, float], what: str, step: float) -> str:
    return format_percent(waits[what] / step) if what in waits else "-"
