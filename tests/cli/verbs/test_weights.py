"""`shardwright weights`: a checkpoint of a run as safetensors, which runs, and safetensors' own
reader, take again; and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardwright.cli.main import run
from tests.cli.verbs.test_run import CONFIG, plan_file

torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps in 16 bits, another in 64, and their checkpoints."""
    path = tmp_path_factory.mktemp("weights")
    np.save(path / "tokens.npy", np.random.default_rng(0).integers(0, 64, 2000).astype(np.uint8))
    plan_file(path, "one", "mbs2")
    for formats, name in (("fp64", "kept64"), ("job", "kept16")):
        assert (
            run([*words(path, formats=formats), "--checkpoints", str(path / name), "--quiet"]) == 0
        )
    return path


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    capsys.readouterr()
    return capsys


def words(folder: Path, *, steps: int = 2, formats: str = "fp64") -> list[str]:
    data = ["--data", str(folder / "tokens.npy"), "--steps", str(steps), "--formats", formats]
    return ["run", str(folder / "one.plan"), *data]


def written(folder: Path, kept: str, output: Path, *more: str) -> list[str]:
    return [
        "weights",
        str(folder / kept),
        "--config",
        str(folder / "one.json"),
        "-o",
        str(output),
        *more,
    ]


def losses(said: pytest.CaptureFixture[str], arguments: list[str]) -> list[float]:
    assert run([*arguments, "--json"]) == 0
    return [step["loss"] for step in json.loads(said.readouterr().out)["steps"]]


def test_a_run_that_begins_with_written_weights_goes_on_from_their_loss(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its first loss is that of the third step of the run whose weights they are, on the samples of
    that step."""
    assert run([*written(folder, "kept64", tmp_path / "out"), "--json"]) == 0
    found = json.loads(said.readouterr().out)
    assert (found["step"], found["dtype"]) == (2, "fp64")
    assert found["files"] == [str(tmp_path / "out" / "model.safetensors")]
    third = losses(said, words(folder, steps=3))[2]
    rest = tmp_path / "rest.npy"
    np.save(rest, np.load(folder / "tokens.npy")[2 * 4 * 16 :])
    again = [
        "run",
        str(folder / "one.plan"),
        "--data",
        str(rest),
        "--steps",
        "1",
        "--formats",
        "fp64",
        "--weights",
        str(tmp_path / "out"),
    ]
    assert losses(said, again) == pytest.approx([third], abs=1e-12)
    tensors = safetensors.load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.embed_tokens.weight"].shape == (64, 32)
    assert {t.dtype for t in tensors.values()} == {torch.float64}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {**config, "torch_dtype": None} == {**CONFIG, "torch_dtype": None}
    assert config["torch_dtype"] == "float64"
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_wider_files_of_a_run_in_16_bits_are_its_masters(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*written(folder, "kept16", tmp_path / "wide"), "--dtype", "fp32"]) == 0
    assert "weights of step 2 in fp32" in said.readouterr().out
    assert run(written(folder, "kept16", tmp_path / "narrow")) == 0
    wide, narrow = (
        safetensors.load_file(tmp_path / name / "model.safetensors") for name in ("wide", "narrow")
    )
    assert {t.dtype for t in narrow.values()} == {torch.bfloat16}
    assert all(torch.equal(wide[name].bfloat16(), narrow[name]) for name in narrow)
    assert any(not torch.equal(wide[name], narrow[name].float()) for name in narrow)


@pytest.mark.parametrize(
    ("kept", "more", "code", "message"),
    [
        ("kept64", ["--dtype", "bf61"], 2, "unknown dtype 'bf61'\nhint: did you mean bf16"),
        (
            "nowhere",
            [],
            7,
            "no checkpoint\nhint: give the folder that `shardwright run --checkpoints` was given",
        ),
        ("kept64", ["--weights", "nowhere"], 7, "nowhere"),
    ],
)
def test_one_line_says_what_is_wrong(
    folder: Path,
    said: pytest.CaptureFixture[str],
    tmp_path: Path,
    kept: str,
    more: list[str],
    code: int,
    message: str,
) -> None:
    assert run([*written(folder, kept, tmp_path / "out"), *more]) == code
    error = said.readouterr().err
    assert message in error
    assert [line.split(":")[0] for line in error.strip().splitlines()] == ["error", "hint"]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_over_and_no_other_model_is_taken(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    assert run(written(folder, "kept64", tmp_path / "out")) == 7
    assert "exists\nhint: give the name of a folder that does not" in said.readouterr().err
    (tmp_path / "other.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 3}))
    arguments = [
        "weights",
        str(folder / "kept64"),
        "--config",
        str(tmp_path / "other.json"),
        "-o",
        str(tmp_path / "new"),
    ]
    assert run(arguments) == 7
    assert not (tmp_path / "new").exists()


def test_a_single_checkpoint_is_taken_as_it_is(
    folder: Path, said: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*written(folder, "kept64/step-00000002", tmp_path / "out"), "--quiet"]) == 0
    assert said.readouterr().out.count("\n") <= 1
    assert (tmp_path / "out" / "model.safetensors").exists()
