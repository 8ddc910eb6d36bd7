"""Functions without a door from Python are called by compiled functions alone: a call from
elsewhere would crash the process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.sources import trees

DOORLESS = {"inner", "inlined"}
COMPILED = {"compiled", "allocation_free", *DOORLESS}


def decorators(node: ast.AST) -> set[str]:
    return (
        {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
        if isinstance(node, ast.FunctionDef)
        else set()
    )


def named_outside(tree: ast.AST) -> Iterator[str]:
    """Names read outside compiled functions, but for those that are asked for as they are
    written."""
    for child in ast.iter_child_nodes(tree):
        if decorators(child) & COMPILED or (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Name)
            and child.func.id == "python_form"
        ):
            continue
        if isinstance(child, ast.Name | ast.Attribute):
            yield child.id if isinstance(child, ast.Name) else child.attr
        yield from named_outside(child)


def doorless(tree: ast.Module) -> set[str]:
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and decorators(node) & DOORLESS
    }


def test_functions_without_a_door_are_called_by_compiled_ones_alone() -> None:
    found = 0
    for module, tree in trees().items():
        own = doorless(tree)
        found += len(own)
        # A module that imports such a function reads it in the same way.
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module
            for alias in node.names
            if node.module in trees() and alias.name in doorless(trees()[node.module])
        }
        if own | imported:
            assert not (own | imported) & set(named_outside(tree)), module
    assert found > 20


def test_a_call_from_python_is_found() -> None:
    tree = ast.parse("@inner\ndef f(): pass\n@compiled\ndef g(): f()\ndef h(): f()\n")
    assert doorless(tree) == {"f"}
    assert "f" in set(named_outside(tree))
    assert "f" not in set(named_outside(ast.Module(body=tree.body[:2], type_ignores=[])))
    assert "f" not in set(named_outside(ast.parse("def h(): python_form(f)(1)\n")))
    assert "f" in set(named_outside(ast.parse("def h(): plain(g)(f(1))\n")))
