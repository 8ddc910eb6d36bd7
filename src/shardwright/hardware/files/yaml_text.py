"""From YAML text to plain values, with everything refused that a small file could blow up with."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from shardwright.errors import ClusterError

MAX_BYTES: Final = 262_144
MAX_EVENTS: Final = 40_000
MAX_DEPTH: Final = 16
CLUSTER_FILE: Final = "cluster file"

# What PyYAML's scanner and constructors let through on hostile text: bad dates, huge integers, odd tags.
_REFUSED: Final = (yaml.YAMLError, ValueError, OverflowError, TypeError, LookupError, AttributeError, RecursionError)


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"key {key.value[:60]!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, *, what: str = CLUSTER_FILE) -> object:
    """The plain value of `text`: at most 256 KiB, 40,000 nodes, 16 levels, no aliases, no key twice.

    Args:
        what: the text is, for messages.
    """
    if len(text) > MAX_BYTES:
        raise ClusterError(f"{what} of {len(text)} characters", hint=f"at most {MAX_BYTES}")
    try:
        _bounded(text, what)
        value: object = yaml.load(text, Loader=_Loader)
    except _REFUSED as error:
        raise ClusterError(f"{what} is not YAML: {_problem(error)}", hint="see the example in the documentation") from None
    return value


def read_file(path: Path, *, what: str = CLUSTER_FILE) -> str:
    """The text of the file at `path`; an error where it is missing, too large or not UTF-8."""
    shown = str(path)[-80:]
    try:
        if not path.is_file():
            hint = "a cluster is an expression such as h100-sxm:64, or a .yaml file" if what == CLUSTER_FILE else "a .yaml file"
            raise ClusterError(f"no {what} {shown!r}", hint=hint)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ClusterError(f"{what} {shown!r} is too large", hint=f"at most {MAX_BYTES} bytes")
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise ClusterError(f"{what} {shown!r} is not UTF-8 text", hint="save it as UTF-8") from None
    except (OSError, ValueError) as error:
        if isinstance(error, ClusterError):
            raise
        raise ClusterError(f"cannot read {what} {shown!r}", hint="is it a file that you may read?") from None


def _bounded(text: str, what: str) -> None:
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if count > MAX_EVENTS:
            raise ClusterError(f"{what} is too long", hint=f"at most {MAX_EVENTS} values")
        if isinstance(event, yaml.AliasEvent):
            raise ClusterError(f"{what} uses a YAML alias", hint="write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise ClusterError(f"{what} is nested too deeply", hint=f"at most {MAX_DEPTH} levels")


def _problem(error: Exception) -> str:
    if isinstance(error, ClusterError):
        raise error
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return f"{error.problem or 'syntax error'}{where}"
    return "a value cannot be read"
