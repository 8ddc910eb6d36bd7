"""Every module is reached from a verb, a function of the api, or an entry of a registry: nothing
lies in the package unused."""

import ast
from collections import defaultdict
from collections.abc import Iterator

from tests.sources import nodes, registered, trees

ROOTS = ("shardwright", "shardwright.__main__", "shardwright.cli.main", "shardwright.build_kernels")


def named_in(module: str) -> Iterator[str]:
    """Modules that a module imports, or names as "module" or "module:attribute"."""
    for targets in registered(module).values():
        yield from (target.partition(":")[0] for target in targets)
    for node in nodes()[module]:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


def test_every_module_is_reached() -> None:
    edges: dict[str, set[str]] = defaultdict(set)
    modules = trees()
    for name in modules:
        edges[name] = {other for other in named_in(name) if other in modules}
        # A module's package is imported with it.
        edges[name] |= {parent for parent in [name.rpartition(".")[0]] if parent}
    waiting = [*ROOTS, *(name for name in modules if name.startswith("shardwright.api"))]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += edges[name]
    assert not sorted(set(modules) - reached)


def test_the_walk_sees_an_unreached_module() -> None:
    """A verb's module is found by its name in the table of verbs alone, and a name that no module
    has is none."""
    verbs = set(named_in("shardwright.cli.verb_table"))
    assert "shardwright.cli.verbs.plan" in verbs
    assert "shardwright.cli.verbs.plan" not in set(named_in("shardwright.cli.main")) & set(trees())
