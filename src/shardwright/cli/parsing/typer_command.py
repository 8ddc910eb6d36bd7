"""Command lines that typer reads: help, errors, and all that `light_typer` leaves to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Signature
from typing import Annotated, Any, Final, get_args, get_origin

import typer

from shardwright.cli.parsing.light_typer import Declared, Verb, call, signature_of
from shardwright.cli.parsing.shared_options import OUTPUT
from shardwright.errors import UsageError


def run(function: Verb, name: str, words: Sequence[str]) -> int:
    """Run the verb `name`; returns its exit code."""
    app = typer.Typer(**_SETTINGS)
    app.command()(typed(function))
    return _run(app, name, words)


def run_one_of(functions: Mapping[str, Verb], name: str, about: str, words: Sequence[str]) -> int:
    """Run the function that the word after the verb `name` chooses; returns its exit code.

    Args:
        about: the help text of the verb.
    """
    app = typer.Typer(**_SETTINGS, help=about, no_args_is_help=False)
    for word, function in functions.items():
        app.command(word)(typed(function))
    return _run(app, name, words)


_SETTINGS: Final[dict[str, Any]] = {"add_completion": False, "pretty_exceptions_enable": False}


def typed(function: Verb) -> Verb:
    """The verb as a function of single options, declared with typer's own classes."""

    def same(**values: Any) -> int:
        return call(function, values)

    parameters = [
        parameter.replace(annotation=_declared(parameter.annotation))
        for parameter in signature_of(function)
    ]
    written: Any = same
    written.__doc__ = function.__doc__
    written.__annotations__ = {one.name: one.annotation for one in parameters}
    written.__signature__ = Signature(parameters)
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
    for each in (command, *getattr(command, "commands", {}).values()):
        # Beside --json and --quiet, not in a panel of its own.
        help_option: Any = each.get_help_option(typer.Context(each))
        help_option.rich_help_panel = OUTPUT
    try:
        # Not `command.main`, which takes a Ctrl-C for an exit like any other.
        with command.make_context(f"shardwright {name}", list(words)) as context:
            code: int = command.invoke(context)
            return code
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.TyperException as error:
        message = error.format_message().rstrip(".")
        raise UsageError(
            message[:1].lower() + message[1:], hint=f"shardwright {name} --help lists what it takes"
        ) from error
