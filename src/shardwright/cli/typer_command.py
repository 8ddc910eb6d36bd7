"""Command lines that typer reads: help, errors, and all that `light_typer` leaves to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from shardwright.cli.light_typer import Declared, Exit
from shardwright.errors import UsageError


def run(function: Callable[..., None], name: str, words: Sequence[str]) -> int:
    """The exit code of the verb `name`."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(typed(function))
    return _run(app, name, words)


def run_one_of(
    functions: Mapping[str, Callable[..., None]], name: str, about: str, words: Sequence[str]
) -> int:
    """The exit code of the verb `name` whose second word says which function it is; `about` is its
    help.
    """
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, help=about, no_args_is_help=False
    )
    for word, function in functions.items():
        app.command(word)(typed(function))
    return _run(app, name, words)


def typed(function: Callable[..., None]) -> Callable[..., None]:
    """The function with typer's own declarations."""

    @wraps(function)
    def same(*values: Any, **named: Any) -> None:
        function(*values, **named)

    hints = {
        name: _declared(hint)
        for name, hint in get_type_hints(function, include_extras=True).items()
    }
    written = signature(function)
    same.__annotations__ = hints
    same.__signature__ = written.replace(  # type: ignore[attr-defined]
        parameters=[one.replace(annotation=hints[one.name]) for one in written.parameters.values()]
    )
    return same


def _declared(hint: Any) -> Any:
    if get_origin(hint) is not Annotated or not isinstance(get_args(hint)[1], Declared):
        return hint
    kind, light = get_args(hint)
    made = (
        typer.Option(*light.names, **light.settings)
        if light.is_option
        else typer.Argument(**light.settings)
    )
    return Annotated[kind, made]


def _run(app: typer.Typer, name: str, words: Sequence[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not `command.main`, which takes a Ctrl-C for an exit like any other.
        with command.make_context(f"shardwright {name}", list(words)) as context:
            command.invoke(context)
    except (typer.Exit, Exit) as done:
        code: int = done.exit_code
        return code
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")
        raise UsageError(
            message[:1].lower() + message[1:], hint=f"shardwright {name} --help lists what it takes"
        ) from error
    return 0
