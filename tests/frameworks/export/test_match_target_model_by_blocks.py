"""Names of a plan, its model and its cluster are others' words: whatever they are, the files of an
export do the same."""

from __future__ import annotations

import ast
import json
from dataclasses import replace

import pytest
import yaml

from shardwright.api.exports.export_plan import export_plan
from shardwright.api.plan_and_problem_from_file import PlanOfProblem
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import ExportFile
from shardwright.frameworks.registry import TARGETS
from shardwright.strategy.text.grid_notation import parse_grid
from tests.frameworks.plans import stored

NAMES = (
    "a\nrm -rf x",
    '"""\nimport os\n"""',
    "\\",
    "'; x; '",
    "$(x)",
    "a: b\n- c",
    "\u2028x",
    "\ud800",
    "\x00",
    "${x}",
    "*/ x",
    "%s {x}",
)


def meaning(file: ExportFile) -> object:
    """What a file does: without comments and docstrings."""
    file.text.encode()
    suffix = file.name.rpartition(".")[2]
    if suffix == "py":
        tree = ast.parse(file.text)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Module | ast.FunctionDef)
                and ast.get_docstring(node) is not None
            ):
                node.body = node.body[1:]
        return ast.dump(tree)
    if suffix in ("yaml", "yml"):
        return list(yaml.safe_load_all(file.text))
    if suffix == "json":
        document = json.loads(file.text)
        return {key: value for key, value in document.items() if key not in ("plan", "cluster")}
    return [line for line in file.text.splitlines() if not line.startswith("#")]


def meant(one: PlanOfProblem, target: str) -> dict[str, object]:
    found = export_plan(one, target=target, allow_lossy=True)
    return {file.name: meaning(file) for file in (*found.files, *found.beside)}


@pytest.mark.parametrize("target", TARGETS)
def test_names_do_nothing(target: str) -> None:
    one = stored(parse_grid("dp8 zero0"), runtime="megatron-core")
    plain = meant(one, target)
    assert plain
    for name in NAMES:
        model = replace(one.problem.model, name=name)
        assert (
            meant(
                replace(one, name=name, cluster=name, problem=replace(one.problem, model=model)),
                target,
            )
            == plain
        ), repr(name)
