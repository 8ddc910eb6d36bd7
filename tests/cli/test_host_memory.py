"""Host memory on the command line: the screen, ``--json``, `check`, `why`, and exit code 6."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api.simulate_strategy_and_verify_stored import simulation
from shardwright.cli.main import run
from shardwright.search.search_request import Request
from shardwright.units import GIB

CLUSTER = (
    "nodes:\n  - {{accelerator: {accelerator}, count: {count}, devices_per_node: {devices}, host:"
    " {{memory_gib: {gib}}}}}\n"
)


def cluster(
    folder: Path, *, gib: int, accelerator: str = "h100-sxm", count: int = 1, devices: int = 8
) -> str:
    path = folder / "cluster.yaml"
    path.write_text(
        CLUSTER.format(accelerator=accelerator, count=count, devices=devices, gib=gib),
        encoding="utf-8",
    )
    return str(path)


def simulated(
    capsys: pytest.CaptureFixture[str], model: str, cluster: str, strategy: str, *more: str
) -> dict[str, object]:
    words = [
        "simulate",
        model,
        cluster,
        "--seq-len",
        "1024",
        "--global-batch",
        "8",
        "--strategy",
        strategy,
        "--json",
        *more,
    ]
    code = run(words)
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert code == (0 if prediction(found)["fits"] else 6)
    return found


def prediction(document: dict[str, object]) -> dict[str, object]:
    inner = document.get("prediction", document)
    assert isinstance(inner, dict)
    return inner


ZERO3 = "dp8 mbs1 zero3 recompute=full offload=100 param_offload=on"


def test_zero3_offload_of_a_large_model_does_not_fit_little_host_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """DeepSpeed counts 27 bytes a parameter with everything offloaded; 12 of them are optimizer
    states."""
    small = cluster(tmp_path, accelerator="a100-sxm-40gb", gib=400)
    found = prediction(
        simulated(capsys, "llama-2-70b", small, ZERO3, "--runtime", "deepspeed-0.16")
    )
    assert found["fits"] is False
    (host,) = found["host_memory"]  # type: ignore[misc]
    parameters = found["model"]["parameters"]  # type: ignore[index]
    assert host["memory_bytes"]["optimizer"] == pytest.approx(12 * parameters, rel=1e-6)
    assert host["needed_bytes"] == pytest.approx(27 * parameters, rel=1e-6)
    assert host["capacity_bytes"] == 400 * GIB
    large = cluster(tmp_path, accelerator="a100-sxm-40gb", gib=2048)
    assert (
        prediction(simulated(capsys, "llama-2-70b", large, ZERO3, "--runtime", "deepspeed-0.16"))[
            "fits"
        ]
        is True
    )


def test_one_device_keeps_its_parameters_in_host_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ZeRO-3 of one rank is not printed away: the device fits, and the host does not."""
    one = cluster(tmp_path, accelerator="h100-nvl", devices=1, gib=700)
    strategy = "dp1 mbs1 zero3 recompute=full offload=100 param_offload=on"
    document = simulated(capsys, "qwen2.5-32b", one, strategy, "--runtime", "deepspeed-0.16")
    found = prediction(document)
    assert found["peak_memory_bytes"]["reserved"] < found["capacity_bytes"]  # type: ignore[index, operator]
    (host,) = found["host_memory"]  # type: ignore[misc]
    assert host["memory_bytes"]["parameters"] == 2 * found["model"]["parameters"]  # type: ignore[index]
    assert host["needed_bytes"] > host["capacity_bytes"]
    assert found["fits"] is False


def test_plan_says_by_how_much_a_node_lacks_host_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = cluster(tmp_path, accelerator="a100-sxm-80gb", count=4, gib=64)
    words = [
        "plan",
        "llama-3.1-70b",
        nodes,
        "--seq-len",
        "4096",
        "--global-batch",
        "64",
        "--pin",
        "offload=100",
        "--pin",
        "pp=1",
    ]
    assert run(words) == 6
    said = capsys.readouterr().err
    assert (
        "host memory of each of 4 nodes by 198.8 GiB (needs 262.8 GiB, 197.1 GiB of it optimizer;"
        " has 64 GiB)" in said
    )
    assert "another offload than 100" in said


