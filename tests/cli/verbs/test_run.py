"""`shardwright run`: a plan file trained, what stops it, and what is refused before the first
step."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from shardwright.cli.main import run
from shardwright.execute.checkpoints.folder_lock import locked_folder
from tests.cli import ranks
from tests.tiers import chosen

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
DEADLINE_S = 300.0


def plan_file(
    folder: Path, name: str, strategy: str, *, devices: int = 1, layers: int = 2, hidden: int = 32
) -> Path:
    config, plan = folder / f"{name}.json", folder / f"{name}.plan"
    config.write_text(json.dumps({**CONFIG, "num_hidden_layers": layers, "hidden_size": hidden}))
    sizes = ["--seq-len", "16", "--global-batch", "4", "--quiet"]
    assert (
        run(
            [
                "simulate",
                str(config),
                f"h100-sxm:{devices}",
                *sizes,
                "--strategy",
                strategy,
                "-o",
                str(plan),
            ]
        )
        == 0
    )
    return plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    np.save(path / "tokens.npy", np.random.default_rng(0).integers(0, 64, 2000).astype(np.uint8))
    np.save(path / "few.npy", np.arange(64, dtype=np.uint8))
    np.save(path / "outside.npy", np.full(2000, 64, dtype=np.uint8))
    np.save(path / "float.npy", np.zeros(2000))
    plan_file(path, "one", "mbs2")
    plan_file(path, "two", "pp2 mbs2 schedule=1f1b", devices=2)
    plan_file(path, "halves", "mbs2 schedule=zb-h1")
    tree = path / "tree.txt"
    body = (
        "lane main samples 4 in 1\n  stages embed+2+head on 0\n    all = b[3:1]{., .+1}\norder"
        " 1f1b(main)\n"
    )
    tree.write_text(f"plan tree devices 2\n{body}")
    plan_file(path, "tree", str(tree), devices=2)
    plan_file(path, "other", "mbs2", hidden=64)
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    capsys.readouterr()
    return capsys


def words(folder: Path, plan: str, *, steps: int = 2, data: str = "tokens.npy") -> list[str]:
    sequence, equals, name = data.rpartition("=")
    file = f"{sequence}{equals}{folder / name}"
    return ["run", str(folder / plan), "--data", file, "--steps", str(steps), "--formats", "fp64"]


def started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "shardwright", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(process: subprocess.Popen[str], text: str) -> list[str]:
    """What the process says up to a line that has the text."""
    assert process.stderr is not None
    deadline, lines = time.monotonic() + DEADLINE_S, []
    while time.monotonic() < deadline:
        lines.append(process.stderr.readline())
        if text in lines[-1]:
            return lines
        assert lines[-1], "it ended before"
    raise AssertionError("it said nothing in time")


def test_one_device_trains_and_goes_on(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*words(folder, "one.plan"), "--checkpoints", str(tmp_path), "--json"]) == 0
    first = json.loads(said.readouterr().out)
    assert [s["step"] for s in first["steps"]] == [1, 2]
    assert first["step_time_s"]["measured"] > 0 < first["step_time_s"]["predicted"]
    assert first["memory"][0]["devices"] == [0]
    assert first["memory"][0]["predicted"] > 0
    assert run([*words(folder, "one.plan", steps=3), "--checkpoints", str(tmp_path)]) == 0
    shown = said.readouterr()
    assert "step 3/3" in shown.err
    assert "from a checkpoint of step 2" in shown.out
    assert run([*words(folder, "one.plan", steps=3), "--checkpoints", str(tmp_path)]) == 2
    assert "has all 3 steps" in said.readouterr().err


def losses(said: pytest.CaptureFixture[str], arguments: list[str]) -> list[float]:
    assert run([*arguments, "--json"]) == 0
    return [step["loss"] for step in json.loads(said.readouterr().out)["steps"]]


def test_an_interrupt_ends_ranks_with_a_checkpoint_of_what_one_process_trains(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved, written, both = (tmp_path / name for name in ("saved", "trace.json", "both.json"))
    process = started(
        [
            *words(folder, "two.plan", steps=10_000),
            "--checkpoints",
            str(saved),
            "--trace",
            str(written),
        ]
    )
    told = until(process, "step     2/")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    done = int(re.search(r"Stopped after (\d+) steps", out).group(1))  # type: ignore[union-attr]
    assert (saved / f"step-{done:08d}").is_dir()
    alone = losses(said, words(folder, "one.plan", steps=done + 2))
    assert [f"loss {loss:.4f}" in line for loss, line in zip(alone, told, strict=False)] == [
        True,
        True,
    ]
    assert losses(
        said, [*words(folder, "one.plan", steps=done + 2), "--checkpoints", str(saved)]
    ) == pytest.approx(alone[done:], abs=1e-6)
    assert (
        run(
            [
                "trace",
                str(folder / "two.plan"),
                "--compare",
                str(written),
                "-o",
                str(both),
                "--json",
            ]
        )
        == 0
    )
    assert [d["device"] for d in json.loads(said.readouterr().out)["devices"]] == [0, 1]
    names = {
        e["args"]["name"]
        for e in json.loads(both.read_text())["traceEvents"]
        if e["name"] == "process_name"
    }
    assert names == {
        f"{origin} · device {device}" for origin in ("simulated", "measured") for device in (0, 1)
    }


@pytest.mark.proof
def test_pytorchs_engine_gives_the_losses_of_one_process(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    processes = ranks.start(
        [*words(folder, "two.plan"), "--json", "--backend", "torch-native"],
        ranks=2,
        folder=tmp_path,
    )
    try:
        alone = losses(said, words(folder, "one.plan"))
        for process in processes:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    assert (tmp_path / "rank1").read_text() == ""
    report = json.loads((tmp_path / "rank0").read_text())
    assert [step["loss"] for step in report["steps"]] == pytest.approx(alone, abs=1e-4)
    assert [m["devices"] for m in report["memory"]] == [[0], [1]]


def test_a_profile_without_the_jobs_format_says_how_to_get_one(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile, plan = tmp_path / "here.json", str(folder / "one.plan")
    quick = ["--device", "cpu", "--tiny", "--ranks", "1", "--sustained", "0", "--repetitions", "1"]
    assert run(["calibrate", *quick, "-o", str(profile)]) == 0
    said.readouterr()
    asked = ["run", plan, "--data", str(folder / "tokens.npy"), "--steps", "1", "--on", "cpu"]
    assert run([*asked, "--profile", str(profile)]) == 4
    err = said.readouterr().err
    assert "nothing was measured in bf16" in err
    assert "--formats fp32, or shardwright calibrate --dtype bf16" in err
    assert run(asked) == 0
    assert "`shardwright calibrate --dtype bf16 -o here.json`" in " ".join(
        said.readouterr().out.split()
    )
    assert run([*asked, "--profile", str(profile), "--formats", "fp32"]) == 0


def test_pytorchs_engine_runs_a_plan_of_one_device_in_this_process(
    folder: Path, said: pytest.CaptureFixture[str]
) -> None:
    own, other = (
        losses(said, [*words(folder, "one.plan"), "--backend", backend])
        for backend in ("shardwright", "torch-native")
    )
    assert other == pytest.approx(own, rel=1e-3)


@pytest.mark.parametrize(
    ("plan", "options", "code", "message"),
    [
        ("one.plan", ["--backend", "torch-natve"], 2, "did you mean torch-native?"),
        ("tree.plan", ["--backend", "torch-native"], 5, "[native.grid]"),
        (
            "halves.plan",
            ["--backend", "torch-native", "--trace", "trace.json"],
            2,
            "has them in halves",
        ),
    ],
)
def test_a_backend_that_cannot_is_refused(
    folder: Path,
    said: pytest.CaptureFixture[str],
    plan: str,
    options: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if plan == "tree.plan":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
    assert run([*words(folder, plan), *options]) == code
    assert message in said.readouterr().err


def test_a_killed_rank_ends_the_run_with_an_error(folder: Path) -> None:
    process = started(words(folder, "two.plan", steps=10_000))
    until(process, "step     1/")
    victim = next(pid for pid in children(process.pid) if environment(pid).get("RANK") == "1")
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5
    assert "error: rank 1 was killed by SIGKILL [run.peer]" in err
    assert "hint: run again: it goes on from the last checkpoint" in err


def test_ranks_end_with_the_process_that_started_them(folder: Path, tmp_path: Path) -> None:
    process = started(
        [*words(folder, "two.plan", steps=10_000), "--checkpoints", str(tmp_path / "saved")]
    )
    until(process, "step     1/")
    ranks = [pid for pid in children(process.pid) if "RANK" in environment(pid)]
    assert len(ranks) == 2
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    deadline = time.monotonic() + DEADLINE_S
    while any(runs(pid) for pid in ranks):
        assert time.monotonic() < deadline, "ranks go on without the process that started them"
        time.sleep(0.05)


@pytest.mark.parametrize("plan", chosen(["one.plan", "two.plan"], ["one.plan"]))
def test_the_end_of_a_terminal_ends_a_run_with_a_checkpoint(
    folder: Path, tmp_path: Path, plan: str
) -> None:
    """Ranks of a process are told as by an interrupt."""
    kept = signal.signal(
        signal.SIGHUP, signal.SIG_DFL
    )  # under nohup it is ignored, and what is started inherits that
    try:
        process = started([*words(folder, plan, steps=10_000), "--checkpoints", str(tmp_path)])
    finally:
        signal.signal(signal.SIGHUP, kept)
    until(process, "step     1/")
    process.send_signal(signal.SIGHUP)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert len(list(tmp_path.glob("step-*"))) == 1, out


def test_a_folder_of_checkpoints_has_one_run_at_a_time(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with locked_folder(tmp_path):
        assert run([*words(folder, "one.plan"), "--checkpoints", str(tmp_path)]) == 2
        assert run([*words(folder, "two.plan"), "--checkpoints", str(tmp_path)]) == 2
    assert said.readouterr().err.count("another run writes its checkpoints there") == 2
    (tmp_path / "file").touch()
    assert run([*words(folder, "one.plan"), "--checkpoints", str(tmp_path / "file" / "in")]) == 9
    (tmp_path / "step-foo").mkdir()
    (tmp_path / "step-foo" / "manifest.json").touch()
    assert run([*words(folder, "one.plan"), "--checkpoints", str(tmp_path)]) == 0
    assert "going on from" not in said.readouterr().err
    assert run([*words(folder, "one.plan", steps=3), "--checkpoints", str(tmp_path)]) == 0
    assert f"going on from {tmp_path / 'step-00000002'}" in said.readouterr().err


def test_a_loss_that_is_no_number_ends_the_run(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        run(
            [
                *words(folder, "one.plan", steps=9),
                "--rate",
                "1e200",
                "--clip",
                "0",
                "--checkpoints",
                str(tmp_path),
                "--every",
                "1",
            ]
        )
        == 7
    )
    err = said.readouterr().err
    step = int(re.search(r"the loss of step (\d+) is nan: nothing of it is saved", err).group(1))  # type: ignore[union-attr]
    assert not list(tmp_path.glob(f"step-*{step}"))


def test_the_last_checkpoints_are_kept_and_every_step_has_a_line(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines, saved = tmp_path / "steps.jsonl", tmp_path / "saved"
    more = [
        "--checkpoints",
        str(saved),
        "--every",
        "1",
        "--keep",
        "2",
        "--metrics",
        str(lines),
        "--curve",
        "linear",
        "--warmup",
        "2",
    ]
    assert (
        run(
            [
                *words(folder, "one.plan", steps=4),
                *more,
                "--betas",
                "0.8,0.9",
                "--eps",
                "1e-6",
                "--json",
            ]
        )
        == 0
    )
    first = json.loads(said.readouterr().out)["steps"]
    assert sorted(path.name for path in saved.glob("*step*")) == ["step-00000003", "step-00000004"]
    assert run([*words(folder, "one.plan", steps=5), *more, "--quiet"]) == 0
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [one["step"] for one in told] == [1, 2, 3, 4, 5]
    assert [one["loss"] for one in told[:4]] == pytest.approx(
        [one["loss"] for one in first], rel=1e-8
    )
    assert [one["rate"] for one in told] == pytest.approx([0.5e-3, 1e-3, 0.5e-3, 0.0, 0.0])
    assert sorted(path.name for path in saved.glob("*step*")) == ["step-00000004", "step-00000005"]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--curve", "cosin"], 2, "unknown curve 'cosin'"),
        (["--betas", "0.9"], 2, "not two numbers from 0 to below 1"),
        (["--betas", "0.9,1.0"], 2, "not two numbers from 0 to below 1"),
        (
            ["--metrics", "{folder}/none/steps.jsonl"],
            9,
            "--metrics takes a file that can be written",
        ),
    ],
)
def test_words_of_the_optimizer_that_mean_nothing_are_refused(
    folder: Path, said: pytest.CaptureFixture[str], more: list[str], code: int, message: str
) -> None:
    assert run([*words(folder, "one.plan"), *(word.format(folder=folder) for word in more)]) == code
    assert message in said.readouterr().err


BROKEN = """import os
if os.environ.get("RANK") == "1":
    from shardwright.execute.launch import run_training_of_this_rank

    def broken(*asked, **more):
        raise KeyError("lost on the way")

    run_training_of_this_rank.run_rank = broken
