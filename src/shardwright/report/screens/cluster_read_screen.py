"""The `cluster read` screen: facts found in files with their places, assumptions with reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardwright.hardware.inventories.cluster_from_inventories import ClusterRead
from shardwright.hardware.inventories.node_facts import Assumption, FoundFact
from shardwright.report.terminal_line_wrapping import WrappedText
from shardwright.report.terminal_table import plain_table
from shardwright.report.titled_screen_sections import section
from shardwright.strategy.text.replace_unprintable_characters import printable

MAX_CELL: Final = 400


def render_cluster_facts(read: ClusterRead) -> RenderableType:
    """The ``cluster read`` screen: facts with their places, assumptions with reasons."""
    parts: list[RenderableType] = [WrappedText(Text(read.cluster.described()))]
    parts += _fact_tables("The nodes together", read.found, read.assumed)
    for kind in read.kinds:
        nodes = "1 node" if kind.count == 1 else f"{kind.count:,} nodes"
        parts += _fact_tables(f"{nodes} of {kind.name}", kind.found, kind.assumed)
    return Group(*parts)


def _fact_tables(
    title: str, found: Sequence[FoundFact], assumed: Sequence[Assumption]
) -> list[RenderableType]:
    """Sections with a table of the facts that were found and a table of the assumptions."""
    rows = [(str(entry.what), _safe_text(entry.words), _safe_text(entry.where)) for entry in found]
    parts = (
        [section(f"{title}: found", plain_table(("what", "value", "where"), rows))] if rows else []
    )
    more = [(str(entry.what), _safe_text(entry.value), _safe_text(entry.why)) for entry in assumed]
    return (
        [*parts, section(f"{title}: assumed", plain_table(("what", "value", "why"), more))]
        if more
        else [*parts]
    )


def _safe_text(text: str) -> str:
    """Text of a file without control characters, cut at `MAX_CELL` characters."""
    return printable(text, length=MAX_CELL)


def cluster_facts_document(read: ClusterRead) -> dict[str, Any]:
    """JSON document of ``cluster read``: values in SI units, and the cluster file as text."""
    return {
        "cluster": read.cluster.described(),
        "file": read.text,
        "found": [_fact_document(entry) for entry in read.found],
        "assumed": [_assumption_document(entry) for entry in read.assumed],
        "nodes": [
            {
                "name": kind.name,
                "count": kind.count,
                "found": [_fact_document(entry) for entry in kind.found],
                "assumed": [_assumption_document(entry) for entry in kind.assumed],
            }
            for kind in read.kinds
        ],
    }


def _fact_document(fact: FoundFact) -> dict[str, Any]:
    """JSON object of a fact read from a file: name, value and its place in the file."""
    return {"what": str(fact.what), "value": fact.value, "words": fact.words, "where": fact.where}


def _assumption_document(assumption: Assumption) -> dict[str, Any]:
    """JSON object of an assumption: name, value and reason."""
    return {"what": str(assumption.what), "value": assumption.value, "why": assumption.why}
