"""State of a shell script's interpreter: commands, files and variables so far."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Final

from shardwright.frameworks.shell.parse_control_flow import Case, Function, If, Node, Simple
from shardwright.frameworks.shell.variables_and_positional_parameters import Variables
from shardwright.lazily_compiled_dataclass import dataclass

ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:\[([^\[\]]*)\])?(\+?)=(.*)", re.DOTALL)
Sources = Callable[[str], str | None]
"""Function from a file's name to its text; None = no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Commands that a shell script would start, and files that it writes.

    Args:
        commands: words of each command, with variables expanded.
        files: (name, text) of each file that a here-document makes.
        written: files that other commands write, name -> command.
        missing: scripts that the script reads or starts and that do not exist, name -> line.
        left_out: notes on statements that were not followed, with their lines.
        environment: values of variables at the end.
    """

    commands: tuple[tuple[str, ...], ...]
    files: tuple[tuple[str, str], ...]
    written: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class ScriptState:
    """State of a shell script's interpreter, changed as statements run.

    Args:
        run: runs the nodes of a script.
        held: whether the command before ``&&`` or ``||`` succeeded; None = not known.
        leaving: word that leaves a block, such as `break`, until the block is left.
        depth: nesting depth of functions and scripts.
        piped: here-document whose command continues in a pipe.
    """

    variables: Variables
    sources: Sources
    run: Callable[[ScriptState, Sequence[Node]], None]
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


def tell(state: ScriptState, line: int, text: str, why: str, body: Sequence[Node] = ()) -> None:
    """Append to `state.left_out` a statement that is not followed, why, and names its body sets."""
    names = sorted(set(assigned_names(body)))
    sets = f"; it sets {', '.join(names)[:100]}" if names else ""
    state.left_out.append(f"line {line}: {' '.join(text.split())[:60]}: {why}{sets}")


def assigned_names(nodes: Sequence[Node]) -> list[str]:
    """Names of the variables that nodes assign, also inside their blocks."""
    names: list[str] = []
    for node in nodes:
        if isinstance(node, Simple):
            names += [
                match[1]
                for word in node.statement.text.split()
                if (match := ASSIGNED.fullmatch(word))
            ]
        elif isinstance(node, If | Case):
            names += [name for _, body in node.parts for name in assigned_names(body)]
        else:
            names += assigned_names(node.body)
    return names