"""


def test_what_nobody_expected_on_another_rank_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    )
    process = started(words(folder, "two.plan"))
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1, err
    assert "error: rank 1: unexpected KeyError: 'lost on the way'" in err


def runs(pid: int) -> bool:
    """The process is there, and not only as what its parent has not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def environment(pid: int) -> dict[str, str]:
    parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(p.decode().split("=", 1) for p in parts if b"=" in p)


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        ("few.npy", "few.npy has 64 tokens, a batch needs 65", "use more text, a smaller batch"),
        (
            "outside.npy",
            "token 64 at 0 is outside the vocabulary of 64",
            "use the model's own tokenizer",
        ),
        ("float.npy", "has 1 dims of float64", "one row of uint8"),
        ("missing.npy", "missing.npy: no such file", "tokenise"),
        ("source=tokens.npy", "no file has the sequence text", "one file for each of text"),
    ],
)
def test_unusable_tokens_are_refused(
    folder: Path, said: pytest.CaptureFixture[str], data: str, message: str, hint: str
) -> None:
    assert run(words(folder, "one.plan", data=data)) == 7
    err = said.readouterr().err
    assert message in err
    assert hint in err
    assert "step 1" not in err


def test_ranks_report_what_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([*words(folder, "two.plan"), "--backend", "torch-natve"]) == 2
    err = capfd.readouterr().err
    assert err.count("error:") == 1
    assert "did you mean torch-native?" in err


