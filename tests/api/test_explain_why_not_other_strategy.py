"""A plan against other strategies: what is said of them is what simulating and searching them
gives."""

import json
from collections import Counter
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import shardwright
from shardwright.api.explain_why_not_other_strategy import why
from shardwright.api.request_to_problem import facts_of, problem_of, space_of
from shardwright.cli.main import run
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import plan_document
from shardwright.hardware.scale_network_limit_devices_reserve_memory import smallest_memory_bytes
from shardwright.search.grid.bounds.members_with_time_and_memory import bound_space
from shardwright.search.grid.fate_of_grid import Fate
from shardwright.search.grid.members.enumerate_members import member_grid
from shardwright.search.plan_against_strategy_result import fullest, missing_bytes
from shardwright.search.search_answer import Answer
from shardwright.search.search_request import Request
from shardwright.strategy.grid.grid_rule_violations import violations
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.parallelism_grid import Recompute
from shardwright.strategy.text.grid_notation import parse_grid, print_grid
from shardwright.strategy.text.print_plan import print_plan
from shardwright.units import GIB
from tests.golden.files import assert_golden

PINS = (
    ("tp", ("2", "4")),
    ("cp", ("1",)),
    ("vpp", ("1",)),
    ("mbs", ("1", "2")),
    ("zero", ("1",)),
    ("recompute_layers", ("0",)),
)
REQUEST = Request(
    model="llama-2-7b", cluster="h100-sxm:8", seq_len=4096, global_batch=32, pins=PINS, top=1
)
FEW = (
    *(
        ("tp", ("1", "2")),
        ("cp", ("1",)),
        ("pp", ("2", "4")),
        ("vpp", ("16",)),
        ("mbs", ("1", "2")),
        ("zero", ("0", "1")),
        ("offload", ("0",)),
    ),
    *(
        ("order", ("tp-cp-ep-dp-pp",)),
        ("sp", ("0", "1")),
        ("recompute", ("none", "full")),
        ("recompute_layers", ("0",)),
    ),
    *(("recompute_norms", ("off",)), ("tp_overlap", ("userbuffers",))),
)
EVERY_FATE = replace(
    REQUEST,
    seq_len=2048,
    global_batch=24,
    pins=FEW,
    reserve_bytes=20 * GIB,
    top=2,
    headroom=0.0,
    use_all=True,
)
"""A space of 22 plans with some of every fate."""


@pytest.fixture(scope="module")
def answer() -> Answer:
    return shardwright.plan(REQUEST)


