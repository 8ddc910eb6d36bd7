"""The emulated cluster without root: commands, fits, orders, and that waiting devices send what
computing ones do."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from benchmarks.emulated.__main__ import commands, durations, main
from benchmarks.emulated.compare import Compared, comparable, disordered, mean_error, worst_error
from benchmarks.emulated.hosts import FAR, MTU, NEAR, Hosts, making, routing, shaping
from benchmarks.emulated.reach import fit_reach
from benchmarks.emulated.settings import HOSTS, SETTINGS, Reach
from benchmarks.emulated.waits import Waiting
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore, seeded
from shardwright.execute.interpreter.run_device_actions_of_step import WalkerFactory, device_task
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.orders.plan_action_rows import action_rows
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from shardwright.simulator.simulate_plan import SimulatedPlan
from shardwright.strategy.text.parse_plan import parse_plan
from tests.execute.small_plans import PLANS, Small

HERE = Hosts(prefix="t", count=HOSTS)
REACHES = {mbit: Reach(latency_s=1e-3, efficiency=0.95) for mbit in (200.0, 1000.0)}


def predicted(name: str) -> SimulatedPlan:
    return SETTINGS[name].predicted(REACHES)


def test_every_host_gets_two_cards_and_a_route_to_every_other() -> None:
    made = list(making(HERE))
    cards = [c for c in made if "veth" in c]
    assert len(cards) == 2 * HOSTS
    assert all(c.count(str(MTU)) == 2 for c in cards)
    routes = [c for c in made if "route" in c]
    assert len(routes) == HOSTS * (HOSTS - 1)
    assert all(FAR in c and "cubic" in c for c in routes)


def test_hosts_of_a_node_meet_at_its_switch() -> None:
    cards = {c[c.index("dev") - 1]: c[c.index("dev") + 1] for c in routing(HERE, 2, near=True)}
    assert cards == {
        f"{HERE.address(0)}/32": FAR,
        f"{HERE.address(1)}/32": FAR,
        f"{HERE.address(3)}/32": NEAR,
    }


@pytest.mark.parametrize("mbit", [10.0, 200.0, 1000.0])
def test_a_rate_holds_both_ways_and_a_burst_holds_packets(mbit: float) -> None:
    out, into = shaping(HERE, 1, card=FAR, mbit=mbit)
    assert HERE.name(1) in out
    assert HERE.switch in into
    for command in (out, into):
        assert command[command.index("rate") + 1] == f"{round(mbit * 1e6)}bit"
        assert int(command[command.index("burst") + 1]) > 2 * MTU


def test_a_straight_line_is_found_again() -> None:
    reach = fit_reach({n: 2e-3 + n / (0.9 * 25e6) for n in (64, 10_000, 10**6)}, mbit=200.0)
    assert reach.latency_s == pytest.approx(2e-3)
    assert reach.efficiency == pytest.approx(0.9)


def row(name: str, predicted_s: float, measured_s: float, cluster: str = "one") -> Compared:
    return Compared(
        name=name,
        cluster=cluster,
        predicted_s=predicted_s,
        steps_s=(measured_s, measured_s / 2, measured_s * 9),
    )


def test_orders_are_judged_within_a_cluster_where_times_differ() -> None:
    close, far, wrong, other = (
        row("a", 1.0, 1.0),
        row("b", 0.9, 1.04),
        row("c", 0.95, 1.2),
        row("d", 0.1, 9.0, "two"),
    )
    assert [(a.name, b.name) for a, b in comparable([close, far, wrong, other])] == [
        ("a", "c"),
        ("b", "c"),
    ]
    assert [(a.name, b.name) for a, b in disordered([close, far, wrong, other])] == [("a", "c")]
    assert mean_error([close, wrong]) == pytest.approx((0.0 + (1 - 0.95 / 1.2)) / 2)
    assert worst_error([close, wrong]) == pytest.approx(1 - 0.95 / 1.2)


def test_settings_are_what_the_bar_asks_for() -> None:
    assert len(SETTINGS) >= 8
    schedules = {
        o.schedule for s in SETTINGS.values() for o in s.parsed.orders if hasattr(o, "schedule")
    }
    assert {"1f1b", "interleaved-1f1b", "zb-h1", "zb-v"} <= schedules
    assert {m for s in SETTINGS.values() for m in s.mbit} >= {200.0, 1000.0}
    assert any(len(set(s.speeds)) > 1 for s in SETTINGS.values())


@pytest.mark.parametrize("name", SETTINGS)
def test_a_device_never_works_longer_than_the_step(name: str) -> None:
    result = predicted(name)
    rows, busy = action_rows(result.program.plan), []
    for number, devices in enumerate(rows.devices):
        found, update = durations(result, devices[0])
        seconds = {(lane, chunk, kind): s for lane, chunk, kind, _, s in found}
        span = range(int(rows.row_start[number]), int(rows.row_start[number + 1]))
        busy.append(
            sum(seconds[int(rows.lane[a]), int(rows.chunk[a]), int(rows.kind[a])] for a in span)
            + update
        )
    assert 0.5 * result.step_time_s < max(busy) < result.step_time_s


def test_an_order_that_is_found_is_faster_and_reaches_the_ranks_whole() -> None:
    found = predicted("order found for uneven stages")
    assert found.step_time_s < predicted("1F1B, uneven stages").step_time_s
    told = commands(SETTINGS["order found for uneven stages"], found, steps=1)
    assert [parse_plan(one["plan"]) for one in told] == [found.program.plan] * HOSTS


def test_stages_by_speed_are_faster_than_even_ones() -> None:
    assert (
        predicted("stages by speed, mixed speeds").step_time_s
        < 0.9 * predicted("even stages, mixed speeds").step_time_s
    )


def test_slower_links_and_gradients_across_nodes_cost_time() -> None:
    assert (
        predicted("DP2 within nodes").step_time_s < 0.95 * predicted("DP2 across nodes").step_time_s
    )


def sent(small: Small, walking: WalkerFactory | None) -> Counter[tuple[object, ...]]:
    known, trace = small.known(), CommunicationRecord()
    stores = {
        d: ParameterStore(
            model=small.model, source=seeded(small.model, seed=0), settings=Settings()
        )
        for d in known.devices
    }
    run_in_process(
        {
            d: device_task(d, known.work, batch=small.batches(0), store=s, make_walker=walking)
            for d, s in stores.items()
        },
        trace=trace,
    )
    return Counter(
        (r.device, r.kind, r.group, r.elements, r.element, repr(r.key)) for r in trace.records
    )


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "order by hand", "found order"])
def test_waiting_devices_send_what_computing_ones_send(name: str) -> None:
    small = PLANS[name]
    kinds = (TaskKind.F, TaskKind.I, TaskKind.W, TaskKind.B)
    seconds = {(0, chunk, int(kind), 0): 0.0 for chunk in range(8) for kind in kinds}
    waiting = sent(small, partial(Waiting, seconds=seconds))
    assert waiting
    assert waiting == sent(small, None)


def test_without_root_it_says_why_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["emulated"])
    monkeypatch.setattr("shutil.which", lambda tool: tool)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main() == 0
    assert capsys.readouterr().out == "skipped: namespaces and shaped links need root\n"
