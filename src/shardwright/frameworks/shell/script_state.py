"""The state of reading a shell script: commands, files and variables so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from shardwright.frameworks.shell.parse_structure import Case, Function, If, Node, Simple
from shardwright.frameworks.shell.variables import Variables
from shardwright.lazy_dataclass import dataclass

ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\[\]]*)\])?(\+?)=(.*)", re.DOTALL)
Sources = Callable[[str], str | None]
"""Name of a file -> its text; None = it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The commands that a script would start, and the files that it writes.

    Args:
        commands: words of each, variables in their places.
        files: text of each here-document that goes into a file, by its name.
        written: files that a command writes that is not followed, name -> that command.
        missing: scripts that it reads or starts and that are not there, name -> its line.
        left_out: what was not followed, with its line.
        environment: values of variables at the end.
    """

    commands: tuple[tuple[str, ...], ...]
    files: tuple[tuple[str, str], ...]
    written: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class State:
    """The state of reading a script, changed as its statements are followed.

    Args:
        run: runs the nodes of a script.
        held: whether what stood before ``&&`` or ``||`` did; None = not known.
        leaving: the word that ended a block, until what it leaves is left.
        depth: of functions and scripts inside each other.
        piped: a here-document whose command goes on in a pipe.
    """

    variables: Variables
    sources: Sources
    run: Callable[[State, Sequence[Node]], None]
    commands: list[tuple[str, ...]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    prefixed: dict[str, str] = field(default_factory=dict)
    held: bool | None = True
    leaving: str = ""
    steps: int = 0
    depth: int = 0
    piped: str = ""


def tell(state: State, line: int, text: str, why: str, body: Sequence[Node] = ()) -> None:
    """Note what is not followed, and the variables that it would set."""
    names = sorted(set(set_in(body)))
    sets = f"; it sets {', '.join(names)[:100]}" if names else ""
    state.left_out.append(f"line {line}: {' '.join(text.split())[:60]}: {why}{sets}")


def set_in(nodes: Sequence[Node]) -> list[str]:
    """Names of the variables that nodes set."""
    found: list[str] = []
    for node in nodes:
        if isinstance(node, Simple):
            found += [
                match[1]
                for word in node.statement.text.split()
                if (match := ASSIGNED.fullmatch(word))
            ]
        elif isinstance(node, If | Case):
            found += [name for _, body in node.parts for name in set_in(body)]
        else:
            found += set_in(node.body)
    return found
