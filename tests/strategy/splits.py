"""Split trees from text."""

from __future__ import annotations

from shardwright.strategy.plan.operator_split_tree import Split
from shardwright.strategy.text.split_tree_notation import Cursor, read_split


def parse_split(text: str) -> Split | None:
    """The tree that `text` says.

    Raises:
        StrategyError: it says none.
    """
    cursor = Cursor(text=text)
    tree = read_split(cursor)
    if cursor.peek():
        raise cursor.error("expected the end of the split")
    return tree
