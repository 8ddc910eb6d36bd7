"""Options of a run, stored with its checkpoints and used by a resumed run.

Options that are given again replace them. Needs no PyTorch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from shardwright.errors import OutputError

FILE: Final = "run.json"
FACTS: Final = "facts"
"""Key of a run's facts in the file (`launch.compare_run_facts_on_resume`)."""
KEPT: Final = (
    *(
        "weights",
        "every",
        "rate",
        "decay",
        "no-decay",
        "betas",
        "eps",
        "curve",
        "curve-steps",
        "warmup",
        "least",
        "keep",
        "clip",
        "seed",
    ),
    "formats",
    *(
        "shuffle",
        "load-balancing",
        "router-bias-update",
        "router-noise",
        "eval-data",
        "eval-every",
        "eval-batches",
        "profile",
    ),
)
"""Options that are stored, by their command-line names; files by their full paths."""


def stored_options(folder: Path | None) -> dict[str, Any]:
    """Options of the run whose checkpoints are in a folder; empty if none are stored."""
    if folder is None:
        return {}
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return (
        {name: document[name] for name in KEPT if name in document}
        if isinstance(document, dict)
        else {}
    )


def merge_stored_options(
    options: Mapping[str, Any], stored: Mapping[str, Any], *, given: Collection[str]
) -> dict[str, Any]:
    """Options of a resumed run: given ones as given, others as the earlier run stored them."""
    return {
        name: stored[name] if name in stored and name not in given else value
        for name, value in options.items()
    }


def changed_options(options: Mapping[str, Any], earlier: Mapping[str, Any]) -> tuple[str, ...]:
    """Message text of each option that differs from its earlier value: ``--rate 2 (was 1)``."""
    return tuple(
        f"--{name} {_option_text(options[name])} (was {_option_text(earlier[name])})"
        for name in earlier
        if options[name] != earlier[name]
    )


def store_options(folder: Path, options: Mapping[str, Any], *, facts: Mapping[str, Any]) -> None:
    """Write options and facts of a run beside its checkpoints, atomically.

    Args:
        facts: the facts of `launch.compare_run_facts_on_resume.facts_of`.

    Raises:
        OutputError: the folder cannot be written to.
    """
    text = json.dumps({**{name: options[name] for name in KEPT}, FACTS: facts}, indent=1)
    draft = folder / f".{FILE}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        draft.write_text(text, encoding="utf-8")
        draft.replace(folder / FILE)
    except OSError as error:
        raise OutputError(
            f"{folder}: {error.strerror}",
            hint="--checkpoints takes a folder that can be written to",
        ) from None


def _option_text(value: Any) -> str:
    """An option's value as text; lists are joined by spaces."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
