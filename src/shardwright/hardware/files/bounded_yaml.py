"""Reader of YAML into plain values, with limits against small files that take much memory."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from shardwright.errors import ClusterError
from shardwright.hardware.files.yaml_alias_limit import limited_events
from shardwright.units import MAX_INTEGER_BITS

MAX_BYTES: Final = 262_144
_MERGE: Final = "tag:yaml.org,2002:merge"
CLUSTER_FILE: Final = "cluster file"

# Errors that PyYAML's scanner and constructors raise on hostile text: bad dates, huge integers, odd
# tags.
_REFUSED: Final = (
    yaml.YAMLError,
    ValueError,
    OverflowError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
)


_LIBYAML: Final[Any] = getattr(yaml, "CBaseLoader", None)
"""The YAML parser in C, some ten times as fast; PyYAML is also built without it."""
_READ_DIFFERENTLY: Final = re.compile(
    r"[^\n\r"
    r" -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
    r"|[?!%&*]|[|>][-+0-9]*#"
)
"""Characters of a text that libyaml may accept and PyYAML's own parser refuses, or that the two
parse differently.
"""


class _Constructor(Composer, SafeConstructor, Resolver):
    """YAML constructor on parsed events that refuses duplicate keys and merges mappings.

    Mappings are merged by the rules of YAML's merge key.
    """

    def __init__(self, events: Iterable[yaml.Event]) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self._events = deque(events)
        self._flat: set[yaml.MappingNode] = set()

    def check_event(self, *choices: type[yaml.Event]) -> bool:
        """True if the next parser event exists and is of one of the `choices` (of any, if none)."""
        return bool(self._events) and (not choices or isinstance(self._events[0], choices))

    def peek_event(self) -> yaml.Event:
        """Return the next parser event without taking it."""
        return self._events[0]

    def get_event(self) -> yaml.Event:
        """Take the next parser event; `limited_events` has checked the limits before."""
        return self._events.popleft()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace a mapping's merge keys (``<<``) by the entries of the mappings that they name.

        The node's own keys come first, then those of the named mappings in their order. PyYAML's
        own method lets a merged mapping's merged keys come before its own ones.
        """
        if node in self._flat:
            return
        self._flat.add(node)
        _require_distinct_keys(node)
        merged = [(key, value) for key, value in node.value if key.tag == _MERGE]
        node.value = [pair for pair in node.value if pair[0].tag != _MERGE]
        super().flatten_mapping(node)
        taken = {key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
        for key, value in merged:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if not isinstance(source, yaml.MappingNode):
                    raise ConstructorError(
                        None, None, f"{key.value} names no mapping", key.start_mark
                    )
                self.flatten_mapping(source)
                added = [
                    pair
                    for pair in source.value
                    if not (isinstance(pair[0], yaml.ScalarNode) and pair[0].value in taken)
                ]
                node.value = [*added, *node.value]
                taken |= {key.value for key, _ in added if isinstance(key, yaml.ScalarNode)}

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Parse an integer as SafeLoader does, and refuse one of over `MAX_INTEGER_BITS` bits."""
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > MAX_INTEGER_BITS:
            raise ConstructorError(None, None, "a number is too long", node.start_mark)
        return value


def _require_distinct_keys(node: yaml.MappingNode) -> None:
    """Raise a constructor error if a mapping node has a key twice."""
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise ConstructorError(
                    None, None, f"key {key.value[:60]!r} is given twice", key.start_mark
                )
            seen.add(key.value)


_register: Any = _Constructor.add_constructor
_register("tag:yaml.org,2002:int", _Constructor.construct_yaml_int)


def read_yaml(text: str, *, what: str = CLUSTER_FILE) -> object:
    """Parse YAML text into a plain value; ClusterError if it is no YAML or beyond the limits.

    The text has at most 256 KiB, 40,000 nodes and 16 levels with aliases expanded, and no duplicate
    key.

    Args:
        what: name of the text in messages.
    """
    if len(text) > MAX_BYTES:
        raise ClusterError(f"{what} of {len(text)} characters", hint=f"at most {MAX_BYTES}")
    try:
        return _parse_value(text, what)
    except ClusterError:
        raise
    except _REFUSED as error:
        raise ClusterError(
            f"{what} is not YAML: {_problem_text(error)}",
            hint="see the example in the documentation",
        ) from None


def _parse_value(text: str, what: str) -> object:
    """Parse YAML text with libyaml, and with PyYAML's own parser where libyaml refuses the text.

    Values and messages are those of PyYAML's own parser, with libyaml or without.
    """
    if _LIBYAML and not _READ_DIFFERENTLY.search(text):
        try:
            return _Constructor(
                limited_events(yaml.parse(text, Loader=_LIBYAML), what)
            ).get_single_data()
        except ClusterError:
            raise
        except _REFUSED:
            pass
    return _Constructor(
        limited_events(yaml.parse(text, Loader=yaml.SafeLoader), what)
    ).get_single_data()


def read_text_file(path: Path, *, what: str = CLUSTER_FILE) -> str:
    """Read a UTF-8 text file; ClusterError where it is missing, too large or not UTF-8."""
    shown = str(path)[-80:]
    try:
        if not path.is_file():
            hint = (
                "a cluster is an expression such as h100-sxm:64, or a .yaml file"
                if what == CLUSTER_FILE
                else "a .yaml file"
            )
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
        raise ClusterError(
            f"cannot read {what} {shown!r}", hint="is it a file that you may read?"
        ) from None


def _problem_text(error: Exception) -> str:
    """Text of a YAML error, with its line and column."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        return f"{error.problem or 'syntax error'}{where}"
    return "a value cannot be read"
