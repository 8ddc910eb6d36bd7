"""A function with declared parameters as a verb: words in, exit code out, bad words as
`UsageError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from shardwright.cli.light_typer import Exit, read_words


def verb(function: Callable[..., None], *, name: str) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose arguments, options and help are those of `function`."""

    def main(words: Sequence[str]) -> int:
        given = read_words(function, words)
        return _typer().run(function, name, words) if given is None else _exit_code(function, given)

    return main


def verbs(
    functions: Mapping[str, Callable[..., None]], *, name: str, about: str
) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose second word says which function it is; `about` is its help."""

    def main(words: Sequence[str]) -> int:
        function = functions.get(words[0]) if words else None
        given = None if function is None else read_words(function, words[1:])
        if function is None or given is None:
            code: int = _typer().run_one_of(functions, name, about, words)
            return code
        return _exit_code(function, given)

    return main


def _exit_code(function: Callable[..., None], given: dict[str, Any]) -> int:
    try:
        function(**given)
    except Exit as done:
        return done.exit_code
    return 0


def _typer() -> Any:
    return import_module("shardwright.cli.typer_command")
