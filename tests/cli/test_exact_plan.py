"""``plan --space exact``: the best of every plan of a few layers on a few devices, a file that
``check`` verifies, and what is refused."""

import json
from pathlib import Path

import pytest

from shardwright.api.searches.exact_search_on_few_devices import plan_exact
from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.cli.main import run as command
from shardwright.search.search_request import Request

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
}


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A Llama of one layer."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


@pytest.fixture
def two_layers(tmp_path: Path) -> str:
    path = tmp_path / "two.json"
    path.write_text(json.dumps(CONFIG | {"num_hidden_layers": 2}))
    return str(path)


def words(model: str, cluster: str = "h100-sxm:2") -> list[str]:
    return ["plan", model, cluster, "--seq-len", "2048", "--global-batch", "4", "--space", "exact"]


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    code = command(words)
    out, err = capsys.readouterr()
    return code, out, err


def test_an_exact_plan_is_stored_and_checked(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    code, out, err = run([*words(model), "-o", str(path)], capsys)
    assert code == 0, err
    assert "plan exact devices 2" in out
    assert "Optimal: no other strategy of the space is faster." in out
    document = json.loads(path.read_text())
    certificate = document["certificate"]
    fates = ("illegal", "duplicates", "infeasible", "bounded_b0", "bounded_b1", "simulated")
    assert certificate["enumerated"] == sum(certificate[name] for name in fates)
    assert certificate["optimal"]
    assert certificate["best_s"] == certificate["lower_bound_s"]
    assert document["prediction"]["step_time_s"] == certificate["best_s"]
    code, out, err = run(["check", str(path)], capsys)
    assert code == 0, err
    assert "The plan holds." in out


@pytest.mark.proof
def test_a_plan_of_two_lanes_is_stored_and_checked(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A device in each of two zones."""
    path = tmp_path / "plan.json"
    zones = "h100-sxm:1@east+a100-sxm-80gb:1@west,east~west=200gbps/0.001ms"
    asked = [*words(model, zones), "--lanes", "2"]
    code, out, err = run([*asked, "-o", str(path)], capsys)
    assert code == 0, err
    assert "Optimal: no other strategy of the space is faster." in out
    assert "lanes <= 2 on disjoint device sets" in " ".join(out.split())
    document = json.loads(path.read_text())
    assert document["request"]["lanes"] == 2
    code, out, err = run(["check", str(path)], capsys)
    assert code == 0, err
    assert "The plan holds." in out


def test_no_grid_without_recompute_and_sharding_is_faster(two_layers: str) -> None:
    """Grids of the axes that trees have are members, so none of them beats the answer."""
    request = Request(model=two_layers, cluster="h100-sxm:2", seq_len=2048, global_batch=4)
    best = plan_exact(request).step_time_s
    for strategy in ("dp2 mbs1", "dp2 mbs2", "tp2 mbs4", "tp2 mbs2", "pp2 mbs2", "pp2 mbs4"):
        assert best <= simulation(request, strategy=f"{strategy} zero0").prediction.step_time_s * (
            1 + 1e-12
        ), strategy


@pytest.mark.parametrize(
    ("model_name", "cluster", "more", "code", "message"),
    [
        (
            "llama-3-8b",
            "h100-sxm:2",
            [],
            2,
            "34 blocks on 2 devices are too many for the exact space: at most 6 blocks",
        ),
        (None, "h100-sxm:8", [], 2, "3 blocks on 8 devices are too many for the exact space"),
        (
            None,
            "h100-sxm:7",
            ["--lanes", "2"],
            2,
            "at most 6 blocks (embedding and head among them), 6 devices",
        ),
        (None, "h100-sxm:2", ["--lanes", "4"], 2, "the exact space has plans of 1 to 3 lanes"),
        (
            None,
            "h100-sxm:2",
            ["--lanes", "2", "--space", "joint"],
            2,
            "--lanes 2 is for --space exact",
        ),
        (
            None,
            "h100-sxm:2+v100-sxm-32gb:2+a100-sxm-80gb:2",
            ["--lanes", "3", "--global-batch", "24"],
            2,
            "too many for the exact space: at most 1,000,000",
        ),
        (None, "h100-sxm:2", ["--pin", "tp=2"], 2, "no axes to pin"),
        ("gpt2", "h100-sxm:2", [], 5, "weights are shared between blocks"),
    ],
)
def test_what_is_refused(
    model: str,
    model_name: str | None,
    cluster: str,
    more: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found, _, err = run([*words(model_name or model, cluster), *more], capsys)
    assert found == code
    assert message in " ".join(err.split())
