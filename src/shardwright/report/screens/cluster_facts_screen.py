"""A cluster that was read from files: what was found, and where, and what was assumed, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.hardware.inventories.node_facts import Assumption, FoundFact
from shardwright.hardware.inventories.read_inventory import ClusterRead
from shardwright.report.line_breaking import Words
from shardwright.report.screens.plan_screen import section
from shardwright.report.table_style import plain_table
from shardwright.strategy.text.printable import printable

MAX_CELL: Final = 400


def render_read(read: ClusterRead) -> RenderableType:
    """The screen of ``cluster read``: facts with their places, assumptions with reasons."""
    parts: list[RenderableType] = [Words(Text(read.cluster.described()))]
    parts += _facts("The nodes together", read.found, read.assumed)
    for kind in read.kinds:
        nodes = "1 node" if kind.count == 1 else f"{kind.count:,} nodes"
        parts += _facts(f"{nodes} of {kind.name}", kind.found, kind.assumed)
    return Group(*parts)


def _facts(
    title: str, found: Sequence[FoundFact], assumed: Sequence[Assumption]
) -> list[RenderableType]:
    rows = [(str(one.what), _cell(one.words), _cell(one.where)) for one in found]
    parts = (
        [section(f"{title}: found", plain_table(("what", "value", "where"), rows))] if rows else []
    )
    more = [(str(one.what), _cell(one.value), _cell(one.why)) for one in assumed]
    return (
        [*parts, section(f"{title}: assumed", plain_table(("what", "value", "why"), more))]
        if more
        else [*parts]
    )


def _cell(text: str) -> str:
    """Words that others chose, as a terminal may show them."""
    return printable(text, length=MAX_CELL)


def read_document(read: ClusterRead) -> dict[str, Any]:
    """The same for programs: values in SI units, and the cluster file as text."""
    return {
        "cluster": read.cluster.described(),
        "file": read.text,
        "found": [_found(one) for one in read.found],
        "assumed": [_assumed(one) for one in read.assumed],
        "nodes": [
            {
                "name": kind.name,
                "count": kind.count,
                "found": [_found(one) for one in kind.found],
                "assumed": [_assumed(one) for one in kind.assumed],
            }
            for kind in read.kinds
        ],
    }


def _found(one: FoundFact) -> dict[str, Any]:
    return {"what": str(one.what), "value": one.value, "words": one.words, "where": one.where}


def _assumed(one: Assumption) -> dict[str, Any]:
    return {"what": str(one.what), "value": one.value, "why": one.why}
