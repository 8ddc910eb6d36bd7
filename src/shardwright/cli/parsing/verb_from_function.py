"""Make a verb from a function with declared options: words of a command line in, exit code out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from shardwright.cli.parsing.option_declarations import Verb, call_verb, parse_words


def verb(function: Verb, *, name: str) -> Callable[[Sequence[str]], int]:
    """The verb `name` as a function of its words; options and help are those of `function`."""

    def main(words: Sequence[str]) -> int:
        """Run the verb with the words of a command line; returns the exit code."""
        values = parse_words(function, words)
        return (
            _typer().run(function, name, words) if values is None else call_verb(function, values)
        )

    return main


def verbs(
    functions: Mapping[str, Verb], *, name: str, about: str
) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose second word selects one of `functions`; `about` is its help."""

    def main(words: Sequence[str]) -> int:
        """Run the function that the first word selects; returns the exit code."""
        function = functions.get(words[0]) if words else None
        values = None if function is None else parse_words(function, words[1:])
        if function is None or values is None:
            code: int = _typer().run_one_of(functions, name, about, words)
            return code
        return call_verb(function, values)

    return main


def _typer() -> Any:
    """Import the module that parses with typer."""
    return import_module("shardwright.cli.parsing.parse_with_typer")
