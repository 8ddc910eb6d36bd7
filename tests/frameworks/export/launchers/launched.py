"""Launchers run on this machine: what stands in for SLURM, Kubernetes and SkyPilot starts nodes,
and torchrun says how it was called."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from shardwright.api.exports.export_plan import Export, export_plan, write_export
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.frameworks.export.launchers.shared_kubernetes_pod_parts import MOUNT
from shardwright.frameworks.export.parse_host_file import HostEntry
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.plans import stored
from tests.registries import place

SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
for host in $ALLOCATED; do SLURMD_NODENAME=$host "$@" || exit 1; done
"""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && tr , '\\n' <<< "$3"
"""
TORCHRUN = """#!/bin/bash
printf '%s ' "$@" >> "$CALLS"
printf '\\n' >> "$CALLS"
"""
PYTHON = """#!/bin/bash
echo "$NNODES $NODE_RANK $JAX_COORDINATOR_IP $CUDA_VISIBLE_DEVICES $*" >> "$CALLS"
"""


def planned(cluster: str, text: str, *, name: str = "") -> PlanOfProblem:
    """A plan of Megatron's on a cluster."""
    one = stored(parse_grid(text), runtime="megatron-core")
    problem = replace(one.problem, cluster=parse_cluster(cluster))
    return replace(one, problem=problem, cluster=cluster, name=name or one.name)


def launched(
    one: PlanOfProblem,
    launcher: str,
    folder: Path,
    *,
    target: str = "megatron",
    hosts: tuple[HostEntry, ...] = (),
    image: str = "",
) -> tuple[Export, Path]:
    """The export, and the path of the launcher's file."""
    export = export_plan(
        one, target=target, allow_lossy=True, launchers=(launcher,), hosts=hosts, image=image
    )
    return export, write_export(export, folder)[-1]


def calls(command: list[str], folder: Path, **environment: str) -> list[list[str]]:
    """How torchrun, or accelerate, is called when a command runs: its words, call by call, before
    Megatron's program where that is it."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in {
        "srun": SRUN,
        "scontrol": SCONTROL,
        "torchrun": TORCHRUN,
        "accelerate": TORCHRUN,
        "python3": PYTHON,
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    said = folder / "calls"
    said.write_text("")
    inherited = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "CALLS": str(said)}
    done = subprocess.run(
        command,
        cwd=folder,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if missing := re.search(r"([\w.-]+): (?:command )?not found", done.stderr):
        here = place("tests/frameworks/export/launchers/launched.py", "calls")
        raise AssertionError(
            f"{done.stderr}if a target starts its ranks with {missing[1]}, add that to the tools of"
            f" {here}"
        )
    assert done.returncode == 0, done.stderr
    return [
        line.partition(" pretrain_gpt.py ")[0].split() for line in said.read_text().splitlines()
    ]


def by_slurm(
    path: Path, nodes: list[list[str]], *, arguments: tuple[str, ...] = (), **environment: str
) -> list[list[str]]:
    """Nodes of every component, as SLURM allocated them."""
    names = [",".join(hosts) for hosts in nodes]
    lists = (
        {f"SLURM_JOB_NODELIST_HET_GROUP_{number}": text for number, text in enumerate(names)}
        if len(nodes) > 1
        else {}
    )
    given = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": names[0],
        "ALLOCATED": " ".join(host for hosts in nodes for host in hosts),
    }
    return calls(["bash", str(path), *arguments], path.parent, **(lists | given | environment))


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def by_jobset(path: Path) -> list[list[str]]:
    """Every pod, in the order of jobs and indices; the ConfigMap's files are mounted."""
    files, document = documents(path)
    found = []
    for job in document["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        for index in range(spec["completions"]):
            environment = {one["name"]: one["value"] for one in container["env"]} | {
                "JOB_COMPLETION_INDEX": str(index)
            }
            found += calls(
                _mounted(container["command"], files, path.parent), path.parent, **environment
            )
    return found


def by_trainjob(path: Path) -> list[list[str]]:
    """Every pod: its number and the first's address are in the variables that the runtime sets for
    torchrun."""
    files, document = documents(path)
    trainer = document["spec"]["trainer"]
    environment = {one["name"]: one["value"] for one in trainer["env"]}
    command = _mounted(trainer["command"], files, path.parent)
    found = []
    for number in range(trainer["numNodes"]):
        told = {
            "PET_NODE_RANK": str(number),
            "PET_MASTER_ADDR": "first",
            "PET_MASTER_PORT": "29400",
        }
        found += calls(command, path.parent, **(environment | told))
    return found


def by_skypilot(path: Path) -> list[list[str]]:
    """Every node; the folder is copied to each."""
    (document,) = documents(path)
    count = document["num_nodes"]
    addresses = "\n".join(f"10.0.0.{number}" for number in range(count))
    found = []
    for number in range(count):
        environment = {
            "SKYPILOT_NODE_RANK": str(number),
            "SKYPILOT_NODE_IPS": addresses,
            "SKYPILOT_NUM_NODES": str(count),
        }
        found += calls(["bash", "-c", document["run"]], path.parent, **environment)
    return found


def _mounted(command: list[str], files: dict[str, Any], folder: Path) -> list[str]:
    place = folder / "mounted"
    place.mkdir(exist_ok=True)
    for name, text in files["data"].items():
        (place / name).write_text(text)
    return [word.replace(MOUNT, str(place)) for word in command]