def test_a_plan_that_needs_host_memory_is_checked_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes, path = cluster(tmp_path, gib=300), tmp_path / "plan.json"
    words = ["llama-2-7b", nodes, "--seq-len", "1024", "--global-batch", "8"]
    assert (
        run(["plan", *words, "--pin", "offload=100", "--use-all", "-o", str(path), "--quiet"]) == 0
    )
    document = json.loads(path.read_text(encoding="utf-8"))
    assert prediction(document)["host_memory"]
    capsys.readouterr()
    assert run(["check", str(path)]) == 0
    capsys.readouterr()
    # Each of 8 replicas offloads all states.
    assert (
        run(
            [
                "why",
                str(path),
                (
                    "tp1 sp=0 pp1 vpp1 dp8 mbs1 zero0 recompute=full offload=100 schedule=1f1b"
                    " order=tp-cp-ep-dp-pp"
                ),
            ]
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "infeasible: it does not fit the host memory of node 0 by" in said
    assert "Host memory of the fullest node" in said


def test_screens_show_host_memory_only_where_something_is_offloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = cluster(tmp_path, gib=512)
    words = [
        "simulate",
        "llama-2-7b",
        nodes,
        "--seq-len",
        "1024",
        "--global-batch",
        "8",
        "--strategy",
    ]
    assert run([*words, "dp8 mbs1 zero1 recompute=full offload=100"]) == 0
    said = capsys.readouterr().out
    assert "Host memory of the fullest node: " in said
    assert "and the fullest node needs " in " ".join(said.split())
    assert run([*words, "dp8 mbs1 zero1 recompute=full"]) == 0
    assert "ost memory" not in capsys.readouterr().out


FAR = """plan far devices 2
zero all: all/all/all gather=use reduce=microbatch unit=whole host={host}
lane main samples 8 in 4
  stages embed+32+head on 0
    all = b2
    host 0- 50%: mlp
order gpipe(main)
"""


def far(folder: Path, *, host: str, options: str = "") -> str:
    path = folder / "far.plan"
    text = (
        FAR.format(host=host).replace("\nzero", f"\noptions {options}\nzero")
        if options
        else FAR.format(host=host)
    )
    path.write_text(text, encoding="utf-8")
    return str(path)


SMALL = Request(model="llama-2-7b", cluster="h100-sxm:2", seq_len=1024, global_batch=8)


@pytest.mark.parametrize(
    ("runtime", "host", "said"),
    [
        (
            "megatron-core",
            "opt:100,grad:100",
            "keeps 0 % of this rule's gradients in host memory, not 100 %",
        ),
        (
            "deepspeed",
            "opt:100,grad:50",
            "keeps 100 % of this rule's gradients in host memory, not 50 %",
        ),
        ("deepspeed", "grad:100", "keeps 0 % of this rule's gradients in host memory, not 100 %"),
        (
            "deepspeed",
            "opt:100,param:100",
            "keeps 0 % of this rule's parameters in host memory, not 100 %",
        ),
        (
            "shardwright",
            "opt:100,param:25",
            "keeps 0 % of this rule's parameters in host memory, not 25 %",
        ),
    ],
)
def test_host_shares_that_the_runtime_does_not_keep_are_refused(
    runtime: str, host: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "simulate",
        SMALL.model,
        SMALL.cluster,
        "--seq-len",
        "1024",
        "--global-batch",
        "8",
        "--runtime",
        runtime,
    ]
    assert run([*words, "--strategy", far(tmp_path, host=host)]) == 5
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "hint: without" in shown


@pytest.mark.parametrize(
    ("host", "options"),
    [("opt:100,grad:100", ""), ("opt:50,grad:50", ""), ("opt:100,param:100", "param_offload=on")],
)
def test_host_shares_that_the_runtime_keeps_are_priced(
    host: str, options: str, tmp_path: Path
) -> None:
    """A plan that says what the runtime does by itself is the plan that does not: the same bytes
    and seconds, on device and host."""
    request = replace(SMALL, runtime="deepspeed")
    found = simulation(request, strategy=far(tmp_path, host=host, options=options)).prediction
    plain = simulation(
        request, strategy=far(tmp_path, host=host.partition(",")[0], options=options)
    ).prediction
    assert (found.step_time_s, found.stages, found.host_memory) == (
        plain.step_time_s,
        plain.stages,
        plain.host_memory,
    )
    state = "parameters" if options else "gradients"
    without = simulation(request, strategy=far(tmp_path, host="opt:1")).prediction
    (node,), (least,) = found.host_memory, without.host_memory
    assert dict(node.items)[state] > dict(least.items).get(state, 0)
    assert found.step_time_s > without.step_time_s