def test_another_world_is_refused(
    folder: Path, said: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    assert run(words(folder, "two.plan")) == 5
    err = said.readouterr().err
    assert "the plan has 2 devices, 3 ranks run [run.world]" in err
    assert "start 2 ranks" in err


def test_a_checkpoint_of_another_model_is_refused(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*words(folder, "one.plan"), "--checkpoints", str(tmp_path), "--quiet"]) == 0
    assert run([*words(folder, "other.plan", steps=3), "--checkpoints", str(tmp_path)]) == 7
    assert "is of another model" in said.readouterr().err


def test_the_job_s_formats_train_as_well(folder: Path, said: pytest.CaptureFixture[str]) -> None:
    losses = []
    for formats in ("fp64", "job"):
        assert (
            run(
                [
                    *words(folder, "one.plan", steps=4),
                    "--formats",
                    formats,
                    "--json",
                    "--rate",
                    "0.01",
                ]
            )
            == 0
        )
        losses.append([s["loss"] for s in json.loads(said.readouterr().out)["steps"]])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert run([*words(folder, "one.plan"), "--formats", "fp8"]) == 2
    assert "unknown formats 'fp8'" in said.readouterr().err


def test_a_device_that_is_not_there_is_refused(
    folder: Path, said: pytest.CaptureFixture[str]
) -> None:
    assert run([*words(folder, "one.plan"), "--on", "abacus"]) == 2
    assert "--on 'abacus' is no device that runs plans" in said.readouterr().err


def test_texts_become_tokens_that_train(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.npy"
    assert run(["tokenise", "-o", str(tokens), "--json"]) == 0
    made = json.loads(said.readouterr().out)
    assert made["tokens"] == len(np.load(tokens)) > 10_000
    assert run(words(folder, "one.plan", data=str(tokens))) == 7
    assert "258" in said.readouterr().err
    text = tmp_path / "a.txt"
    text.write_text("abc")
    assert run(["tokenise", str(text), "-o", str(tokens), "--quiet"]) == 0
    assert np.load(tokens).tolist() == [256, 97, 98, 99, 257]
    assert run(["tokenise", str(tmp_path / "none.txt"), "-o", str(tokens)]) == 7
    assert "none.txt: No such file" in said.readouterr().err
