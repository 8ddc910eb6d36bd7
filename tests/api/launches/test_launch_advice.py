"""Advice on a launch: what it says is simulated, and nothing that it could have said is better."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from shardwright.api.launches.launch_advice import advise, read_request
from shardwright.api.request_to_problem import (
    capacity_of,
    facts_of,
    load_cluster,
    problem_of,
    space_of,
)
from shardwright.api.searches.grid_search import plan
from shardwright.cli.main import run
from shardwright.errors import UsageError
from shardwright.files.canonical_json import to_text
from shardwright.frameworks.launch.training_launch_and_reader_types import Launch
from shardwright.frameworks.read_launch import read_launch
from shardwright.model.catalog.load_model_by_name import load_model
from shardwright.program.strategy_rule_violations import grid_violations
from shardwright.report.screens.launch_advice_screen import advice_document
from shardwright.search.advice_answer import Advice
from shardwright.search.grid.gain_of_unsearched_options import LEAST_GAIN
from shardwright.search.grid.neighbour_strategies import (
    one_change,
    option_changes,
    simulated_change,
)
from shardwright.search.search_request import Request
from shardwright.simulator.simulate_plan import simulate_grid
from tests.frameworks.megatron.test_read import LLAMA, SIZES, SPLIT
from tests.tiers import cases

CLUSTER = "h100-sxm:16"
SLOW = (
    f"{LLAMA} {SPLIT} {SIZES} --recompute-granularity full --recompute-method uniform"
    " --recompute-num-layers 1 --lr 1e-4"
)


@cache
def advised(arguments: str) -> tuple[Launch, Request, Advice]:
    request = Request(model="llama-3.1-8b", cluster=CLUSTER, seq_len=0, global_batch=0)
    launch, request = read_request([arguments], request, cluster=load_cluster(CLUSTER))
    return launch, request, advise(launch, request)


def test_no_change_of_one_decision_gains_more_than_those_that_are_told() -> None:
    """Each neighbour simulated again, on its own."""
    launch, request, advice = advised(SLOW)
    problem = problem_of(request)
    facts = facts_of(problem)
    capacity = capacity_of(request, problem)
    found = []
    for _, grid in one_change(problem, space_of(request, problem, facts), facts, launch.grid):
        if not list(grid_violations(problem, grid)):
            done = simulate_grid(problem, grid)
            if max(stage.reserved for stage in done.memory) <= capacity:
                found.append(done.step_time_s)
    assert advice.now is not None
    assert advice.changes[0].step_time_s == min(found)
    assert [c.step_time_s for c in advice.changes] == sorted(c.step_time_s for c in advice.changes)
    assert all(
        c.gain == 1 - c.step_time_s / advice.now.prediction.step_time_s > 0 for c in advice.changes
    )


def test_the_best_is_that_of_the_search() -> None:
    launch, request, advice = advised(SLOW)
    assert advice.best is not None
    assert advice.everything is not None
    best = plan(request)
    assert (advice.best.grid, advice.best.certificate.optimal) == (best.grid, True)
    assert (
        advice.everything.step_time_s
        <= best.prediction.step_time_s
        <= advice.changes[-1].step_time_s
    )
    assert launch.runtime == "megatron-core-0.12"


@pytest.mark.parametrize(
    "more",
    cases(
        [
            "",
            "--cross-entropy-fusion-impl te --cross-entropy-loss-fusion",
            "--no-check-for-nan-in-loss-and-grad",
        ],
        1,
    ),
)
def test_everything_at_once_has_every_option_that_helps(more: str) -> None:
    """It is no slower than any change of one decision, and no option on top makes it 0.1 %
    faster."""
    fast = (
        f"{LLAMA} {SPLIT} {SIZES} --lr 1e-4 --sequence-parallel --use-distributed-optimizer"
        " --overlap-grad-reduce"
    )
    _, request, advice = advised(f"{fast} {more}")
    assert advice.everything is not None
    assert advice.now is not None
    problem = problem_of(request)
    capacity = capacity_of(request, problem)
    assert all(advice.everything.step_time_s <= change.step_time_s for change in advice.changes)
    assert advice.everything.step_time_s <= advice.now.prediction.step_time_s
    assert (
        simulate_grid(problem, advice.everything.grid).step_time_s == advice.everything.step_time_s
    )
    for name, value, other in option_changes(problem, advice.everything.grid):
        done = simulated_change(problem, other, capacity=capacity)
        assert done is None or done.step_time_s >= advice.everything.step_time_s * (
            1 - LEAST_GAIN
        ), (name, value)


def test_a_diff_of_settings_makes_the_change() -> None:
    """The launch with the settings that go and come is read as the strategy that is told."""
    launch, _, advice = advised(SLOW)
    assert advice.everything is not None
    settings = {one.name: one.value for one in launch.settings}
    for change in (*advice.changes, advice.everything):
        assert change.added or change.removed
        words = dict(settings)
        for name, _ in change.removed:
            words.pop(name, None)
        text = " ".join(
            f"--{name} {value}".removesuffix(" true")
            for name, value in {**words, **dict(change.added)}.items()
        )
        again = read_launch([text], model=load_model("llama-3.1-8b"), devices=16)
        assert again.grid == change.grid, change.text


def test_a_launch_that_cannot_run_is_told_why_and_what_can() -> None:
    _, _, advice = advised(f"{LLAMA} {SPLIT} --micro-batch-size 3 --global-batch-size 64")
    assert (advice.now, advice.broken[0].rule) == (None, "grid.batch")
    assert advice.best is not None
    assert advice.changes[0].text.startswith("mbs")
    assert advice.changes[0].gain == 0.0


def test_a_launch_that_is_best_has_nothing_to_gain() -> None:
    _, _, advice = advised(SLOW)
    assert advice.everything is not None
    words = {one.name: one.value for one in advised(SLOW)[0].settings} | dict(
        advice.everything.added
    )
    for name, _ in advice.everything.removed:
        if name not in dict(advice.everything.added):
            words.pop(name, None)
    text = " ".join(f"--{name} {value}".removesuffix(" true") for name, value in words.items())
    _, _, again = advised(text)
    assert again.now is not None
    assert again.now.prediction.step_time_s == advice.everything.step_time_s
    assert (
        (again.everything.added, again.everything.removed) == ((), ())
        if again.everything
        else False
    )


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "pretrain.sh"
    script.write_text(
        "export CUDA_DEVICE_MAX_CONNECTIONS=1\nTP=2\ntorchrun pretrain_gpt.py"
        f" {' '.join(SLOW.split())}\n"
    )
    words = ["advise", str(script), "llama-3.1-8b", CLUSTER]
    assert run([*words, "--json"]) == 0
    launch, _, advice = advised(SLOW)
    assert json.loads(capsys.readouterr().out) == json.loads(
        to_text(advice_document(launch, advice))
    )
    assert run([*words, "--quiet"]) == 0
    assert capsys.readouterr().out.count("\t") == 2
    assert run(["advise", str(script), "llama-3.1-8b"]) == 2
    assert run([*words, "--set", "x"]) == 2
    assert run([*words, "--from", "megatrom"]) == 2
    assert "did you mean megatron" in capsys.readouterr().err


def test_what_the_launch_does_not_say_is_asked_for() -> None:
    request = Request(model="llama-3.1-8b", cluster=CLUSTER, seq_len=0, global_batch=0)
    with pytest.raises(UsageError, match="how long a sample is"):
        read_request([f"--num-layers 32 {SPLIT}"], request, cluster=load_cluster(CLUSTER))


@pytest.mark.parametrize(
    ("name", "text", "pinned"),
    [
        (
            "a.yaml",
            "finetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\nbf16: true\n",
            True,
        ),
        (
            "a.toml",
            (
                "[training]\nlocal_batch_size = 1\nseq_len ="
                " 2048\n[parallelism]\ntensor_parallel_degree = 2\n"
            ),
            True,
        ),
        ("run.sh", f"python pretrain_gpt.py {LLAMA} {SPLIT} {SIZES}\n", False),
    ],
)
def test_a_number_of_recomputed_layers_is_proposed_where_the_framework_has_one(
    tmp_path, name: str, text: str, pinned: bool
) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / name
    path.write_text(text)
    asked = Request(model="llama-3.1-8b", cluster=CLUSTER, seq_len=2048, global_batch=64)
    launch, request = read_request([str(path)], asked, cluster=load_cluster(CLUSTER))
    problem = problem_of(request)
    counts = space_of(request, problem, facts_of(problem)).of("recompute_layers")
    assert (counts == (0,)) == pinned
    assert (space_of(request, problem, facts_of(problem)).of("sp") == (0,)) == (name == "a.yaml")
    if name == "a.yaml":
        changes = [
            grid
            for _, grid in one_change(
                problem,
                space_of(request, problem, facts_of(problem)),
                facts_of(problem),
                launch.grid,
            )
        ]
        assert {grid.recompute.value for grid in changes} == {"none", "full"}


def test_the_job_that_is_told_is_the_one_that_is_simulated(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """What the command line says in the place of the files, or where these say nothing, is in the
    line of the job and in JSON."""
    path = tmp_path / "ds.json"
    path.write_text(
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}, "bf16":'
        ' {"enabled": true}}'
    )
    asked = Request(
        model="llama-3.2-1b", cluster="h100-sxm:8", seq_len=1024, global_batch=32, precision="bf16"
    )
    launch, request = read_request([str(path)], asked, cluster=load_cluster("h100-sxm:8"))
    job = advice_document(launch, advise(launch, request))["job"]
    assert (job["seq_len"], job["global_batch"], job["precision"]) == (1024, 32, "bf16")
