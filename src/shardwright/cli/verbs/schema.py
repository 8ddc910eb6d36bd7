"""``shardwright schema``: print the JSON Schema of a kind of file."""

from __future__ import annotations

from typing import Annotated

from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.files.canonical_json import to_text
from shardwright.files.json_schemas import schema_of

Kind = Annotated[str, Argument(metavar="KIND", help="plan, simulation, profile or trace.")]


def schema(
    kind: Kind = "plan",
    *,
    output: shared_options.Output = None,
    form: shared_options.AnswerForm,
) -> None:
    """Print the JSON Schema for files of a KIND."""
    screen.check_writable(output)
    text = to_text(schema_of(kind))
    if output is not None:
        screen.save(output, text)
    else:
        screen.write(text)


main = verb(schema, name="schema")
