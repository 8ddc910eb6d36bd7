"""Size limits of a YAML text with every alias expanded, checked before any value is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import yaml

from shardwright.errors import ClusterError
from shardwright.lazily_compiled_dataclass import dataclass

MAX_EVENTS: Final = 40_000
MAX_DEPTH: Final = 16
MAX_ALIASES: Final = 1_000
_ENDS: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


@dataclass(slots=True)
class _Part:
    """A mapping or sequence of YAML events that is still open.

    Args:
        anchor: name of its YAML anchor; None = it has none.
        nodes, levels: its nodes and its nesting depth so far, with every alias expanded; both count
            the collection itself.
    """

    anchor: str | None
    nodes: int = 1
    levels: int = 1


def limited_events(events: Iterable[yaml.Event], what: str) -> Iterator[yaml.Event]:
    """Yield YAML parser events unchanged; raise ClusterError at the event that exceeds a limit.

    A text may have at most `MAX_EVENTS` events, `MAX_ALIASES` aliases, and, with every alias
    expanded, `MAX_EVENTS` nodes and `MAX_DEPTH` levels. Ten lines of ten aliases, each to the line
    before, expand to ten billion nodes. So the sizes of anchored values are added up, and no value
    is copied.

    Args:
        events: parser events of the text, in order.
        what: name of the text in error messages.

    Raises:
        ClusterError: the text exceeds a limit, or an alias names a value that contains the alias or
            an anchor that is not defined before it.
    """
    open_parts: list[_Part] = []
    sizes: dict[str, tuple[int, int]] = {}
    aliases = 0
    for count, event in enumerate(events):
        if count > MAX_EVENTS:
            raise ClusterError(f"{what} is too long", hint=f"at most {MAX_EVENTS} values")
        aliases += isinstance(event, yaml.AliasEvent)
        if aliases > MAX_ALIASES:
            raise ClusterError(f"{what} has too many YAML aliases", hint=f"at most {MAX_ALIASES}")
        if isinstance(event, yaml.CollectionStartEvent):
            open_parts.append(_Part(event.anchor))
            _require_levels(len(open_parts), what)
        elif isinstance(event, (*_ENDS, yaml.AliasEvent, yaml.ScalarEvent)):
            nodes, levels = _completed_size(event, open_parts, sizes, what)
            _add_to_container(open_parts, nodes, levels, what)
        yield event


def _completed_size(
    event: yaml.Event, open_parts: list[_Part], sizes: dict[str, tuple[int, int]], what: str
) -> tuple[int, int]:
    """(nodes, nesting levels) of the value that an event completes, aliases expanded.

    Where the value has an anchor, its size is stored in `sizes`.
    """
    if isinstance(event, yaml.AliasEvent):
        return _anchored_size(event.anchor, open_parts, sizes, what)
    if isinstance(event, _ENDS):
        part = open_parts.pop()
        nodes, levels, anchor = part.nodes, part.levels, part.anchor
    else:
        nodes, levels, anchor = 1, 0, event.anchor if isinstance(event, yaml.ScalarEvent) else None
    if anchor is not None:
        sizes[anchor] = (nodes, levels)
    return nodes, levels


def _anchored_size(
    anchor: str | None, open_parts: list[_Part], sizes: dict[str, tuple[int, int]], what: str
) -> tuple[int, int]:
    """(nodes, nesting levels) of an alias's value; ClusterError if undefined or not complete."""
    anchor = anchor or ""
    shown = f"{what}: the YAML alias *{anchor[:40]}"
    if any(part.anchor == anchor for part in open_parts):
        raise ClusterError(
            f"{shown} names a part that it stands in", hint="an alias of a part that is complete"
        )
    if anchor not in sizes:
        raise ClusterError(
            f"{shown} names nothing", hint=f"&{anchor[:40]} before the value that it repeats"
        )
    return sizes[anchor]


def _add_to_container(open_parts: list[_Part], nodes: int, levels: int, what: str) -> None:
    """Add a completed value's nodes and levels to its collection; ClusterError above a limit."""
    _require_levels(len(open_parts) + levels, what)
    if not open_parts:
        return
    around = open_parts[-1]
    around.nodes += nodes
    around.levels = max(around.levels, levels + 1)
    if around.nodes > MAX_EVENTS:
        raise ClusterError(
            f"{what} is too long with its YAML aliases written out",
            hint=f"at most {MAX_EVENTS} values",
        )


def _require_levels(levels: int, what: str) -> None:
    """Raise ClusterError if the nesting is deeper than `MAX_DEPTH`."""
    if levels > MAX_DEPTH:
        raise ClusterError(f"{what} is nested too deeply", hint=f"at most {MAX_DEPTH} levels")
