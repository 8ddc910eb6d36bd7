"""A worker of a deployment, executed: its logits are the unsplit model's, its iterations the
simulator's."""

import json
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from shardwright.api import prove_deployment_by_execution as execute_deployment
from shardwright.api.prove_deployment_by_execution import prove_deployment
from shardwright.cli.main import run as command
from shardwright.errors import DataError, StrategyError, UsageError
from shardwright.execute.serve import prove_serving
from shardwright.report.serving.executed_deployment_proof_screen import (
    render_served,
    served_document,
)
from shardwright.serving.unparsed_simulation_inputs import ServingRequest

REQUEST = ServingRequest(
    model="llama-3.2-1b",
    cluster="h100-sxm:8",
    deployment="tp2",
    isl="256",
    osl="8",
    concurrency=4,
    requests=8,
)


@pytest.mark.parametrize(
    ("model", "deployment", "engine"),
    [
        ("mistral-7b", "tp2", "vllm"),
        ("deepseek-v2-lite", "prefill 1x(tp2) decode 1x(dpa2 ep2)", "sglang"),
        pytest.param(
            "mistral-7b", "prefill 1x(tp2) decode 1x(tp1)", "vllm", marks=pytest.mark.proof
        ),
        pytest.param(
            "nemotron-3-nano",
            "prefill 1x(pp2) decode 1x(tp2)",
            "tensorrt-llm",
            marks=pytest.mark.proof,
        ),
        pytest.param("gpt-oss-20b", "tp2 ep2", "vllm", marks=pytest.mark.proof),
        pytest.param("nemotron-3-nano", "tp2 pp2", "tensorrt-llm", marks=pytest.mark.proof),
        pytest.param("deepseek-r1", "dpa8 ep8", "sglang", marks=pytest.mark.proof),
        pytest.param("qwen3-next-80b-a3b", "tp2 ep2", "vllm", marks=pytest.mark.proof),
        pytest.param("llama-4-scout-text", "tp4 ep2", "vllm", marks=pytest.mark.proof),
        pytest.param("mixtral-8x7b", "pp2 ep2 tp2", "tensorrt-llm", marks=pytest.mark.proof),
    ],
)
def test_a_deployment_answers_as_the_unsplit_model(
    model: str, deployment: str, engine: str
) -> None:
    found = prove_deployment(replace(REQUEST, model=model, deployment=deployment, engine=engine))
    assert found.equal
    assert 0.0 < found.difference <= 1e-10
    assert found.log == found.simulated
    assert all(found.tokens)
    assert (found.preempted > 0) == (engine == "vllm"), "others keep room for answers"
    assert found.computed == sum(tokens for _, _, tokens in found.log)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little traffic, where what is executed does not matter."""
    for name, size in {"REQUESTS": 2, "LONGEST_PROMPT": 6, "LONGEST_ANSWER": 4}.items():
        monkeypatch.setattr(execute_deployment, name, size)


@pytest.mark.usefixtures("brief")
def test_a_difference_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prove_serving, "largest_difference", lambda served, source: 1e-9)
    with pytest.raises(DataError, match=r"a logit differs by 1\.0e-09"):
        prove_deployment(REQUEST)


@pytest.mark.usefixtures("brief")
def test_another_log_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_deployment, "_simulate_workers", lambda *words: ((0, 0, 1),))
    with pytest.raises(DataError, match="the iterations are not the simulator's"):
        prove_deployment(REQUEST)


@pytest.mark.parametrize(
    ("model", "deployment", "rule"),
    [("llama-3.2-1b", "tp2 cp2", "serve.deployment"), ("deepseek-v3.2", "tp2", "serve.model")],
)
def test_what_is_not_executed_is_refused_by_name(model: str, deployment: str, rule: str) -> None:
    with pytest.raises(StrategyError) as error:
        prove_deployment(replace(REQUEST, model=model, deployment=deployment))
    assert error.value.rule == rule


def test_without_pytorch_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shardwright.execute.serve.prove_serving", None)
    with pytest.raises(UsageError, match="--execute needs PyTorch"):
        prove_deployment(REQUEST)


@pytest.mark.usefixtures("brief")
def test_the_verb_says_what_was_executed(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        REQUEST.model,
        REQUEST.cluster,
        "--deployment",
        "tp2",
        "--isl",
        "256",
        "--osl",
        "8",
        "--concurrency",
        "4",
        "--requests",
        "8",
    ]
    assert command(["serve-simulate", *words, "--execute", "--json"]) == 0
    executed = json.loads(capsys.readouterr().out)["execution"]
    assert executed["equal"]
    assert executed["log_equal"]
    assert executed["devices"] == 2
    assert sum(tokens for _, _, tokens in executed["iterations"]) == executed["computed"]


@pytest.mark.usefixtures("brief")
def test_the_screen_says_whether_all_is_equal() -> None:
    found = prove_deployment(REQUEST)
    assert "answers as the unsplit model does" in render_served(found).text.plain
    wrong = replace(found, difference=1.0, log=())
    assert not served_document(wrong)["equal"]
    text = render_served(wrong).text.plain
    assert "does NOT answer" in text
    assert "NOT the simulator's" in text
