"""Run all settings, print the table, write it to results.md beside this file."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.emulated.compare import Compared, comparable, disordered, mean_error, worst_error
from benchmarks.emulated.hosts import FAR, NEAR, Hosts, hosts_up, routing, run, shape, unusable
from benchmarks.emulated.ranks import Ranks, ranks_up
from benchmarks.emulated.reach import Priced, collectives, reach_of
from benchmarks.emulated.settings import HOSTS, SETTINGS, Reach, Setting
from shardwright.program.instances import TaskKind
from shardwright.simulator.plans import PlanResult, simulate_plan

WARM: Final = 1
CHANGING: Final = "1F1B"
BEFORE_MBIT, AFTER_MBIT = 1000.0, 100.0


def say(text: str) -> None:
    """Progress."""
    print(text, flush=True)


def durations(result: PlanResult, device: int) -> tuple[list[tuple[int, int, int, int, float]], float]:
    """Uncontended seconds of a device's actions by (lane, chunk, kind, slice), and of its optimizer's update."""
    costs, found, update = result.costs, [], 0.0
    for lane in costs.stages:
        for stage in lane:
            family = next((i for i, devices in enumerate(stage.families) if device in devices), None)
            if family is None:
                continue
            for part, step in enumerate(costs.families[stage.lane, stage.chunk, family].slices):
                for kind in (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B):
                    seconds = costs.seconds(stage.lane, stage.chunk, family, part, kind)
                    found.append((stage.lane, stage.chunk, int(kind), part, seconds))
            update += float(step.update_s[0])
    return found, update


def commands(setting: Setting, result: PlanResult, *, steps: int) -> list[dict[str, Any]]:
    """What every rank is told."""
    found = []
    for device in range(HOSTS):
        seconds, update = durations(result, device)
        found.append({"do": "steps", "setting": setting.name, "steps": steps, "seconds": seconds, "update": update})
    return found


def one_step(ranks: Ranks) -> float:
    """Seconds from the common beginning of a step to its last end."""
    answers = ranks.hear()
    return float(max(a["ended"] for a in answers) - answers[0]["began"])


def prepare_links(hosts: Hosts, setting: Setting) -> None:
    """Rates and routes of a setting."""
    shape(hosts, rates={FAR: setting.mbit, NEAR: (setting.near_mbit or setting.mbit[0],) * HOSTS})
    for host in range(HOSTS):
        run(routing(hosts, host, near=bool(setting.near_mbit)))


def compare(hosts: Hosts, ranks: Ranks, setting: Setting, reaches: Mapping[float, Reach], *, steps: int) -> Compared:
    """Predict a setting and measure it."""
    result = simulate_plan(setting.problem(reaches), setting.parsed)
    prepare_links(hosts, setting)
    ranks.tell(commands(setting, result, steps=steps + WARM))
    spent = [one_step(ranks) for _ in range(steps + WARM)][WARM:]
    return Compared(name=setting.name, cluster=setting.cluster, predicted_s=result.step_time_s, steps_s=tuple(spent))


def changing(hosts: Hosts, ranks: Ranks, reaches: Mapping[float, Reach], *, steps: int) -> tuple[Compared, Compared]:
    """One run whose links lose most of their rate half-way: predicted and measured before and after."""
    before = SETTINGS[CHANGING]
    result = simulate_plan(before.problem(reaches), before.parsed)
    later = {
        **reaches,
        BEFORE_MBIT: Reach(latency_s=reaches[AFTER_MBIT].latency_s, efficiency=reaches[AFTER_MBIT].efficiency * AFTER_MBIT / BEFORE_MBIT),
    }
    after = simulate_plan(before.problem(later), before.parsed)
    prepare_links(hosts, before)
    ranks.tell(commands(before, result, steps=2 * steps + WARM))
    spent = [one_step(ranks) for _ in range(steps + WARM)][WARM:]
    shape(hosts, rates={FAR: (AFTER_MBIT,) * HOSTS})
    rest = [one_step(ranks) for _ in range(steps)]
    return (
        Compared(name=f"{CHANGING}, {BEFORE_MBIT:g} Mb/s", cluster="changing", predicted_s=result.step_time_s, steps_s=tuple(spent)),
        # The step in which the rate changes, and the next, which is under way by then, belong to neither.
        Compared(name=f"{CHANGING}, then {AFTER_MBIT:g} Mb/s", cluster="changing", predicted_s=after.step_time_s, steps_s=tuple(rest[1:])),
    )


def line(row: Compared) -> str:
    """A row of the table."""
    low, high = min(row.steps_s), max(row.steps_s)
    return f"| {row.name} | {row.cluster} | {row.predicted_s * 1e3:.1f} | {row.measured_s * 1e3:.1f} | {low * 1e3:.1f} to {high * 1e3:.1f} | {row.error:+.1%} |"


def page(rows: list[Compared], change: tuple[Compared, Compared], reaches: Mapping[float, Reach], priced: list[Priced]) -> str:
    """The results as Markdown."""
    wrong = disordered(rows)
    out = [
        "# Emulated cluster: predicted and measured step times",
        "",
        f"{time.strftime('%Y-%m-%d')}, {platform.system()} {platform.release()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"Python {platform.python_version()}; medians of {len(rows[0].steps_s)} steps. Written by `python -m benchmarks.emulated`; see "
        "docs/emulated.md.",
        "",
        "| setting | cluster | predicted ms | measured ms | steps ms | error |",
        "|---|---|---|---|---|---|",
        *map(line, rows),
        "",
        f"Mean error {mean_error(rows):.1%}, worst {worst_error(rows):.1%}. {len(comparable(rows))} pairs of plans on one cluster differ by "
        f"more than 5 %; {len(wrong)} of them are predicted in the other order"
        + "".join(f"; {a.name} and {b.name}" for a, b in wrong)
        + ".",
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
        *(f"| {mbit:g} | {r.latency_s * 1e3:.2f} | {r.efficiency:.3f} |" for mbit, r in sorted(reaches.items())),
        "",
        "Collectives, as measured alone and as priced on those links:",
        "",
        "| Mb/s | collective | hosts | KiB | measured ms | priced ms |",
        "|---|---|---|---|---|---|",
        *(
            f"| {p.mbit:g} | {p.kind} | {p.devices} | {p.size // 1024} | {p.measured_s * 1e3:.1f} | {p.priced_s * 1e3:.1f} |"
            for p in priced
        ),
        "",
    ]
    return "\n".join(out)


def main() -> int:
    """Everything; 0, or 1 if bars are missed. Where no hosts can be made, 0 and the reason."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated")
    parser.add_argument("--steps", type=int, default=7, help="measured steps a setting")
    parser.add_argument("--only", default="", help="settings whose name contains this")
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).with_name("results.md"))
    chosen = parser.parse_args()
    reason = unusable()
    if reason:
        say(f"skipped: {reason}")
        return 0
    began = time.monotonic()
    settings = [s for s in SETTINGS.values() if chosen.only in s.name]
    with hosts_up(HOSTS) as hosts, ranks_up(hosts) as ranks:
        reaches: dict[float, Reach] = {}
        priced: list[Priced] = []
        for mbit in sorted({AFTER_MBIT, BEFORE_MBIT} | {m for s in settings for m in (*s.mbit, s.near_mbit) if m}):
            shape(hosts, rates={FAR: (mbit,) * HOSTS, NEAR: (mbit,) * HOSTS})
            reaches[mbit] = reach_of(ranks, mbit=mbit)
            priced += collectives(ranks, reaches[mbit], mbit=mbit)
            say(f"{mbit:g} Mb/s: latency {reaches[mbit].latency_s * 1e3:.2f} ms, {reaches[mbit].efficiency:.3f} of the rate")
        rows = []
        for setting in settings:
            rows.append(compare(hosts, ranks, setting, reaches, steps=chosen.steps))
            say(f"{line(rows[-1])} {time.monotonic() - began:.0f} s")
        change = changing(hosts, ranks, reaches, steps=chosen.steps)
    text = page(rows, change, reaches, priced)
    chosen.output.write_text(text)
    say(text)
    met = mean_error(rows) < 0.05 and worst_error(rows) < 0.10 and not disordered(rows)
    say(f"{time.monotonic() - began:.0f} s; bars {'met' if met else 'missed'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
