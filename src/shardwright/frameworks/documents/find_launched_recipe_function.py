"""Choice of the function of a Python file that makes the launched configuration."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.documents.dotted_settings import dotted

RECIPE: Final = "recipe"
"""Setting for a recipe of the framework's own from which a launch begins."""
_PREFERRED: Final = ("pretrain_recipe",)
_BASES: Final = ("_recipe", "_config", "_pretrain_common", "_sft_common", "_peft_common")
Function = ast.FunctionDef


def builds_configuration(node: Function) -> bool:
    """True if a function sets attributes or passes keywords, and returns a value."""
    returns = any(
        isinstance(child, ast.Return) and child.value is not None for child in ast.walk(node)
    )
    sets = any(
        (
            isinstance(child, ast.Assign)
            and any(isinstance(target, ast.Attribute) for target in child.targets)
        )
        or (isinstance(child, ast.Call) and child.keywords)
        for child in ast.walk(node)
    )
    return returns and sets


def launched_function(
    tree: ast.Module, makers: Sequence[str], functions: Mapping[str, Function], name: str
) -> str:
    """Name in `makers` that a file runs, else that no other maker uses; empty = module code."""
    outside = [node for node in tree.body if not isinstance(node, Function | ast.ClassDef)]
    calls = [child for node in outside for child in ast.walk(node) if isinstance(child, ast.Call)]
    if any(
        framework_recipe(call, {}) or (isinstance(call.func, ast.Name) and call.func.id in makers)
        for call in calls
    ):
        return ""
    run = [
        child.id
        for node in outside
        for child in ast.walk(node)
        if isinstance(child, ast.Name) and child.id in makers and isinstance(child.ctx, ast.Load)
    ]
    if run:
        return run[0] if len(set(run)) == 1 else _raise_ambiguous(name, run)
    called = {
        child.id
        for maker in makers
        for child in ast.walk(functions[maker])
        if isinstance(child, ast.Name) and child.id != maker
    }
    roots = [maker for maker in makers if maker not in called and not maker.startswith("_")]
    preferred = [maker for maker in roots if maker in _PREFERRED]
    if len(roots) == 1 or preferred:
        return (preferred or roots)[0]
    return _raise_ambiguous(name, roots or makers)


def _raise_ambiguous(name: str, functions: Sequence[str]) -> str:
    """Raise DataError with the functions from which the user must choose."""
    raise DataError(
        f"{name[:60]} has {len(set(functions))} configurations:"
        f" {', '.join(dict.fromkeys(functions))[:200]}",
        hint=f"--set {RECIPE}=NAME says which of them is launched",
    )


def is_framework_recipe(called: Sequence[str]) -> bool:
    """True if the last name ends as recipes' do (``_recipe``), without ``get_`` or ``default_``."""
    return (
        bool(called)
        and called[-1].endswith(_BASES)
        and not called[-1].startswith(("get_", "default_"))
        and "quant" not in called[-1]
    )


def framework_recipe(node: ast.Call, imported: Mapping[str, str]) -> str:
    """Recipe of the framework that a call starts from, as ``module.function``; empty if none."""
    called = dotted(node.func)
    if not is_framework_recipe(called):
        return ""
    module = called[-2] if len(called) > 1 else imported.get(called[0], "").rpartition(".")[2]
    return f"{module}.{called[-1]}" if module else ""
