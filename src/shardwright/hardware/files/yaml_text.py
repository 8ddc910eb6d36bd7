"""From YAML text to plain values, with everything refused that a small file could blow up with."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from shardwright.errors import ClusterError

MAX_BYTES: Final = 262_144
MAX_EVENTS: Final = 40_000
MAX_DEPTH: Final = 16
MAX_BITS: Final = 4096
"""Of an integer."""
CLUSTER_FILE: Final = "cluster file"

# What PyYAML's scanner and constructors let through on hostile text: bad dates, huge integers, odd tags.
_REFUSED: Final = (yaml.YAMLError, ValueError, OverflowError, TypeError, LookupError, AttributeError, RecursionError)


_LIBYAML: Final[Any] = getattr(yaml, "CBaseLoader", None)
"""The parser in C, some ten times as fast; PyYAML is also built without it."""
_READ_DIFFERENTLY: Final = re.compile(
    r"[^\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[?!%]|[|>][-+0-9]*#"
)
"""In a text that libyaml may accept and PyYAML's own parser refuses, or the two take for other events."""


class _Constructor(Composer, SafeConstructor, Resolver):
    """SafeLoader on events that are parsed already, which refuses a key given twice."""

    def __init__(self, events: Iterable[yaml.Event]) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._events = deque(events)

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        return bool(self._events) and (not choices or isinstance(self._events[0], choices))

    def peek_event(self) -> yaml.Event:
        return self._events[0]

    def get_event(self) -> yaml.Event:
        return self._events.popleft()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ConstructorError(None, None, f"key {key.value[:60]!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """As SafeLoader; one that Python would not write out again, as those in base 16 may be, is refused."""
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > MAX_BITS:
            raise ConstructorError(None, None, "a number is too long", node.start_mark)
        return value


_register: Any = _Constructor.add_constructor
_register("tag:yaml.org,2002:int", _Constructor.construct_yaml_int)


def read_yaml(text: str, *, what: str = CLUSTER_FILE) -> object:
    """The plain value of `text`: at most 256 KiB, 40,000 nodes, 16 levels, no aliases, no key twice.

    Args:
        what: the text is, for messages.
    """
    if len(text) > MAX_BYTES:
        raise ClusterError(f"{what} of {len(text)} characters", hint=f"at most {MAX_BYTES}")
    try:
        return _value(text, what)
    except ClusterError:
        raise
    except _REFUSED as error:
        raise ClusterError(f"{what} is not YAML: {_problem(error)}", hint="see the example in the documentation") from None


def _value(text: str, what: str) -> object:
    """The plain value of `text`. What libyaml refuses, PyYAML's own parser reads again: values and messages are those of the latter,
    whether there is a libyaml or not.
    """
    if _LIBYAML and not _READ_DIFFERENTLY.search(text):
        try:
            return _Constructor(_events(text, what, _LIBYAML)).get_single_data()
        except ClusterError:
            raise
        except _REFUSED:
            pass
    return _Constructor(_events(text, what, yaml.SafeLoader)).get_single_data()


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


def _events(text: str, what: str, parser: Any) -> Iterator[yaml.Event]:
    """What `parser` finds in `text`, one after the other; ClusterError where it is an alias, too many or too deep."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=parser)):
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
        yield event


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return f"{error.problem or 'syntax error'}{where}"
    return "a value cannot be read"
