"""Options of a run, kept beside its checkpoints: a resumed run uses them where no others are given.
Needs no PyTorch.
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
"""Where a run's facts stand in the file (`launch.resumed`)."""
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
"""Options that are remembered, by their names in the command line; files by their whole paths."""


def stored_options(folder: Path | None) -> dict[str, Any]:
    """Options of the run whose checkpoints a folder has, of `KEPT`; empty where none are known (a
    folder of an earlier version).
    """
    if folder is None:
        return {}
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {name: found[name] for name in KEPT if name in found} if isinstance(found, dict) else {}


def merge_stored_options(
    options: Mapping[str, Any], before: Mapping[str, Any], *, given: Collection[str]
) -> dict[str, Any]:
    """The options with those of before in the place of what was not `given`."""
    return {
        name: before[name] if name in before and name not in given else value
        for name, value in options.items()
    }


def changed_options(options: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, ...]:
    """Options that differ from the earlier ones: ``--rate 0.1 (was 0.001)``."""
    return tuple(
        f"--{name} {_shown(options[name])} (was {_shown(before[name])})"
        for name in before
        if options[name] != before[name]
    )


def store_options(folder: Path, options: Mapping[str, Any], *, facts: Mapping[str, Any]) -> None:
    """Write the options of `KEPT`, and what else the loss depends on, beside the checkpoints, whole
    or not at all.

    Args:
        facts: of `launch.resumed.facts_of`.

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


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
