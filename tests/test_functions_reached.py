"""Every function, class and constant of a module is used by the package itself: what only tests
call stands with the tests."""

import ast
from functools import cache

import pytest

from tests.sources import SOURCE, nodes, registered, trees, walk

Name = tuple[str, str]
"""A module, and what it defines."""


def defined(node: ast.stmt) -> list[str]:
    """Names that a statement of a module gives something."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [name.id for target in targets for name in walk(target) if isinstance(name, ast.Name)]


@cache
def defined_names() -> dict[str, set[str]]:
    return {
        module: {name for node in tree.body for name in defined(node)}
        for module, tree in trees().items()
    }


def imported(module: str) -> dict[str, Name]:
    """What a module calls by a name of another module."""
    tree, known = trees()[module], nodes()[module]
    found = [
        node
        for node in (known if known[0] is tree else walk(tree))
        if isinstance(node, ast.ImportFrom)
    ]
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in found
        for alias in node.names
    }


def used(module: str, node: ast.AST, known: dict[str, Name]) -> set[Name]:
    """What a statement names: of its own module, imported, of an imported module, or by a text:
    ``module:name``, or all of a ``module``."""
    found: set[Name] = set()
    for part in walk(node):
        if isinstance(part, ast.Name):
            found.add(
                (module, part.id)
                if part.id in defined_names()[module]
                else known.get(part.id, ("", ""))
            )
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found.add((".".join(known.get(part.value.id, ("", ""))), part.attr))
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            where, _, name = part.value.partition(":")
            found |= (
                {(where, name)}
                if name
                else {(where, one) for one in defined_names().get(where, ())}
            )
    return found


@cache
def statements(module: str, tree: ast.Module) -> list[tuple[list[str], set[Name]]]:
    """What each statement of a module but its imports defines and names."""
    known = imported(module)
    return [
        (defined(node), used(module, node, known))
        for node in tree.body
        if not isinstance(node, ast.Import | ast.ImportFrom)
    ]


def unused() -> set[Name]:
    """Definitions that nothing reaches from modules' own statements, the command line or the public
    names."""
    uses: dict[Name, set[Name]] = {}
    reached: set[Name] = {("shardwright.__main__", "main")}
    for module, tree in trees().items():
        if module == "shardwright":
            reached |= set(imported(module).values())
        for names, found in statements(module, tree):
            for name in names:
                uses.setdefault((module, name), set()).update(found)
                for target in registered(module).get(name, ()):
                    where, _, attribute = target.partition(":")
                    uses[module, name].add((where, attribute))
            if not names:
                reached |= found
    waiting = list(reached)
    while waiting:
        fresh = uses.get(waiting.pop(), set()) - reached
        reached |= fresh
        waiting += fresh
    return {
        (module, name)
        for module, name in uses
        if not name.startswith("__") and module != "shardwright"
    } - reached


def test_what_a_module_defines_is_used_by_the_package() -> None:
    assert sorted(unused()) == []


def test_the_walk_sees_what_nothing_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (SOURCE / "shardwright" / "units.py").read_text(encoding="utf-8")
    monkeypatch.setitem(
        trees(), "shardwright.units", ast.parse(f"{text}\n\ndef never() -> int:\n    return GIB\n")
    )
    assert unused() == {("shardwright.units", "never")}
