"""``shardwright weights``: write a checkpoint as Hugging Face safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwright.api.write_checkpoint_as_huggingface_weights import DTYPES, write_weights
from shardwright.cli.parsing import shared_options
from shardwright.cli.parsing.declare_options_and_parse_command_lines import Argument, Option
from shardwright.cli.parsing.wrap_function_as_command_line_verb import verb
from shardwright.cli.terminal import output_and_progress as screen
from shardwright.units import format_bytes


def weights(
    checkpoints: Annotated[
        Path,
        Argument(
            metavar="CHECKPOINTS",
            help="Folder of `run --checkpoints`, whose newest is taken, or one checkpoint.",
        ),
    ],
    *,
    config: Annotated[
        Path,
        Option("--config", metavar="FILE", help="The model's config.json, which is copied."),
    ],
    output: Annotated[
        Path,
        Option("--output", "-o", metavar="FOLDER", help="Folder to write; it must not exist."),
    ],
    dtype: Annotated[
        str,
        Option(
            "--dtype",
            help=f"Data type of the files: {', '.join(DTYPES)}.",
            show_default="the one that the run computed with",
        ),
    ] = "",
    base: Annotated[
        Path | None,
        Option(
            "--weights",
            metavar="FOLDER",
            help="The run's --weights, for parameters that were not trained.",
        ),
    ] = None,
    form: shared_options.AnswerForm,
) -> None:
    """Write the weights of a checkpoint as Hugging Face safetensors with config.json.

    One tensor is in memory at a time.
    """
    written = write_weights(checkpoints, config=config, folder=output, dtype=dtype, base=base)
    size = format_bytes(sum(f.stat().st_size for f in written.files))
    screen.print_lines(
        form,
        document={
            "checkpoint": str(written.checkpoint),
            "step": written.step,
            "dtype": written.dtype,
            "files": [str(f) for f in written.files],
        },
        text=(
            f"{output}: weights of step {written.step} in {written.dtype}, {size} in"
            f" {len(written.files)} files\n"
        ),
    )


main = verb(weights, name="weights")