@pytest.fixture(scope="module")
def path(answer: Answer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("why") / "plan.json"
    found.write_text(to_text(plan_document(answer)))
    return found


def test_what_changes_is_the_difference_of_two_simulations(answer: Answer) -> None:
    found = why(answer, "tp4 recompute=full")
    assert found.other is not None
    assert found.other.grid == parse_grid(found.strategy)
    assert (found.other.grid.tp, found.other.grid.recompute, found.other.grid.microbatch) == (
        4,
        Recompute.FULL,
        answer.grid.microbatch,
    )
    alone = shardwright.simulate(REQUEST, strategy=found.strategy)
    assert found.other.prediction == alone
    assert sum(one for _, one, _ in found.seconds) == pytest.approx(answer.prediction.step_time_s)
    assert sum(other for _, _, other in found.seconds) == pytest.approx(alone.step_time_s)
    assert (
        sum(one for _, one, _ in found.memory)
        == fullest(answer.prediction).reserved
        == answer.prediction.reserved_bytes
    )
    assert sum(other for _, _, other in found.memory) == alone.reserved_bytes


def test_all_broken_rules_are_said(answer: Answer) -> None:
    found = why(answer, "tp3 mbs64")
    grid = parse_grid(found.strategy)
    assert found.broken == violations(grid, facts=facts_of(problem_of(REQUEST)))
    assert {b.rule for b in found.broken} >= {"grid.batch", "grid.heads", "grid.ffn"}
    assert (found.other, found.placed.fate) == (None, Fate.ILLEGAL)


def test_what_is_too_large_is_said_with_what_fits(answer: Answer) -> None:
    found = why(answer, "tp1 pp1 zero0 recompute=none")
    assert found.other is not None
    prediction = found.other.prediction
    assert not prediction.fits
    assert found.placed.fate is Fate.OUTSIDE
    assert found.placed.reason == "tp 1 is not among 2, 4, zero 0 is not among 1"
    assert missing_bytes(prediction) == (
        (0, prediction.reserved_bytes - prediction.capacity_bytes),
    )
    assert found.other.fitting
    for change in found.other.fitting:
        again = why(found.other, change)
        assert again.other is not None
        assert again.other.prediction.fits
        assert again.placed.fate is Fate.UNSEARCHED


def test_every_member_is_where_the_certificate_counted_it() -> None:
    answer, problem = shardwright.plan(EVERY_FATE), problem_of(EVERY_FATE)
    facts, capacity = facts_of(problem), smallest_memory_bytes(problem.cluster)
    bounded = bound_space(problem, space_of(EVERY_FATE, problem, facts), facts, capacity=capacity)
    fates: Counter[Fate] = Counter()
    last = max(a.step_time_s for a in answer.alternatives)
    for place in range(bounded.members.num_members):
        grid = member_grid(bounded.members, place)
        found = why(answer, print_grid(grid))
        assert found.other is not None
        step, fate = found.other.prediction.step_time_s, found.placed.fate
        fates[fate] += 1
        assert found.other.prediction.fits is (fate is not Fate.INFEASIBLE)
        assert found.placed.bound_s <= step or fate is Fate.INFEASIBLE
        assert found.placed.bound_s >= last or fate is not Fate.BOUNDED
        if fate is Fate.SIMULATED:
            stopped = replace(answer, certificate=replace(answer.certificate, optimal=False))
            assert why(stopped, print_grid(grid)).placed.fate is Fate.UNSEARCHED
    certificate = answer.certificate
    assert (fates[Fate.BEST], fates[Fate.RANKED]) == (1, 2)
    assert fates[Fate.SIMULATED] + 3 == certificate.simulated
    assert fates[Fate.BOUNDED] == certificate.bounded_b0 + certificate.bounded_b1
    assert fates[Fate.INFEASIBLE] == certificate.infeasible
    assert fates[Fate.OUTSIDE] == 0
    assert set(fates) == set(Fate) - {Fate.ILLEGAL, Fate.OUTSIDE, Fate.UNSEARCHED}


def test_members_that_leave_devices_idle_are_placed_too() -> None:
    answer = shardwright.plan(replace(REQUEST, global_batch=30, top=0))
    for change, fate in (
        ("tp1 pp1 dp6 mbs1", Fate.OUTSIDE),
        ("tp2 pp1 dp3 mbs1 recompute=full", Fate.BOUNDED),
        ("tp2 pp1 dp2 mbs1", Fate.OUTSIDE),
    ):
        found = why(answer, change)
        assert found.other is not None
        assert found.other.prediction.idle_devices > 0
        assert found.placed.fate is fate, found.placed
        assert found.placed.bound_s <= found.other.prediction.step_time_s
    assert found.placed.reason == "4 devices are not whole nodes of 1, 5 to 8 devices"


def test_screens(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for strategy in ("tp2 recompute=full", "tp1 pp1 zero0", "tp3 mbs64"):
        assert run(["why", str(path), strategy]) == 0
        shown.append(f"$ shardwright why plan.json {strategy!r}\n{capsys.readouterr().out}")
    assert_golden("why.txt", "\n".join(shown))


def test_general_plans_and_whole_strategies(answer: Answer) -> None:
    model = problem_of(REQUEST).model
    whole = "tp4 sp pp2 dp1 mbs1 zero0 recompute=none schedule=1f1b order=tp-cp-ep-dp-pp"
    text = print_plan(plan_of(parse_grid(whole), model=model, global_batch=32), name="two")
    assert why(answer, text) == replace(why(answer, whole), other=why(answer, text).other)
    found = why(answer, text.replace("stream", "embed,stream"))
    assert found.other is not None
    assert (found.strategy, found.placed.fate) == ("two", Fate.UNSEARCHED)
    assert found.other.prediction == shardwright.simulate(
        REQUEST, strategy=text.replace("stream", "embed,stream")
    )
    broken = why(answer, text.replace("t4", "t5")).broken
    assert {b.rule for b in broken} == {"plan.devices"}


def test_plans_are_read_from_standard_input(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = json.loads(path.read_text()) | {"search_time_s": 0.5}
    monkeypatch.setattr("sys.stdin", StringIO(json.dumps(printed)))
    assert run(["why", "-", "recompute=full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["legal"], found["search"]["fate"]) == (True, "bounded")
    assert sum(found["changes_s"].values()) == pytest.approx(
        found["prediction"]["step_time_s"] - found["plan"]["prediction"]["step_time_s"]
    )
    assert run(["why", str(path), "zero3", "--quiet"]) == 0
    step, strategy, change, placed = capsys.readouterr().out.split("\t")
    assert step.endswith(" s")
    assert "zero3" in strategy
    assert change.endswith(" more time")
    assert placed == "not in the space: zero 3 is not among 1\n"
    assert run(["why", str(path), "fsdp, no recompute"]) == 0
    assert (
        'Read      "fsdp" as tp1 cp1 pp1 zero3; "no recompute" as recompute=none'
        in capsys.readouterr().out
    )
    assert run(["why", str(path), "fsdp", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["read_as"] == '"fsdp" as tp1 cp1 pp1 zero3'
    assert said["strategy"].startswith("dp8 ")
    assert run(["why", str(path), "fdsp"]) == 5
    assert "did you mean fsdp" in capsys.readouterr().err
    assert run(["why", str(path), "zero5"]) == 5
    assert "zero5 is not a ZeRO stage" in capsys.readouterr().err
