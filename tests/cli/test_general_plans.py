"""The verbs take any plan: grids of every schedule, notations, standard input, stored plans; what
is wrong is one line with a rule."""

from __future__ import annotations

import io
import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from shardwright.api.simulate_strategy_and_verify_stored import simulation, small_picture
from shardwright.cli.main import run
from shardwright.cli.terminal.output_and_progress import plain
from shardwright.errors import ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import (
    document_of,
    question_digest,
    simulation_document,
)
from shardwright.files.read_plan_and_simulation_files import parse_saved
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.report.screens.plan_screen import render_simulation
from shardwright.schedules.schedule_registry import SCHEDULES
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.simulator.step_breakdown import UNEVEN as UNEVEN_WAIT
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.pipeline_order import Table
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.units import GIB
from tests.cli.answers import PREDICTION, stage
from tests.golden.files import assert_golden

ON = ["llama-3.2-1b", "h100-sxm:8"]
JOB = ["--seq-len", "2048", "--global-batch", "16"]
REQUEST = Request(
    model=ON[0],
    cluster=ON[1],
    seq_len=2048,
    global_batch=16,
    runtime="megatron-core-0.12",
    precision="bf16",
)
MODEL = load_model(ON[0])
UNEVEN = """plan uneven devices 8
lane main samples 16 in 8
  stages embed+7 on 0
    all = b2 t2
    stream = b2 s2
  stages 9+head on 4
    all = t4
    stream = s4
order 1f1b(main)
"""
OPEN = UNEVEN.replace("1f1b(main)", "table-search(main)")


def simulate(strategy: str, *more: str) -> int:
    return run(["simulate", *ON, *JOB, "--strategy", strategy, *more])


