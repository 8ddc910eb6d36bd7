"""`calibrate` and `--profile` on the command line; nothing is measured here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardwright.calibrate import run_and_check_calibration as calibrate_request
from shardwright.calibrate.calibration_settings_and_check_rows import Calibration, CheckRow
from shardwright.cli.main import run
from shardwright.dtype import Dtype
from shardwright.files.canonical_json import to_text
from shardwright.files.plan_and_simulation_file_contents import document_of
from shardwright.files.profile_file import profile_document, read_profile
from shardwright.files.read_plan_and_simulation_files import parse_saved
from tests.calibrate.profiles import profile
from tests.calibrate.test_kineto_trace import DOCUMENT
from tests.calibrate.test_parse_nccl_tests_output import NEW

JOB = ["--seq-len", "4096", "--global-batch", "64"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def calibrate(request: Calibration, **options: Any) -> Any:
        calls.append(request)
        return profile()

    def check(*_: Any, **__: Any) -> Any:
        return (CheckRow("dense", 1.0, 0.9, 1.1, 0.8, 2**30, 2**31),)

    monkeypatch.setattr(calibrate_request, "calibrate", calibrate)
    monkeypatch.setattr(calibrate_request, "check_calibration", check)
    return calls


def test_everything_is_passed_on(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    words = [
        "--device",
        "cpu",
        "--ranks",
        "4",
        "--dtype",
        "fp32",
        "--dtype",
        "bf16",
        "--name",
        "mine",
        "--date",
        "2026-11-21",
        "--sustained",
        "9",
    ]
    assert (
        run(
            [
                "calibrate",
                *words,
                "--repetitions",
                "3",
                "--timeout",
                "5",
                "--sustained",
                "9",
                "--tiny",
                "-o",
                str(path),
                "--json",
            ]
        )
        == 0
    )
    assert asked[0] == Calibration(
        date="2026-11-21",
        device="cpu",
        accelerator="mine",
        ranks=4,
        dtypes=(Dtype.FP32, Dtype.BF16),
        repetitions=3,
        sustained_s=9.0,
        timeout_s=5.0,
        tiny=True,
    )
    assert path.read_text() == capsys.readouterr().out == to_text(profile_document(profile()))
    assert (
        run(
            [
                "calibrate",
                "--from-kineto",
                "t.json",
                "--from-nccl-tests",
                "a.txt",
                "--from-nccl-tests",
                "b.txt",
                "--quiet",
            ]
        )
        == 0
    )
    assert (asked[1].measure, asked[1].kineto, asked[1].nccl_tests) == (
        False,
        Path("t.json"),
        (Path("a.txt"), Path("b.txt")),
    )


def test_screen_shows_fits_and_the_check(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["calibrate", "--check"]) == 0
    out = capsys.readouterr().out
    for word in (
        "GEMM bf16",
        "500 TFLOP/s",
        "sustained",
        "all_reduce over 8",
        "10.0 %",
        "note: a note",
        "+25.0 %",
        "2 GiB",
    ):
        assert word in out
    assert run(["calibrate", "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["check"][0]["measured_s"] == 0.8


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--date", "today"], 2, "is not a day"),
        (["--dtype", "bf61"], 2, "did you mean bf16"),
        (["--no-measure"], 2, "nothing to measure"),
        (["--from-kineto", "t.json"], 2, "--name"),
        (["--from-kineto", "t.json", "--check"], 2, "--check needs"),
        (["--from-kineto", "none.json", "--name", "x"], 7, "cannot read trace"),
        (["--from-nccl-tests", "none.txt", "--name", "x"], 7, "cannot read none.txt"),
        (["-o", "no-such-folder/p.json"], 2, "no folder"),
    ],
)
def test_errors(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *words]) == code
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")


def test_without_torch_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from shardwright.cli.main import run;"
        " sys.exit(run(['calibrate', '--device', 'cpu']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (
        done.stderr == "error: measuring needs torch, which is not installed\nhint: pip install"
        " 'shardwright[run]'\n"
    )


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from shardwright.cli.main import run; run(['calibrate', '--help']);"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_imports_are_joined_into_a_profile_that_simulate_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="fits need scipy")
    output, trace, path = (
        tmp_path / "all_reduce_perf.txt",
        tmp_path / "trace.json",
        tmp_path / "p.json",
    )
    output.write_text(NEW)
    trace.write_text(json.dumps(DOCUMENT))
    words = [
        "--from-nccl-tests",
        str(output),
        "--from-kineto",
        str(trace),
        "--name",
        "a100-sxm-80gb",
        "--date",
        "2026-11-21",
    ]
    assert run(["calibrate", *words, "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "all_reduce over 4" in out
    assert "kernels of the trace" in out
    assert "all_gather over 4 not fitted" in out
    found = read_profile(path)
    assert [(c.collective, c.num_devices) for c in found.collectives] == [("all_reduce", 4)]
    assert found.kernels[0].kind == "nccl"
    simulate = [
        "simulate",
        "llama-2-7b",
        "a100-sxm-80gb:8",
        *JOB,
        "--strategy",
        "tp2 dp4 zero1 recompute=full",
        "--quiet",
    ]
    sources = []
    for more in ([], ["--profile", str(path)]):
        assert run([*simulate, *more, "-o", str(tmp_path / "s.json")]) == 0
        sources.append(
            {s["quantity"]: s for s in json.loads((tmp_path / "s.json").read_text())["sources"]}
        )
    assert sources[0]["scale-up link"] != sources[1]["scale-up link"]
    assert sources[1]["scale-up link"]["origin"]["evidence"] == "fitted"
    assert sources[1]["scale-up link"]["origin"]["reference"].startswith("profile of a100-sxm-80gb")


def test_a_plan_file_keeps_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = tmp_path / "p.json", tmp_path / "plan.json"
    path.write_text(to_text(profile_document(profile())))
    words = [
        "plan",
        "llama-2-7b",
        "h100-sxm:8",
        *JOB,
        "--top",
        "0",
        "--pin",
        "pp=1",
        "--profile",
        str(path),
        "-o",
        str(plan),
        "--quiet",
    ]
    assert run(words) == 0
    found = parse_saved(plan.read_text())
    assert found.request.profile == str(path)
    assert any(s.origin.reference == profile().reference for s in found.prediction.sources)
    assert run(["check", str(plan), "--quiet"]) == 0
    assert to_text(document_of(found)) == plan.read_text()
    path.write_text(path.read_text().replace('"sustained": 1.25', '"sustained": 2.5'))
    capsys.readouterr()
    assert run(["check", str(plan), "--quiet"]) == 7
    assert (
        run(["simulate", "llama-2-7b", "v100:8", *JOB, "--strategy", "tp8", "--profile", str(path)])
        == 4
    )
    assert "the profile is of h100-sxm" in capsys.readouterr().err


def test_a_device_without_units_for_the_precision(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.json"
    path.write_text(to_text(profile_document(profile("my-chip", dtype=Dtype.FP32))))
    words = [
        "simulate",
        "llama-2-7b",
        "my-chip:8",
        *JOB,
        "--strategy",
        "tp8",
        "--profile",
        str(path),
    ]
    assert run(words) == 4
    assert "--precision fp32" in capsys.readouterr().err
    assert run([*words, "--precision", "fp32"]) == 0
