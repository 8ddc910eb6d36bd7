"""What was predicted and measured, as a page."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping

from benchmarks.emulated.compare import Compared, comparable, disordered, mean_error, worst_error
from benchmarks.emulated.reach import Priced
from benchmarks.emulated.settings import Reach


def line(row: Compared) -> str:
    """A row of the table."""
    low, high = min(row.steps_s) * 1e3, max(row.steps_s) * 1e3
    times = f"{row.predicted_s * 1e3:.1f} | {row.measured_s * 1e3:.1f} | {low:.1f} to {high:.1f}"
    return f"| {row.name} | {row.cluster} | {times} | {row.error:+.1%} |"


def page(
    rows: list[Compared],
    change: tuple[Compared, Compared],
    reaches: Mapping[float, Reach],
    priced: list[Priced],
) -> str:
    """The results as Markdown."""
    wrong = disordered(rows)
    out = [
        "# Emulated cluster: predicted and measured step times",
        "",
        (
            f"{time.strftime('%Y-%m-%d')}, {platform.system()} {platform.release()},"
            f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python"
            f" {platform.python_version()}; medians of {len(rows[0].steps_s)} steps. Written by"
            " `python -m benchmarks.emulated`; see docs/emulated.md."
        ),
        "",
        "| setting | cluster | predicted ms | measured ms | steps ms | error |",
        "|---|---|---|---|---|---|",
        *map(line, rows),
        "",
        (
            f"Mean error {mean_error(rows):.1%}, worst {worst_error(rows):.1%}."
            f" {len(comparable(rows))} pairs of plans on one cluster differ by more than 5 %;"
            " predicted in the other order:"
            f" {', '.join(f'{a.name} and {b.name}' for a, b in wrong) or 'none'}."
        ),
        "",
        "A link whose rate changes while the run goes on:",
        "",
        "| run | cluster | predicted ms | measured ms | steps ms | error |",
        "|---|---|---|---|---|---|",
        *map(line, change),
        "",
        "Steps in ms: " + " ".join(f"{s * 1e3:.0f}" for row in change for s in row.steps_s),
        "",
        "Links as calibrated by messages between two hosts:",
        "",
        "| Mb/s | latency ms | share of the rate |",
        "|---|---|---|",
        *(
            f"| {mbit:g} | {r.latency_s * 1e3:.2f} | {r.efficiency:.3f} |"
            for mbit, r in sorted(reaches.items())
        ),
        "",
        "Collectives, as measured alone and as priced on those links:",
        "",
        "| Mb/s | collective | hosts | KiB | measured ms | priced ms |",
        "|---|---|---|---|---|---|",
        *(
            f"| {p.mbit:g} | {p.kind} | {p.devices} | {p.size // 1024} | {p.measured_s * 1e3:.1f} |"
            f" {p.priced_s * 1e3:.1f} |"
            for p in priced
        ),
        "",
    ]
    return "\n".join(out)
