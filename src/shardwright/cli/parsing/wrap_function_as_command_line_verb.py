"""Make a verb from a function with declared options: words of a command line in, exit code out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from shardwright.cli.parsing.declare_options_and_parse_command_lines import (
    Verb,
    call_verb,
    parse_words,
)


def verb(function: Verb, *, name: str) -> Callable[[Sequence[str]], int]:
    """Make a function that parses a verb's words, runs `function` and returns the exit code."""

    def main(words: Sequence[str]) -> int:
        """Parse the words and run the verb; returns its exit code, errors pass through."""
        values = parse_words(function, words)
        return (
            _typer_parser().run(function, name, words)
            if values is None
            else call_verb(function, values)
        )

    return main


def verbs(
    functions: Mapping[str, Verb], *, name: str, about: str
) -> Callable[[Sequence[str]], int]:
    """Make a verb whose first word selects one of `functions`; `about` is its help."""

    def main(words: Sequence[str]) -> int:
        """Run the function that the first word selects on the others; errors pass through."""
        function = functions.get(words[0]) if words else None
        values = None if function is None else parse_words(function, words[1:])
        if function is None or values is None:
            code: int = _typer_parser().run_one_of(functions, name, about, words)
            return code
        return call_verb(function, values)

    return main


def _typer_parser() -> Any:
    """Import the module that parses with typer, which is slow to import."""
    return import_module("shardwright.cli.parsing.parse_with_typer")
