"""The package's public names, and that neither they nor the dependencies say more than there is."""

import ast
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import shardwright
from tests.sources import nodes

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULE_OF = {"pyyaml": "yaml"}


def test_every_public_name_is_there() -> None:
    assert len(set(shardwright.__all__)) == len(shardwright.__all__)
    for name in shardwright.__all__:
        assert getattr(shardwright, name) is not None
        assert name in dir(shardwright)


def test_public_names_change_only_on_purpose() -> None:
    assert sorted(shardwright.__all__) == [
        "Answer",
        "Certificate",
        "ClusterError",
        "DataError",
        "Grid",
        "InfeasibleError",
        "ModelError",
        "Plan",
        "Prediction",
        "Request",
        "RuntimeModelError",
        "ServingAnswer",
        "ServingRequest",
        "ShardwrightError",
        "StrategyError",
        "UsageError",
        "__version__",
        "break_even",
        "check",
        "plan",
        "plan_joint",
        "plan_mixed",
        "plan_robust",
        "read_plan_file",
        "serve_simulate",
        "simulate",
        "simulation",
        "validate",
        "what_if",
        "why",
    ]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        import_module("shardwright").__getattr__("plann")


def test_importing_the_package_loads_nothing() -> None:
    code = (
        "import sys, shardwright; print(sorted(m for m in sys.modules if"
        " m.startswith('shardwright.') or m == 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def _names(requirements: list[str]) -> set[str]:
    words = {
        r.split("=")[0].split(">")[0].split("<")[0].split("[")[0].strip().lower()
        for r in requirements
    }
    return {MODULE_OF.get(word, word) for word in words}


def _imports(module: list[ast.AST]) -> set[str]:
    """Top-level names that a module imports, by a statement or by ``import_module`` with a
    literal."""
    found: set[str] = set()
    for node in module:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "import_module"
        ):
            found |= {
                a.value.split(".")[0]
                for a in node.args
                if isinstance(a, ast.Constant) and isinstance(a.value, str)
            }
    return found


def test_dependencies_are_what_the_code_imports() -> None:
    imported = set().union(*map(_imports, nodes().values()))
    outside = imported - set(sys.stdlib_module_names) - {"shardwright"}
    optional = set().union(
        *(
            _names(extra)
            for name, extra in PROJECT["optional-dependencies"].items()
            if name != "dev"
        )
    )
    assert _names(PROJECT["dependencies"]) == outside - optional
