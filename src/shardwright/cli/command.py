"""A function with typer's annotations as a verb: words in, exit code out, bad words as `UsageError`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import typer

from shardwright.errors import UsageError


def verb(function: Callable[..., None], *, name: str) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose arguments, options and help are those of `function`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(function)
    return _main(app, name=name)


def verbs(functions: Mapping[str, Callable[..., None]], *, name: str, about: str) -> Callable[[Sequence[str]], int]:
    """The verb `name` whose second word says which function it is; `about` is its help."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help=about, no_args_is_help=False)
    for word, function in functions.items():
        app.command(word)(function)
    return _main(app, name=name)


def _main(app: typer.Typer, *, name: str) -> Callable[[Sequence[str]], int]:
    command = typer.main.get_command(app)

    def main(words: Sequence[str]) -> int:
        try:
            # Not `command.main`, which takes a Ctrl-C for an exit like any other.
            with command.make_context(f"shardwright {name}", list(words)) as context:
                command.invoke(context)
        except typer.Exit as done:
            code: int = done.exit_code
            return code
        except typer.TyperException as error:
            message = error.format_message().rstrip(".")
            raise UsageError(message[:1].lower() + message[1:], hint=f"shardwright {name} --help lists what it takes") from error
        return 0

    return main
