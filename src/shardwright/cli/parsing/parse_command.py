"""Functions with declared parameters as verbs: words of a command line in, exit code out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from shardwright.cli.parsing.light_typer import Verb, call, read_words


def verb(function: Verb, *, name: str) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose arguments, options and help are those of `function`."""

    def main(words: Sequence[str]) -> int:
        values = read_words(function, words)
        return _typer().run(function, name, words) if values is None else call(function, values)

    return main


def verbs(
    functions: Mapping[str, Verb], *, name: str, about: str
) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose second word chooses one of the functions; `about` is its help."""

    def main(words: Sequence[str]) -> int:
        function = functions.get(words[0]) if words else None
        values = None if function is None else read_words(function, words[1:])
        if function is None or values is None:
            code: int = _typer().run_one_of(functions, name, about, words)
            return code
        return call(function, values)

    return main


def _typer() -> Any:
    return import_module("shardwright.cli.parsing.typer_command")
