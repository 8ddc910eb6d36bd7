"""Run all settings, print the table, write it to results.md beside this file."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.emulated.compare import Compared, disordered, mean_error, worst_error
from benchmarks.emulated.hosts import FAR, NEAR, Hosts, hosts_up, routing, run, shape, unusable
from benchmarks.emulated.ranks import Ranks, ranks_up
from benchmarks.emulated.reach import Priced, collectives, reach_of
from benchmarks.emulated.results import line, page
from benchmarks.emulated.settings import HOSTS, SETTINGS, Reach, Setting
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.strategy.text.print_plan import print_plan

WARM: Final = 1
LATE_S: Final = 0.01
CHANGING: Final = "1F1B"
BEFORE_MBIT, AFTER_MBIT = 1000.0, 100.0


def say(text: str) -> None:
    """Progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def durations(
    result: SimulatedPlan, device: int
) -> tuple[list[tuple[int, int, int, int, float]], float]:
    """Uncontended seconds of a device's actions by (lane, chunk, kind, slice), and of its
    optimizer's update."""
    costs, found, update = result.costs, [], 0.0
    for lane in costs.stages:
        for stage in lane:
            family = next(
                (i for i, devices in enumerate(stage.families) if device in devices), None
            )
            if family is None:
                continue
            steps = costs.families[stage.lane, stage.chunk, family].slices
            for part in range(len(steps)):
                for kind in (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B):
                    seconds = costs.seconds(stage.lane, stage.chunk, family, part, kind)
                    found.append((stage.lane, stage.chunk, int(kind), part, seconds))
            update += float(steps[0].update_s[0])
    return found, update


def commands(setting: Setting, result: SimulatedPlan, *, steps: int) -> list[dict[str, Any]]:
    """What every rank is told."""
    found, plan = [], print_plan(result.program.plan, name="emulated")
    for device in range(HOSTS):
        seconds, update = durations(result, device)
        found.append(
            {
                "do": "steps",
                "setting": setting.name,
                "plan": plan,
                "steps": steps,
                "seconds": seconds,
                "update": update,
            }
        )
    return found


def warm_up(ranks: Ranks) -> None:
    """First steps, in which connections and threads are made."""
    for _ in range(WARM):
        ranks.hear()


def spent(ranks: Ranks, *, steps: int) -> tuple[float, ...]:
    """Seconds of steps from their common beginning to their last end; those that a rank began late
    are left out.

    Raises:
        RuntimeError: none is left.
    """
    answers = [ranks.hear() for _ in range(steps)]
    found = tuple(
        max(a["ended"] for a in own) - own[0]["began"]
        for own in answers
        if max(a["late"] for a in own) < LATE_S
    )
    if not found:
        raise RuntimeError(
            "in every step some rank began late: the machine is too busy to measure anything"
        )
    return found


def prepare_links(hosts: Hosts, setting: Setting) -> None:
    """Rates and routes of a setting."""
    shape(hosts, rates={FAR: setting.mbit, NEAR: (setting.near_mbit or setting.mbit[0],) * HOSTS})
    for host in range(HOSTS):
        run(routing(hosts, host, near=bool(setting.near_mbit)))


def compare(
    hosts: Hosts, ranks: Ranks, setting: Setting, reaches: Mapping[float, Reach], *, steps: int
) -> Compared:
    """Predict a setting and measure it."""
    result = setting.predicted(reaches)
    prepare_links(hosts, setting)
    ranks.tell(commands(setting, result, steps=steps + WARM))
    warm_up(ranks)
    return Compared(
        name=setting.name,
        cluster=setting.cluster,
        predicted_s=result.step_time_s,
        steps_s=spent(ranks, steps=steps),
    )


def changing(
    hosts: Hosts, ranks: Ranks, reaches: Mapping[float, Reach], *, steps: int
) -> tuple[Compared, Compared]:
    """One run whose links lose most of their rate half-way: predicted and measured before and
    after."""
    before = SETTINGS[CHANGING]
    result = before.predicted(reaches)
    after = replace(before, mbit=(AFTER_MBIT,) * HOSTS).predicted(reaches)
    prepare_links(hosts, before)
    ranks.tell(commands(before, result, steps=2 * steps + WARM + 1))
    warm_up(ranks)
    first = spent(ranks, steps=steps)
    shape(hosts, rates={FAR: (AFTER_MBIT,) * HOSTS})
    ranks.hear()  # the step in which the rate changes belongs to neither
    rest = spent(ranks, steps=steps)
    return (
        Compared(
            name=f"{CHANGING}, {BEFORE_MBIT:g} Mb/s",
            cluster="changing",
            predicted_s=result.step_time_s,
            steps_s=first,
        ),
        Compared(
            name=f"{CHANGING}, then {AFTER_MBIT:g} Mb/s",
            cluster="changing",
            predicted_s=after.step_time_s,
            steps_s=rest,
        ),
    )


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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that hosts are taken down
    settings = [s for s in SETTINGS.values() if chosen.only in s.name]
    if not settings or chosen.steps < 1:
        parser.error(
            f"no setting's name contains {chosen.only!r}"
            if chosen.steps > 0
            else "--steps is at least 1"
        )
    began = time.monotonic()
    with hosts_up(HOSTS) as hosts, ranks_up(hosts) as ranks:
        reaches: dict[float, Reach] = {}
        priced: list[Priced] = []
        for mbit in sorted(
            {AFTER_MBIT, BEFORE_MBIT} | {m for s in settings for m in (*s.mbit, s.near_mbit) if m}
        ):
            shape(hosts, rates={FAR: (mbit,) * HOSTS, NEAR: (mbit,) * HOSTS})
            reaches[mbit] = reach_of(ranks, mbit=mbit)
            priced += collectives(ranks, reaches[mbit], mbit=mbit)
            say(
                f"{mbit:g} Mb/s: latency {reaches[mbit].latency_s * 1e3:.2f} ms,"
                f" {reaches[mbit].efficiency:.3f} of the rate"
            )
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
