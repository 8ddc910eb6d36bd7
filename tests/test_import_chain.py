"""The longest chain of modules that import each other: a reader follows no more than that."""

from __future__ import annotations

from functools import cache

import pytest

MOST_MODULES = 28
"""Modules of the longest chain of imports below `shardwright`."""


def test_the_longest_chain_of_imports() -> None:
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("shardwright", exclude_type_checking_imports=True)

    @cache
    def longest_from(module: str) -> tuple[str, ...]:
        chains = [longest_from(name) for name in graph.find_modules_directly_imported_by(module)]
        return (module, *max(chains, key=len, default=()))

    chain = max((longest_from(module) for module in sorted(graph.modules)), key=len)
    assert len(chain) > 20
    assert len(chain) <= MOST_MODULES, (
        "move what the upper of two modules needs into a module below both: " + " -> ".join(chain)
    )
