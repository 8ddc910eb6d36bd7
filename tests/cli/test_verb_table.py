"""The command line: verbs call the library with what was asked, and every error is one line, a hint
and an exit code."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from shardwright.api import simulate_strategy_and_verify_stored as simulate_strategy
from shardwright.api import verify_plan_file_by_repetition as verify_stored_answers
from shardwright.api.searches import gain_of_unsearched_options as unsearched_options
from shardwright.api.searches import grid_search
from shardwright.cli.main import help_text, run
from shardwright.cli.parsing import parse_memory_and_cost, shared_options
from shardwright.cli.terminal.output_and_progress import progress
from shardwright.cli.verb_table import VERBS
from shardwright.errors import InfeasibleError, UsageError
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import StoredPlan, plan_document
from shardwright.files.read_plan_and_simulation_files import parse_saved
from shardwright.search.grid.verify_certificate import Recheck
from shardwright.search.search_request import Request
from shardwright.search.simulated_strategy import Simulation
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.units import GIB
from tests.cli.answers import ANSWER, PREDICTION, REQUEST, UNSEARCHED
from tests.golden.files import assert_golden

JOB = ["--seq-len", "4096", "--global-batch", "256"]
PLAN = ["plan", "llama-2-7b", "h100-sxm:64", *JOB]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of a library that answers at once."""
    calls: list[Any] = []

    def plan(request: Request, **options: Any) -> Any:
        calls.append((request, options))
        return ANSWER

    def simulation(request: Request, *, strategy: str) -> Simulation:
        calls.append((request, {"strategy": strategy}))
        filled = replace(request, runtime=REQUEST.runtime, precision=REQUEST.precision)
        return Simulation(
            request=filled, name="", grid=parse_grid(strategy), plan=None, prediction=PREDICTION
        )

    def check(stored: StoredPlan, **options: Any) -> Any:
        calls.append((stored, options))
        return Recheck(strategies=1000, sampled=10, contenders=3, drift=0.0)

    monkeypatch.setattr(grid_search, "plan", plan)
    monkeypatch.setattr(unsearched_options, "unsearched_of", lambda _: UNSEARCHED)
    monkeypatch.setattr(simulate_strategy, "simulation", simulation)
    monkeypatch.setattr(verify_stored_answers, "check_file", check)
    return calls


def test_plan_passes_everything_on(asked: list[Any]) -> None:
    words = [
        "--pin",
        "pp=4,8",
        "--exclude",
        "zero=3",
        "--top",
        "2",
        "--max-devices",
        "32",
        "--memory-reserve",
        "5%",
    ]
    assert (
        run(
            [
                *PLAN,
                *words,
                "--runtime",
                "torchtitan",
                "--space",
                "exhaustive",
                "--time-limit",
                "9",
                "--precision",
                "fp8",
                "--quiet",
            ]
        )
        == 0
    )
    request, options = asked[0]
    assert request == Request(
        model="llama-2-7b",
        cluster="h100-sxm:64",
        seq_len=4096,
        global_batch=256,
        runtime="torchtitan",
        precision="fp8",
        pins=(("pp", ("4", "8")),),
        excludes=(("zero", ("3",)),),
        max_devices=32,
        reserve_fraction=0.05,
        space="exhaustive",
        top=2,
    )
    assert options == {"time_limit_s": 9.0, "progress": None, "sensitive": False}


def test_degrees_are_pinned_as_grids_write_them(asked: list[Any]) -> None:
    for written in (
        ["--pin", "tp=8", "--pin", "sp=1", "--exclude", "mbs=1,2"],
        ["--pin", "tp8", "--pin", "sp", "--exclude", "mbs1,2"],
    ):
        assert run([*PLAN, *written, "--quiet"]) == 0
    (one, _), (other, _) = asked
    assert one == other
    assert (one.pins, one.excludes) == ((("tp", ("8",)), ("sp", ("1",))), (("mbs", ("1", "2")),))


def test_defaults_are_the_librarys(asked: list[Any]) -> None:
    assert run([*PLAN, "--quiet"]) == 0
    assert asked[0][0] == Request(
        model="llama-2-7b", cluster="h100-sxm:64", seq_len=4096, global_batch=256
    )


