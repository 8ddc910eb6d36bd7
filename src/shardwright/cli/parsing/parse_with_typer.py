"""Run a verb through typer: help texts, error messages and unusual command lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Signature, cleandoc
from typing import Annotated, Any, Final, get_args, get_origin

import typer

from shardwright.cli.parsing.declare_options_and_parse_command_lines import (
    Declaration,
    Verb,
    call_verb,
    declared_parameters,
)
from shardwright.cli.parsing.shared_options import OUTPUT
from shardwright.errors import UsageError


def run(function: Verb, name: str, words: Sequence[str]) -> int:
    """Parse the words of the verb `name` with typer and run it; returns its exit code."""
    app = typer.Typer(**_SETTINGS)
    app.command()(with_typer_declarations(function))
    return _run(app, name, words)


def run_one_of(functions: Mapping[str, Verb], name: str, about: str, words: Sequence[str]) -> int:
    """Run the function that the word after the verb `name` selects; returns its exit code.

    Args:
        about: the help text of the verb.
    """
    app = typer.Typer(**_SETTINGS, help=about, no_args_is_help=False)
    for word, function in functions.items():
        app.command(word)(with_typer_declarations(function))
    return _run(app, name, words)


_SETTINGS: Final[dict[str, Any]] = {"add_completion": False, "pretty_exceptions_enable": False}


def with_typer_declarations(function: Verb) -> Verb:
    """The verb as a function of single options, declared with typer's own classes."""

    def call_with_values(**values: Any) -> int:
        """Call the verb with the values that typer parsed."""
        return call_verb(function, values)

    parameters = [
        parameter.replace(annotation=_typer_hint(parameter.annotation))
        for parameter in declared_parameters(function)
    ]
    annotated: Any = call_with_values
    annotated.__doc__ = one_line_paragraphs(function.__doc__ or "")
    annotated.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    annotated.__signature__ = Signature(parameters)
    return call_with_values


def one_line_paragraphs(docstring: str) -> str:
    """Text with each paragraph on one line, which a terminal then breaks at its own width."""
    paragraphs = cleandoc(docstring).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _typer_hint(hint: Any) -> Any:
    """Convert a type hint with our declaration to typer's Option or Argument; others unchanged."""
    if get_origin(hint) is not Annotated or not isinstance(get_args(hint)[1], Declaration):
        return hint
    kind, declaration = get_args(hint)
    typer_declaration = (
        typer.Option(*declaration.names, **declaration.settings)
        if declaration.is_option
        else typer.Argument(**declaration.settings)
    )
    return Annotated[kind, typer_declaration]


def _run(app: typer.Typer, name: str, words: Sequence[str]) -> int:
    """Run a typer application on words; returns its exit code, or raises UsageError."""
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
