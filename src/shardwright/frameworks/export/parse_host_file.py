"""Parser of a host file: one host name a line, optionally with its slots."""

from __future__ import annotations

import re
from typing import Final

from shardwright.errors import DataError
from shardwright.lazily_compiled_dataclass import dataclass

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}", re.ASCII)
_SLOTS: Final = re.compile(r"slots=([1-9][0-9]{0,6})", re.ASCII)
_HINT: Final = "a host a line: node0, or node0 slots=8; # starts a comment"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEntry:
    """A line of a host file: host name and number of ranks that it takes (0 = not given)."""

    name: str
    slots: int = 0


def parse_hosts(text: str, *, name: str) -> tuple[HostEntry, ...]:
    """Parse a host file to its hosts, in order.

    Raises:
        DataError: a line is no host, a host is there twice, or there is no host.
    """
    hosts: dict[str, HostEntry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = _SLOTS.fullmatch(words[1]) if len(words) == 2 else None
        if not _NAME.fullmatch(words[0]) or len(words) > 2 or (len(words) == 2 and slots is None):
            raise DataError(f"{name}: line {number} {line[:40]!r} is no host", hint=_HINT)
        if words[0] in hosts:
            raise DataError(
                f"{name}: line {number}: {words[0][:40]} is there twice",
                hint="each host is one node",
            )
        hosts[words[0]] = HostEntry(name=words[0], slots=int(slots[1]) if slots else 0)
    if not hosts:
        raise DataError(f"{name} names no host", hint=_HINT)
    return tuple(hosts.values())
