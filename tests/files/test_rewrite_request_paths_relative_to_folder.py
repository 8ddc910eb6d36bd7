"""Files that a question names are found from where the plan file lies, whoever reads it from
where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.main import run
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.files.rewrite_request_paths_relative_to_folder import (
    request_relative_to,
    request_resolved_from,
)
from shardwright.search.search_request import Request
from tests.configs import LLAMA

CLUSTER = "nodes: [{accelerator: h100-sxm, count: 1}]\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "plans").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("model", ["models/config.json", "models"])
def test_a_plan_is_read_from_anywhere_and_moves_with_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    words = [
        model,
        "cluster.yaml",
        "--seq-len",
        "128",
        "--global-batch",
        "8",
        "-o",
        "plans/one.plan",
        "--quiet",
    ]
    assert run(["plan", *words]) == 0
    written = json.loads((folder / "plans" / "one.plan").read_text())["request"]
    assert (written["model"], written["cluster"]) == (f"../{model}", "../cluster.yaml")
    monkeypatch.chdir("/")
    assert run(["check", str(folder / "plans" / "one.plan"), "--quiet"]) == 0
    moved = folder.with_name(f"{folder.name} moved")
    folder.rename(moved)
    assert run(["check", str(moved / "plans" / "one.plan"), "--quiet"]) == 0
    assert Path(read_saved(moved / "plans" / "one.plan").request.cluster) == moved / "cluster.yaml"
    assert run(["draw", str(moved / "plans" / "one.plan"), "--json"]) == 0
    simulated = [
        "simulate",
        str(moved / model),
        str(moved / "cluster.yaml"),
        "--seq-len",
        "128",
        "--global-batch",
        "8",
        "--quiet",
    ]
    assert run([*simulated, "--strategy", str(moved / "plans" / "one.plan")]) == 0


def test_names_and_expressions_stay(folder: Path) -> None:
    asked = Request(model="llama-3.1-8b", cluster="h100-sxm:8", seq_len=128, global_batch=8)
    assert request_relative_to(asked, folder / "plans") is asked
    assert request_resolved_from(asked, folder) is asked
    (folder / "llama-3.1-8b").mkdir()
    assert request_relative_to(asked, folder / "plans") is asked


def test_what_is_not_there_stays_as_it_is_written(folder: Path) -> None:
    asked = Request(
        model="gone/config.json",
        cluster="h100-sxm:8",
        seq_len=128,
        global_batch=8,
        profile="gone.json",
    )
    assert request_resolved_from(asked, folder) is asked
    long = Request(model="m" * 5000, cluster="a\0b", seq_len=128, global_batch=8)
    assert request_resolved_from(long, folder) is long


def test_scale_factors_stay_behind_the_path(folder: Path) -> None:
    written = Request(
        model="llama-3.2-1b", cluster="cluster.yaml,memory=2x", seq_len=128, global_batch=8
    )
    stored = request_relative_to(written, folder / "plans")
    assert stored.cluster == "../cluster.yaml,memory=2x"
    assert request_resolved_from(stored, Path("plans")) == written
