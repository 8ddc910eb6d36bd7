"""Whatever launches an export, every node starts the same script with its own number and ranks, in
the plan's order."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.api.exports.export_plan import export_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.cli.main import run
from shardwright.errors import StrategyError, UsageError
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import Exporter, ExportFile
from shardwright.frameworks.export.launchers.registry import LAUNCHERS
from shardwright.frameworks.export.parse_host_file import HostEntry
from shardwright.frameworks.export.place_ranks_and_write_rank_map import RANKS
from shardwright.frameworks.registry import TARGETS
from shardwright.registry import Registry
from shardwright.runtime.runtime_registry import runtime_names
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.export.launchers import launched as node
from tests.frameworks.export.launchers.launched import documents, launched, planned
from tests.frameworks.plans import stored
from tests.registries import place

CLUSTERS = {
    "h100-sxm:32": ("tp2 sp dp16 zero1", [8, 8, 8, 8]),
    "h100-sxm:4": ("tp2 sp dp2 zero1", [4]),
    "h100-sxm:24": ("tp4 sp dp4 zero1", [8, 8]),
    "t4:8+h100-sxm:16": ("tp2 sp dp8 zero1", [4, 4, 8]),
    "h100-sxm:16+t4:8": ("tp2 sp dp8 zero1", [8, 8]),
    "gb300-nvl72:16": ("tp4 sp dp4 zero1", [4] * 4),
    "a100-sxm-80gb:8+h100-sxm:8": ("tp4 sp dp4 zero1", [8, 8]),
}
"""Cluster -> a plan on it, and the ranks of every node that it uses: some leave nodes, or devices
of one, idle."""
STARTED: dict[str, Callable[[Path], list[list[str]]]] = {
    "jobset": node.by_jobset,
    "trainjob": node.by_trainjob,
    "skypilot": node.by_skypilot,
}
REFUSED = {
    (
        "trainjob",
        "t4:8+h100-sxm:16",
    ): "its nodes are all alike, and the plan's are 2 of 4 t4, then 1 of 8 h100-sxm",
    ("trainjob", "a100-sxm-80gb:8+h100-sxm:8"): "its nodes are all alike",
    ("skypilot", "t4:8+h100-sxm:16"): "its nodes are all of one kind",
    ("skypilot", "a100-sxm-80gb:8+h100-sxm:8"): "its nodes are all of one kind",
    ("skypilot", "gb300-nvl72:16"): "no name of SkyPilot's is known for gb300-nvl72",
}


def words(call: list[str]) -> dict[str, str]:
    return dict(zip(call[::2], call[1::2], strict=True))


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("launcher", STARTED)
def test_every_node_is_started(launcher: str, cluster: str, tmp_path: Path) -> None:
    text, ranks = CLUSTERS[cluster]
    one = planned(cluster, text)
    if (launcher, cluster) in REFUSED:
        with pytest.raises(StrategyError, match=r"\[export\.launch\]") as error:
            launched(one, launcher, tmp_path)
        assert f"{launcher} cannot start this plan: {REFUSED[launcher, cluster]}" in str(
            error.value
        )
        return
    export, path = launched(one, launcher, tmp_path)
    found = [words(call) for call in STARTED[launcher](path)]
    assert [int(call["--nproc-per-node"]) for call in found] == ranks
    assert {call["--nnodes"] for call in found} == {str(len(ranks))}
    assert [int(call["--node-rank"]) for call in found] == list(range(len(ranks)))
    assert len({call["--master-addr"] for call in found}) == 1
    document = json.loads(next(file.text for file in export.beside if file.name == RANKS))
    assert [one["ranks"] for one in document["nodes"]] == ranks


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_slurm_starts_every_node_where_the_plan_has_it(cluster: str, tmp_path: Path) -> None:
    """Tasks run in any order of hosts: each finds its own number in the list."""
    text, ranks = CLUSTERS[cluster]
    _, path = launched(planned(cluster, text), "slurm", tmp_path)
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = path.read_text().splitlines()
    counts = [int(line.partition("--nodes=")[2].split()[0]) for line in lines if "--nodes=" in line]
    hosts = [[f"c{part}n{number}" for number in range(count)] for part, count in enumerate(counts)]
    assert sum(counts) == len(ranks)
    assert ("#SBATCH hetjob" in lines) == (len(counts) > 1)
    flat = [host for part in hosts for host in part]
    found = node.by_slurm(path, hosts, ALLOCATED=" ".join(reversed(flat)))
    calls = sorted((words(call) for call in found), key=lambda call: int(call["--node-rank"]))
    assert [int(call["--nproc-per-node"]) for call in calls] == ranks
    assert [int(call["--node-rank"]) for call in calls] == list(range(len(ranks)))
    assert {call["--master-addr"] for call in calls} == {flat[0]}
    assert [int(words(call)["--node-rank"]) for call in found] == list(reversed(range(len(ranks))))


def expressible(target: str, runtime: str, *grids: str) -> PlanOfProblem:
    """A plan of the first of some grids that a target can express."""
    for words in grids:
        one = stored(parse_grid(words), runtime=runtime)
        with suppress(StrategyError):
            export_plan(one, target=target, allow_lossy=True)
            return one
    raise AssertionError(f"{target} expresses none of {grids}")


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_started_the_same(target: str, tmp_path: Path) -> None:
    """Its script makes of what a node is told the words of its own launcher."""
    same = {"megatron": "megatron-core", "flagscale": "megatron-core"}.get(target, target)
    runtime = same if same in runtime_names() else "torchtitan"
    one = expressible(target, runtime, "dp16 zero1", "dp16 zero0", "dp16 zero3")
    if target in ("flagscale", "megatron-bridge"):
        with pytest.raises(StrategyError, match="slurm starts a script, and this target has none"):
            launched(one, "slurm", tmp_path, target=target)
        return
    _, path = launched(one, "slurm", tmp_path, target=target)
    found = node.by_slurm(path, [["first", "second"]], arguments=("program.py", "--steps", "2"))
    assert len(found) == 2
    path_of_test = "tests/frameworks/export/launchers/test_launchers.py"
    for number, call in enumerate(found):
        said = " ".join(call)
        words = {
            "accelerate": "--machine_rank {} --main_process_ip first ",
            "maxtext": "2 {} first 0,1,2,3,4,5,6,7 -m maxtext",
        }
        assert words.get(target, "--node-rank {} --master-addr first ").format(number) in said, (
            f"if {target} is not started by torchrun, add its flags to `words` of"
            f" {place(path_of_test, 'test_every_target_is_started_the_same')}"
        )
        if target != "megatron":
            assert "--steps 2" in said


def test_slurm_takes_the_hosts_that_are_given(tmp_path: Path) -> None:
    """SLURM sorts the names of an allocation; the plan's order is the file's."""
    one = planned("h100-sxm:16", "tp2 sp dp8 zero1")
    _, path = launched(one, "slurm", tmp_path, hosts=(HostEntry(name="z"), HostEntry(name="a")))
    assert "#SBATCH --nodelist=z,a" in path.read_text()
    found = [words(call) for call in node.by_slurm(path, [["a", "z"]])]
    assert [(call["--node-rank"], call["--master-addr"]) for call in found] == [
        ("1", "z"),
        ("0", "z"),
    ]
    with pytest.raises(AssertionError, match="other is not in"):
        node.by_slurm(path, [["a", "other"]])


def test_islands_of_several_nodes_are_segments(tmp_path: Path) -> None:
    """As the cost model has them: 16 of 18 nodes of an NVL72 each, where 32 are asked for."""
    for devices, used, segment in ((128, 128, 16), (72, 64, 16), (8, 8, 2)):
        _, path = launched(
            planned(f"gb200-nvl72:{devices}", f"tp4 sp dp{used // 4} zero1"), "slurm", tmp_path
        )
        assert f"#SBATCH --segment={segment}" in path.read_text()
    _, path = launched(planned("h100-sxm:16", "tp4 sp dp4 zero1"), "slurm", tmp_path)
    assert "--segment" not in path.read_text()


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    "name", ["a\nrm -rf x", "'; touch x; '", '"; $(touch x) `touch x`', "a: b\n- c", "\ud800"]
)
def test_names_of_others_stay_names(launcher: str, name: str, tmp_path: Path) -> None:
    one = planned("h100-sxm:16", "tp2 sp dp8 zero1", name=name)
    model = replace(one.problem.model, name=name)
    plain = launched(planned("h100-sxm:16", "tp2 sp dp8 zero1"), launcher, tmp_path / "plain")[1]
    _, path = launched(
        replace(one, problem=replace(one.problem, model=model), cluster=name),
        launcher,
        tmp_path / "odd",
    )
    if launcher == "slurm":
        found = node.by_slurm(path, [["n0", "n1"]])
        assert found == node.by_slurm(plain, [["n0", "n1"]])
    else:
        assert len(documents(path)) == len(documents(plain))
        assert len(STARTED[launcher](path)) == 2
        job = documents(path)[-1].get("metadata", documents(path)[-1])["name"]
        assert job.strip("-").replace("-", "").isalnum()
        assert job.isascii()
        assert job[0].isalpha()
    assert not list(tmp_path.rglob("x"))


CONFIGURATION_ONLY = Exporter(
    name="other",
    version="1",
    summary="",
    shortfalls=lambda _: iter(()),
    files=lambda _: (ExportFile(name="config.json", text="{}"),),
)
"""A target that writes no start script."""


def test_a_target_without_a_script_is_not_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    from shardwright.api.exports import export_plan as exports

    monkeypatch.setattr(
        exports, "TARGETS", Registry("target", {"other": f"{__name__}:CONFIGURATION_ONLY"})
    )
    one = stored(parse_grid("dp8 zero1"))
    assert export_plan(one, target="other").beside
    with pytest.raises(StrategyError, match="slurm starts a script, and this target has none"):
        export_plan(one, target="other", launchers=("slurm",))


def test_words_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, hosts = tmp_path / "plan.json", tmp_path / "hosts"
    given = [
        "llama-3.1-8b",
        "h100-sxm:16",
        "--seq-len",
        "8192",
        "--global-batch",
        "64",
        "--strategy",
        "tp2 sp dp8 zero2",
    ]
    assert run(["simulate", *given, "--runtime", "torchtitan", "-o", str(plan), "--quiet"]) == 0
    hosts.write_text("b\na\n")
    start = ["export", str(plan), "--to", "torchtitan", "-o", str(tmp_path / "out")]
    capsys.readouterr()
    assert (
        run(
            [
                *start,
                "--launcher",
                "slurm",
                "--launcher",
                "jobset",
                "--hosts",
                str(hosts),
                "--image",
                "me/it:1",
                "--json",
            ]
        )
        == 0
    )
    files = [Path(file).name for file in json.loads(capsys.readouterr().out)["files"]]
    assert files == [
        "shardwright_plan.py",
        "train.sh",
        "ranks.json",
        "ranks.csv",
        "hostfile",
        "slurm.sh",
        "jobset.yaml",
    ]
    assert (
        documents(tmp_path / "out" / "jobset.yaml")[1]["spec"]["replicatedJobs"][0]["template"][
            "spec"
        ]["template"]["spec"]["containers"][0]["image"]
        == "me/it:1"
    )
    assert run([*start, "--launcher", "slrum"]) == 5
    assert "did you mean slurm" in capsys.readouterr().err
    assert run([*start, "--hosts", str(tmp_path / "none")]) == 7
    assert run([*start, "--image", "a b"]) == 2
    hosts.write_text("b slots=4\na\n")
    assert run([*start, "--hosts", str(hosts)]) == 7
    assert "host b has 4 slots for 8 ranks" in capsys.readouterr().err


def test_an_image_is_a_name() -> None:
    with pytest.raises(UsageError, match="is no name of an image"):
        export_plan(stored(parse_grid("dp8 zero3")), target="torchtitan", image="$(id)")
