"""What is said to run a plan is what exports it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.api.exports.export_plan import export_plan
from shardwright.api.exports.exportable_frameworks import frameworks_for_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem, stored_plan
from shardwright.cli.main import run
from shardwright.errors import StrategyError
from shardwright.files.read_plan_and_simulation_files import read_saved
from shardwright.frameworks.registry import TARGETS
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.plans import stored

MIXED = [
    "examples/tiny.json",
    "a100-sxm-40gb:2+v100-sxm-16gb:2",
    "--seq-len",
    "64",
    "--global-batch",
    "8",
]
LANES = """plan two devices 3
lane a samples 6 in 3
  stages embed+4+head on 0
    all = b2
lane b samples 2 in 2
  stages embed+4+head on 2
    all = .
order 1f1b(a)
order 1f1b(b)
"""


def exported(one: PlanOfProblem, target: str, *, allow_lossy: bool) -> bool:
    try:
        export_plan(one, target=target, allow_lossy=allow_lossy)
    except StrategyError:
        return False
    return True


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runners") / "mixed.json"
    assert run(["plan", *MIXED, "--quiet", "-o", str(path)]) == 0
    return path


@pytest.mark.parametrize(
    "text",
    ["dp8 zero0", "tp2 dp4 zero1", "pp2 dp4 zero2 recompute=full", "tp2 pp2 dp2 schedule=zb-h1"],
)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-20b"])
def test_a_framework_is_named_as_it_exports_the_plan(text: str, model: str) -> None:
    agrees(stored(parse_grid(text), model=model, runtime="megatron-core"))


def test_a_mixed_plan_too(mixed: Path) -> None:
    agrees(stored_plan(read_saved(mixed)))


def agrees(one: PlanOfProblem) -> None:
    found = frameworks_for_plan(one)
    assert set(found.exact) == {
        target for target in TARGETS if exported(one, target, allow_lossy=False)
    }
    assert {*found.exact, *dict(found.otherwise)} == {
        target for target in TARGETS if exported(one, target, allow_lossy=True)
    }
    assert {*found.exact, *dict(found.otherwise), *dict(found.refused)} == set(TARGETS)
    assert all(why for _, why in (*found.otherwise, *found.refused))


def test_mixed_answers_say_what_runs_them(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = frameworks_for_plan(stored_plan(read_saved(mixed)))
    named = found.exact[0] if found.exact else "Only shardwright run"
    for words in (["plan", *MIXED], ["explain", str(mixed)]):
        assert run(words) == 0
        _, _, told = capsys.readouterr().out.partition("What can run this plan\n")
        assert named in told
    assert run(["plan", *MIXED, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frameworks"]["exact"] == list(found.exact)


def test_a_plan_that_no_grid_says_is_run_by_us_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.plan"
    path.write_text(LANES)
    assert run(["simulate", *MIXED[:1], "h100-sxm:3", *MIXED[2:], "--strategy", str(path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "What can run this plan Only shardwright run. No framework" in shown
