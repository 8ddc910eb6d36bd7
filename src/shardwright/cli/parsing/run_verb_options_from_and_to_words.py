"""Parse the options of `run`, and write them again as command-line words for other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from shardwright.errors import UsageError
from shardwright.execute.launch.run_options_and_report import (
    TEXT,
    RunOptions,
)


def run_options_of(options: Mapping[str, Any], *, data: Sequence[str]) -> RunOptions:
    """The options of a run from their values by name on the command line."""
    same = (
        "steps",
        "checkpoints",
        "every",
        "rate",
        "decay",
        "clip",
        "eps",
        "curve",
        "warmup",
        "least",
        "keep",
        "metrics",
        "tensorboard",
    )
    return RunOptions(
        **{
            name: options[name]
            for name in (*same, "seed", "on", "backend", "transport", "formats", "shuffle")
        },
        data=read_data(data),
        weights=Path(options["weights"]) if options["weights"] is not None else None,
        trace=options["trace"] is not None,
        timeout_s=options["timeout"],
        betas=read_betas(options["betas"]),
        no_decay=read_kinds(options["no-decay"]),
        curve_steps=options["curve-steps"],
        eval_data=read_data(options["eval-data"], flag="--eval-data"),
        eval_every=options["eval-every"],
        eval_batches=options["eval-batches"],
        load_balancing=options["load-balancing"],
        router_bias_update=options["router-bias-update"],
        router_noise=options["router-noise"],
    )


def command_line_words(options: Mapping[str, Any]) -> list[str]:
    """Words ``--name value`` that set options by name, without those False, None or empty."""
    words: list[str] = []
    for name, value in options.items():
        if isinstance(value, bool):
            words += [f"--{name}"] * value
        elif isinstance(value, list):
            words += [word for item in value for word in (f"--{name}", item)]
        elif value not in (None, ""):
            words += [f"--{name}", str(value)]
    return words


def options_on_command_line(context: typer.Context, options: Mapping[str, Any]) -> frozenset[str]:
    """Names of the options that the command line sets, without those at their defaults."""
    sources = {name: context.get_parameter_source(name.replace("-", "_")) for name in options}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )


def absolute_path(path: Path | None) -> str | None:
    """The absolute path as text, or None."""
    return None if path is None else str(path.absolute())


def absolute_file(word: str) -> str:
    """``SEQUENCE=FILE`` with FILE made absolute; a bare ``FILE`` is of the sequence ``text``."""
    ((sequence, path),) = read_data([word])
    return f"{sequence}={path.absolute()}"


def read_kinds(text: str) -> tuple[str, ...]:
    """Split comma-separated words: ``vectors,embeddings`` is two words."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def read_betas(text: str) -> tuple[float, float]:
    """Parse --betas: ``0.9,0.95``.

    Raises:
        UsageError: the text is not two numbers from 0 to below 1.
    """
    words = text.split(",")
    try:
        first, second = (float(word) for word in words)
    except ValueError:
        first = second = -1.0
    if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
        raise UsageError(
            f"--betas {text[:40]!r} are not two numbers from 0 to below 1", hint="--betas 0.9,0.95"
        )
    return first, second


def read_data(words: Sequence[str], *, flag: str = "--data") -> tuple[tuple[str, Path], ...]:
    """Parse --data ``["tokens.npy", "encoder=source.npy"]`` to (sequence, file); no name: ``text``.

    Raises:
        UsageError: a sequence is named twice.
    """
    files: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        sequence, file = (name, path) if equals and name.isidentifier() else (TEXT, word)
        if sequence in files:
            raise UsageError(
                f"{flag} gives two files of {sequence}", hint="one file of tokens for each sequence"
            )
        files[sequence] = Path(file)
    return tuple(files.items())
