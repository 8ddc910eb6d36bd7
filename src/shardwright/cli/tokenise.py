"""``shardwright tokenise``: a file of tokens of texts, one token a byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwright.api.execution import tokenise as made
from shardwright.cli import flags, screen
from shardwright.cli.command import verb
from shardwright.files.text import to_text
from shardwright.units import format_count


def tokenise(
    texts: Annotated[list[Path] | None, typer.Argument(metavar="[TEXT]...", help="Files of text; none = the one that comes along.")] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file of tokens.")],
    as_json: flags.AsJson = False,
    quiet: flags.Quiet = False,
    debug: flags.Debug = False,
) -> None:
    """Make a file of tokens, one a byte, with its description beside it. Tokens of another tokenizer: a row of integers by numpy.save."""
    screen.check_writable(output)
    count, vocabulary = made(tuple(texts or ()), output)
    if as_json:
        screen.write(to_text({"file": str(output), "tokens": count, "vocabulary": vocabulary}))
    elif not quiet:
        screen.write(f"{output}: {format_count(count)} tokens, for models with a vocabulary of {vocabulary} or more\n")


main = verb(tokenise, name="tokenise")