def answer(strategy: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """The file of a simulation, its prediction as `simulate --json` prints it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "simulated.json"
        assert simulate(strategy, "--json", "-o", str(path), *more) == 0
        document = json.loads(path.read_text())
    assert document["prediction"] == json.loads(capsys.readouterr().out)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    vpp = " vpp2" if name in ("interleaved-1f1b", "looped-bfs") else ""
    document = answer(f"tp2 sp pp4{vpp} schedule={name}", capsys)
    assert f"schedule={name} " in document["strategy"]
    prediction = document["prediction"]
    assert sum(prediction["breakdown_s"].values()) == pytest.approx(prediction["step_time_s"])
    assert (document["plan"] is None) is (name in ("gpipe", "1f1b", "interleaved-1f1b"))
    assert sum(stage["devices"] for stage in prediction["stages"]) in (8, 4 * 2)


def test_a_grid_in_any_form_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in ("tp2 sp pp2 dp2 mbs1", "tp2 sp pp4 mbs1 schedule=zb-v"):
        plan = plan_of(parse_grid(line), model=MODEL, global_batch=16)
        path = tmp_path / "mine.plan"
        path.write_text(print_plan(plan, name="mine"))
        stored = tmp_path / "mine.json"
        wanted = answer(line, capsys)
        stored.write_text(to_text(wanted))
        monkeypatch.setattr(sys, "stdin", io.StringIO(path.read_text()))
        for given in (str(path), "-", str(stored), path.read_text()):
            found = answer(given, capsys)
            assert {k: v for k, v in found.items() if k not in ("name", "digest")} == {
                k: v for k, v in wanted.items() if k not in ("name", "digest")
            }


def test_a_stored_plan_is_checked_explained_compared_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, again = tmp_path / "a.json", tmp_path / "b.json"
    assert (
        simulate(UNEVEN, "-o", str(path), "--quiet")
        == simulate(UNEVEN, "-o", str(again), "--quiet")
        == 0
    )
    assert path.read_bytes() == again.read_bytes()
    capsys.readouterr()
    assert run(["check", str(path)]) == 0
    assert "The plan holds." in capsys.readouterr().out
    assert run(["check", str(path), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["holds"] is True
    assert checked["actions"] == 2 * 2 * 8
    assert run(["explain", str(path), "--json"]) == 0
    assert capsys.readouterr().out == path.read_text()
    assert run(["explain", str(path)]) == 0
    assert "Inputs and their sources" in capsys.readouterr().out
    assert (
        run(
            [
                "compare",
                *ON,
                *JOB,
                "--strategy",
                str(path),
                "--strategy",
                "tp8",
                "--strategy",
                "tp4 pp2 schedule=gems",
                "--json",
            ]
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert rows[0] == json.loads(path.read_text())
    assert run(["compare", *ON, *JOB, "--strategy", str(path), "--strategy", "tp8"]) == 0
    assert "uneven: 8 devices, 1 lane, 2 stages, order 1f1b" in " ".join(
        capsys.readouterr().out.split()
    )
    assert run(["draw", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"] == 8


def test_an_open_order_is_found_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    document = answer(OPEN, capsys)
    path.write_text(to_text(document))
    assert document["notes"] == [
        "order table-search(main): the best table found stands in its place"
    ]
    saved = parse_saved(path.read_text())
    assert saved.plan is not None
    assert isinstance(saved.plan.orders[0], Table)
    assert (
        document["prediction"]["step_time_s"]
        <= answer(UNEVEN, capsys)["prediction"]["step_time_s"] * 1.01
    )
    assert run(["check", str(path), "--quiet"]) == 0
    assert capsys.readouterr().out == "The plan holds.\n"
    assert answer(str(path), capsys)["prediction"] == document["prediction"]


def stored(strategy: str = UNEVEN) -> dict[str, Any]:
    document = json.loads(to_text(simulation_document(simulation(REQUEST, strategy=strategy))))
    assert isinstance(document, dict)
    return document


def test_check_refuses_what_does_not_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"

    def code(document: dict[str, Any], says: str) -> int:
        path.write_text(to_text(document))
        result = run(["check", str(path)])
        error = capsys.readouterr().err
        assert re.fullmatch(r"error: [^\n]+\n(hint: [^\n]+\n)?", error), error
        assert says in error
        return result

    def sealed(document: dict[str, Any]) -> dict[str, Any]:
        return document_of(parse_saved(to_text({**document, "digest": question_digest(document)})))

    good = stored()
    false = {**good["prediction"], "step_time_s": good["prediction"]["step_time_s"] * 1.1}
    assert code({**good, "prediction": false}, "prediction.step_time_s says") == 7
    assert code({**good, "request": {**good["request"], "global_batch": 32}}, "digest") == 7
    assert code({**good, "version": 4}, "version 4") == 7
    assert code({**good, "version": 2}, "version 2 is not 3") == 7
    assert code({**good, "plan": None}, "neither") == 7
    assert (
        code(sealed({**good, "request": {**good["request"], "global_batch": 32}}), "[lane.samples]")
        == 5
    )
    assert (
        code(
            sealed({**good, "request": {**good["request"], "cluster": "h100-sxm:4"}}),
            "[plan.devices]",
        )
        == 5
    )
    assert (
        code(
            sealed({**good, "request": {**good["request"], "reserve_bytes": 78 * 2**30}}),
            "more than its",
        )
        == 6
    )
    late = stored(OPEN)
    rows = late["plan"]["orders"][0]["rows"]
    rows[0][1].reverse()
    assert code(sealed(late), "[order.") == 5


BAD = {
    "order.ranks": "tp8 schedule=chimera",
    "grid.devices": "tp2 pp2 dp4 schedule=zb-h1",
    "grid.schedule": "pp8 schedule=zbh1",
    "grid.lanes": "pp2 dp4 mbs4 schedule=dualpipe",
    "order.microbatches": "pp8 mbs2 schedule=dualpipe",
    "order.chunks": "pp4 tp2 vpp4 schedule=zb-v",
    "plan.devices": UNEVEN.replace("devices 8", "devices 16"),
    "lane.samples": UNEVEN.replace("samples 16", "samples 32"),
    "stage.coverage": UNEVEN.replace("9+head", "8+head"),
    "stage.item": UNEVEN.replace("head", "tail"),
    "order.placement": UNEVEN.replace("1f1b(main)", "chimera(main)"),
    "lane.slices": UNEVEN.replace("in 8", "in 8 slices 1:99999"),
    "order.parameter": OPEN.replace("(main)", "(main) speed=3"),
}


@pytest.mark.parametrize("rule", BAD)
def test_what_is_wrong_is_one_line_with_its_rule(
    rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(BAD[rule]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"error: [^\n]+\[{re.escape(rule)}\]\n(hint: [^\n]+\n)?", captured.err)


def test_a_plan_for_another_model_or_runtime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(to_text(stored()))
    assert run(["simulate", "llama-3-8b", "h100-sxm:8", *JOB, "--strategy", str(path)]) == 5
    assert "[plan.model]" in capsys.readouterr().err
    assert run(["simulate", "llama-3-8b", "h100-sxm:8", *JOB, "--strategy", UNEVEN]) == 5
    assert "[stage.coverage]" in capsys.readouterr().err
    assert (
        simulate(
            UNEVEN.replace("lane", "zero all: all/all/all\nlane", 1), "--runtime", "megatron-2022"
        )
        == 5
    )
    assert "[runtime.zero]" in capsys.readouterr().err
    path.write_bytes(b"\xff\xfe")
    assert simulate(str(path)) == 7
    assert simulate(str(tmp_path / "none.plan")) == 7


def test_mutated_texts_raise_only_our_errors() -> None:
    generator = random.Random(5)
    plan = plan_of(parse_grid("tp2 sp pp4 zero1 schedule=dualpipe"), model=MODEL, global_batch=16)
    texts = [
        UNEVEN,
        OPEN.replace("in 8", "in 2"),
        print_plan(plan),
        "tp2 sp pp4 mbs1 schedule=zb-v",
        to_text(stored()),
    ]
    words = [
        "0",
        "1",
        "2",
        "-",
        "[",
        "]",
        "b",
        "t",
        "s",
        "/",
        "all",
        "\n",
        "*",
        "9999",
        "order",
        "lane",
        "{",
        "}",
        "+",
        "on",
        ":",
    ]
    refused = made = 0
    lines: list[str] = []
    for _ in range(200):
        text = generator.choice(texts)
        for _ in range(generator.randint(1, 3)):
            place = generator.randrange(len(text) + 1)
            text = (
                text[:place]
                + generator.choice([*words, ""])
                + text[place + generator.randint(0, 3) :]
            )
        try:
            found = simulation(REQUEST, strategy=text)
        except ShardwrightError as error:
            refused += 1
            lines.append(str(error))
        else:
            assert found.prediction.step_time_s > 0
            made += 1
    assert refused > 50
    assert made
    assert not any("\n" in line for line in lines)


def test_the_screen_of_a_general_plan() -> None:
    found = Simulation(
        request=REQUEST,
        name="uneven",
        grid=None,
        plan=parse_plan(UNEVEN),
        prediction=replace(
            PREDICTION,
            stages=(
                stage(0, layers="embed + 7 layer", activations=15 * GIB),
                stage(1, layers="9 layer + head"),
            ),
            breakdown_s=(("gemm", 1.25), ("tp", 0.3), ("bubble", 0.25), (UNEVEN_WAIT, 0.2)),
        ),
        classes=("0-3", "4-7"),
        notes=("order table-search(main): the best table found stands in its place",),
    )
    assert_golden(
        "plan-prediction.txt", plain(render_simulation(found, picture=small_picture(found)))
    )
    assert found.plan is not None
    assert small_picture(replace(found, plan=replace(found.plan, devices=17))) is None
    assert small_picture(replace(found, grid=parse_grid("tp8"))) is None


def test_a_plan_of_fewer_devices_than_the_cluster_has(capsys: pytest.CaptureFixture[str]) -> None:
    wide = ["simulate", ON[0], "h100-sxm:16", *JOB, "--strategy", UNEVEN, "--json"]
    assert run(wide) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tokens_per_s_per_device"] == pytest.approx(document["tokens_per_s"] / 8)


def test_mixed_devices_are_each_measured_by_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mixed.json"
    mixed = (
        "plan survey devices 3\nlane main samples 12 in 4\n  stages embed+16+head on 0\n    all ="
        " b[2:1]{t2, .+2}\norder 1f1b(main)\n"
    )
    words = [
        "simulate",
        ON[0],
        "a100-sxm-80gb:2+v100-sxm-32gb:1",
        "--seq-len",
        "2048",
        "--global-batch",
        "12",
        "--strategy",
        mixed,
    ]
    assert run([*words, "-o", str(path)]) == 0
    screen = capsys.readouterr().out
    assert json.loads(path.read_text())["request"]["precision"] == "fp16"
    rows = json.loads(path.read_text())["prediction"]["stages"]
    shares = [row["reserved_bytes"] / row["capacity_bytes"] for row in rows]
    assert rows[0]["capacity_bytes"] > 2 * rows[-1]["capacity_bytes"]
    assert all(f"{share:.0%}".replace("%", " %") in screen for share in shares)
    assert run(["check", str(path)]) == 0
    capsys.readouterr()
    assert run(["explain", str(path), "--json"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_check_reads_the_plan_of_an_answer_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    pins = [
        "--pin",
        "tp=2",
        "--pin",
        "pp=2",
        "--pin",
        "mbs=1",
        "--pin",
        "recompute=none",
        "--top",
        "0",
    ]
    assert run(["plan", *ON, *JOB, *pins, "-o", str(path), "--quiet"]) == 0
    assert run(["check", str(path), "--quiet"]) == 0
    document = json.loads(path.read_text())
    document["plan"]["lanes"][0]["microbatches"] *= 2
    path.write_text(to_text(document))
    capsys.readouterr()
    assert run(["check", str(path)]) == 7
    assert "what was asked is not what its digest is of" in capsys.readouterr().err
    path.write_text(to_text({**document, "digest": question_digest(document)}))
    assert run(["check", str(path)]) == 7
    assert "plan.lanes.0.microbatches says" in capsys.readouterr().err
