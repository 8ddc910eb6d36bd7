"""Hosts of a cluster's nodes, as a host file lists them:
a name a line and, if need be, its slots.
"""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import DataError
from shardwright.lazy_dataclass import dataclass

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_SLOTS: Final = re.compile(r"slots=([1-9][0-9]{0,6})", re.ASCII)
_HINT: Final = "a host a line: node0, or node0 slots=8; # starts a comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node's host: its name, and how many ranks it takes (0 = not said)."""

    name: str
    slots: int = 0


def parse_hosts(text: str, *, name: str) -> tuple[Host, ...]:
    """The hosts of a file, in its order; `name` is for messages.

    Raises:
        DataError: a line is no host, a host is there twice, or there is none.
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
        if not _NAME.fullmatch(words[0]) or len(words) > 2 or (len(words) == 2 and slots is None):
            raise DataError(f"{name}: line {number} {line[:40]!r} is no host", hint=_HINT)
        if words[0] in found:
            raise DataError(
                f"{name}: line {number}: {words[0][:40]} is there twice",
                hint="each host is one node",
            )
        found[words[0]] = Host(name=words[0], slots=int(slots[1]) if slots else 0)
    if not found:
        raise DataError(f"{name} names no host", hint=_HINT)
    return tuple(found.values())
