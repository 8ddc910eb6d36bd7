"""YAML of other programs parsed into plain values, without aliases and duplicate keys."""

from __future__ import annotations

from typing import Any, Final

import yaml

from shardwright.errors import ClusterError

MAX_EVENTS: Final = 2_000_000
MAX_DEPTH: Final = 32
_LOADER: Final = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_REFUSED: Final = (
    yaml.YAMLError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


def parse_yaml(text: str, *, name: str, hint: str) -> Any:
    """Parse one YAML document into mappings, lists, texts (numbers too) and booleans.

    The words ``true`` and ``false`` without quotes become booleans.

    Raises:
        ClusterError: the text is no YAML, has an alias, or is too deep or too long.
    """
    try:
        return _value(text, name=name, hint=hint)
    except ClusterError:
        raise
    except _REFUSED as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f":{mark.line + 1}" if mark else ""
        raise ClusterError(f"{name}{where}: no YAML", hint=hint) from None


def _value(text: str, *, name: str, hint: str) -> Any:
    """Build mappings, lists, texts and booleans of YAML from its parser events, within limits."""
    opened: list[Any] = []
    keys: list[str | None] = []
    root: list[Any] = []

    def add_value(value: Any) -> None:
        """Add a value to the innermost open list, or as the next key or value of a mapping."""
        if not opened:
            root.append(value)
        elif isinstance(opened[-1], list):
            opened[-1].append(value)
        elif keys[-1] is None:
            if not isinstance(value, str) or value in opened[-1]:
                raise ValueError("a key that is none, or given twice")
            keys[-1] = value
        else:
            opened[-1][keys[-1]] = value
            keys[-1] = None

    for count, event in enumerate(yaml.parse(text, Loader=_LOADER)):
        if count > MAX_EVENTS or len(opened) > MAX_DEPTH or len(root) > 1:
            raise ClusterError(
                f"{name} has too many values",
                hint=f"at most {MAX_EVENTS:,}, {MAX_DEPTH} levels deep, in one document",
            )
        if isinstance(event, yaml.AliasEvent):
            where = f":{event.start_mark.line + 1}" if event.start_mark else ""
            raise ClusterError(f"{name}{where}: a YAML alias", hint=hint)
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style in (None, "") and event.implicit[0]
            is_key = bool(opened) and isinstance(opened[-1], dict) and keys[-1] is None
            add_value(
                {"true": True, "false": False}.get(event.value, event.value)
                if plain and not is_key
                else event.value
            )
        elif isinstance(event, yaml.CollectionStartEvent):
            value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            add_value(value)
            opened.append(value)
            keys.append(None)
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
            keys.pop()
    if not root:
        raise ValueError("empty")
    return root[0]
