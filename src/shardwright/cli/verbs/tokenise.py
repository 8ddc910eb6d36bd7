"""``shardwright tokenise``: write text as a token file, one token per byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api import prove_or_train_plan as run_plan
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.units import format_count


def tokenise(
    texts: Annotated[
        list[Path] | None,
        Argument(metavar="[TEXT]...", help="Text files; without any, a short sample text."),
    ] = None,
    *,
    output: Annotated[Path, Option("--output", "-o", help="Token file to write.")],
    form: shared_options.AnswerForm,
) -> None:
    """Turn text into a token file for `shardwright run`, one token per byte.

    With another tokenizer, save its token ids by numpy.save.
    """
    screen.check_writable(output)
    count, vocabulary = run_plan.tokenise(tuple(texts or ()), output)
    screen.print_lines(
        form,
        document={"file": str(output), "tokens": count, "vocabulary": vocabulary},
        text=(
            f"{output}: {format_count(count)} tokens, for models with a vocabulary of {vocabulary}"
            " or more\n"
        ),
    )


main = verb(tokenise, name="tokenise")
