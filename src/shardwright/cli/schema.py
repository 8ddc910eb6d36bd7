"""``shardwright schema``: the JSON schema of a file."""

from __future__ import annotations

from typing import Annotated

from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.cli.light_typer import Argument
from shardwright.files.schemas import schema_of
from shardwright.files.text import to_text

Kind = Annotated[str, Argument(metavar="KIND", help="plan, simulation, profile or trace.")]


def schema(
    kind: Kind = "plan",
    *,
    output: flags.Output = None,
    form: flags.AnswerForm,
) -> None:
    """Print the JSON Schema that files of a KIND are checked against."""
    screen.check_writable(output)
    text = to_text(schema_of(kind))
    if output is not None:
        screen.save(output, text)
    else:
        screen.write(text)


main = verb(schema, name="schema")