def test_plan_prints_a_screen_json_or_a_line(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(PLAN) == 0
    assert "Optimal: no other strategy" in capsys.readouterr().out
    assert run([*PLAN, "--json"]) == 0
    best = {"option": "loss", "value": "te", "step_time_s": 1.96, "gain": 0.02}
    left = {"fixed": [["loss", "plain"], ["grad_check", "on"]], "best": best}
    assert capsys.readouterr().out == to_text(
        {**plan_document(ANSWER), "search_time_s": ANSWER.search_time_s, "unsearched": left}
    )
    printed = to_text(
        {**plan_document(ANSWER), "search_time_s": ANSWER.search_time_s, "unsearched": left}
    )
    assert parse_saved(printed) == parse_saved(to_text(plan_document(ANSWER)))
    assert run([*PLAN, "--quiet"]) == 0
    assert (
        capsys.readouterr().out
        == "2 s\ttp2 sp pp4 dp8 mbs1 zero1 recompute=none schedule=1f1b order=tp-cp-ep-dp-pp\n"
    )


def test_plan_file_is_written_checked_and_explained(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert run([*PLAN, "-o", str(path), "--quiet"]) == 0
    assert path.read_text() == to_text(plan_document(ANSWER))
    assert run(["check", str(path)]) == 0
    stored, _ = asked[1]
    assert (stored.request, stored.certificate) == (REQUEST, ANSWER.certificate)
    capsys.readouterr()
    assert run(["explain", str(path), "--json"]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_simulate_and_compare(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "simulate",
                "m",
                "c",
                *JOB,
                "--strategy",
                "tp2 dp32",
                "--memory-reserve",
                "4",
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["step_time_s"] == 2.0
    assert asked[0] == (
        Request(model="m", cluster="c", seq_len=4096, global_batch=256, reserve_bytes=4 * GIB),
        {"strategy": "tp2 dp32"},
    )
    assert (
        run(
            [
                "compare",
                "llama-2-7b",
                "h100-sxm:64",
                *JOB,
                "--strategy",
                "tp2 dp32",
                "--strategy",
                "tp4 dp16",
                "--json",
            ]
        )
        == 0
    )
    assert [row["strategy"][:3] for row in json.loads(capsys.readouterr().out)["strategies"]] == [
        "tp2",
        "tp4",
    ]


@pytest.mark.parametrize(
    "kind", ["accelerators", "instances", "clusters", "models", "runtimes", "schedules"]
)
def test_catalog(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", kind, "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)[kind]]
    assert len(names) == len(set(names)) >= 3
    assert run(["catalog", kind, "--quiet"]) == 0
    assert capsys.readouterr().out.split() == names
    assert run(["catalog", kind]) == 0
    assert names[0] in capsys.readouterr().out


BAD = [
    [],
    ["plann"],
    ["--jsn"],
    ["plan"],
    ["plan", "llama-2-7b", "h100-sxm:8", "--seq-len", "4096"],
    [*PLAN, "--pinn", "tp=8"],
    [*PLAN, "--seq-len", "many"],
    [*PLAN, "--pin", "tp"],
    [*PLAN, "--pin", "tp=4", "--pin", "tp=8"],
    [*PLAN, "--memory-reserve", "half"],
    [*PLAN, "--memory-reserve", "100%"],
    [*PLAN, "-o", "no-such-folder/plan.json"],
    ["plan", "llama-2-7", "h100-sxm:8", *JOB],
    ["plan", "llama-2-7b", "h100-sxn:8", *JOB],
    [*PLAN, "--runtime", "megatorn"],
    [*PLAN, "--precision", "bf61"],
    [*PLAN, "--space", "huge"],
    ["simulate", "llama-2-7b", "h100-sxm:8", *JOB, "--strategy", "tq8"],
    ["simulate", "llama-2-7b", "h100-sxm:8", *JOB, "--strategy", "tp3"],
    ["draw", "tp8", "llama-2-7b", "-o", "picture.png"],
    ["draw", "tp8", "llama-2-7b", "-o", "picture"],
    ["explain", "no-such-plan.json"],
    ["check", "no-such-plan.json"],
    ["validate", "no-such-table.csv"],
    ["validate", "table.csv", "-o", "page.html"],
    ["catalog", "modls"],
    ["cluster"],
    ["cluster", "reed"],
    ["cluster", "read"],
    ["cluster", "read", "no-such-file.txt"],
    ["cluster", "show", "h100-sxm:8", "-o", "picture.png"],
    ["cluster", "show", "h100-sxn:8"],
]


def test_error_messages_are_golden(capsys: pytest.CaptureFixture[str]) -> None:
    lines = []
    for words in BAD[1:]:
        code = run(words)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert re.fullmatch(r"error: [^\n]+\n(hint: [^\n]+\n)?", captured.err)
        shown = " ".join(f'"{w}"' if " " in w else w for w in words)
        lines.append(f"$ shardwright {shown}\n{captured.err}exit code {code}\n")
    assert_golden("errors.txt", "\n".join(lines))


def test_nothing_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["plan", "llama-3.1-70b", "h100-sxm:1", *JOB, "--quiet"]) == InfeasibleError.exit_code
    )
    error = capsys.readouterr().err
    assert re.match(
        r"error: nothing fits: .* needs [\d.]+ GiB on stage .*, [\d.]+ GiB more than the [\d.]+ GiB"
        r" of a device that plans may fill\n"
        r"hint: what would fit: ",
        error,
    )


def test_an_interrupt_is_one_line_whatever_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(grid_search, "plan", plan)
    for more in ([], ["--debug"], ["--quiet"], ["--json"]):
        assert run([*PLAN, *more]) == 130
        said = capsys.readouterr()
        assert (said.out, said.err) == ("", "interrupted\n")


@pytest.mark.parametrize(
    ("raised", "code", "says"),
    [
        (
            ZeroDivisionError("a\nb"),
            1,
            (
                "error: unexpected ZeroDivisionError: a b\nhint: this is a bug; run again with"
                " --debug for the traceback\n"
            ),
        ),
        (
            InfeasibleError("nothing fits", hint="more devices"),
            6,
            "error: nothing fits\nhint: more devices\n",
        ),
        (UsageError("no"), 2, "error: no\n"),
    ],
)
def test_whatever_goes_wrong(
    raised: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def plan(*_: Any, **__: Any) -> Any:
        raise raised

    monkeypatch.setattr(grid_search, "plan", plan)
    assert run(PLAN) == code
    assert capsys.readouterr().err == says
    if says:
        assert run([*PLAN, "--debug"]) == code
        error = capsys.readouterr().err
        assert error.startswith("Traceback")
        assert error.endswith(says)


def test_help_loads_no_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == run(["--help"]) == 0
    assert capsys.readouterr().out == 2 * help_text()
    assert all(name in help_text() for name in VERBS)
    heavy = "numpy", "numba", "scipy", "pydantic", "yaml", "shardwright.api"
    code = (
        "import sys; from shardwright.cli.main import run; run(['--help']);"
        f" print(sorted(set({heavy}) & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("text", "value"), [("4", (4 * GIB, 0.0)), ("0.5 GiB", (GIB // 2, 0.0)), ("12.5%", (0, 0.125))]
)
def test_memory_reserve(text: str, value: tuple[int, float]) -> None:
    assert parse_memory_and_cost.read_reserve(text) == value


@pytest.mark.parametrize("text", ["", "-1", "nan", "inf", "100%", "-5%", "4 GB"])
def test_bad_memory_reserve(text: str) -> None:
    with pytest.raises(UsageError):
        parse_memory_and_cost.read_reserve(text)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0", 0.0), (" 12.5 % ", 0.125)])
def test_headroom(text: str, value: float) -> None:
    assert parse_memory_and_cost.read_headroom(text) == value


@pytest.mark.parametrize("text", ["", "-1", "nan", "100%", "5 GiB", "1e1", "٥"])
def test_bad_headroom(text: str) -> None:
    with pytest.raises(UsageError, match="is not a percentage"):
        parse_memory_and_cost.read_headroom(text)


def _clock(times: list[float]) -> Callable[[], float]:
    return lambda: times.pop(0)


def test_progress_shows_only_long_work() -> None:
    for times, shown in (([0.0, 0.2, 0.9], False), ([0.0, 0.2, 1.5], True)):
        file = StringIO()
        with progress(
            console=Console(file=file, force_terminal=True, width=80),
            clock=_clock(times),
        ) as report:
            assert report is not None
            report("simulate", 1, 4)
            report("simulate", 2, 4)
        assert ("simulate" in file.getvalue()) is shown
    with progress(shared_options.AnswerForm(quiet=True)) as report:
        assert report is None
