"""Facts that a run's loss depends on beside its options, compared when a run resumes.

They are stored with the checkpoints. Needs no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import numpy as np

from shardwright.errors import DataError, UsageError, nearest
from shardwright.execute.checkpoints.stored_run_options import FACTS, FILE
from shardwright.execute.launch.check_options_before_start import run_settings
from shardwright.execute.launch.run_options_and_report import RunOptions
from shardwright.execute.training.mapped_arrays import map_array
from shardwright.program.training_problem import Problem
from shardwright.strategy.plan.plan import Plan

WORDS: Final[Mapping[str, str]] = {
    "data": "the tokens of --data",
    "seq-len": "the length of sequences",
    "global-batch": "the samples of a step",
    "number-formats": "the plan's number formats",
    "microbatch": "the samples of a microbatch, of which the load-balancing loss is",
}
"""Facts that may differ, by the word that accepts the difference (``--accept``)."""
KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "data": (dict,),
    "seq-len": (dict,),
    "global-batch": (int,),
    "number-formats": (dict, type(None)),
    "microbatch": (list, type(None)),
}
"""Type of each fact in the file; a value of another type is ignored."""
WHOLE_BYTES: Final = 1 << 28
"""A larger file is identified by its size and by this many bytes in evenly spread pieces."""
PIECE_BYTES: Final = 1 << 16


def facts_of(problem: Problem, plan: Plan, options: RunOptions) -> dict[str, Any]:
    """Facts of a run on which its loss depends, by word of --accept; None where it does not.

    Raises:
        DataError: a file of tokens cannot be read; as `run_settings`.
    """
    job, runtime = problem.job, problem.runtime
    formats = {
        "compute": job.compute.value,
        "parameter": job.parameter.value,
        "activation": job.activation.value,
        "gradient": runtime.gradient_dtype.value,
        "gradient wire": (job.gradient_wire or runtime.gradient_dtype).value,
        "optimizer states": [state.value for state in job.optimizer.states],
        "master copy": job.optimizer.master.value if job.optimizer.master else None,
    }
    balanced = run_settings(problem, options).load_balancing
    return {
        "data": {name: digest_of(path) for name, path in options.data},
        "seq-len": {sequence.name: sequence.tokens for sequence in job.sequences},
        "global-batch": job.global_batch,
        "number-formats": formats if options.formats == "job" else None,
        "microbatch": (
            sorted({lane.samples // lane.microbatches for lane in plan.lanes}) if balanced else None
        ),
    }


def digest_of(path: Path) -> str:
    """Text "shape dtype digest" of a token file; large files are digested in spread pieces.

    Of a large file, the digest covers evenly spread pieces.

    Raises:
        DataError: as `map_array`.
    """
    array = map_array(path, what="tokens", hint="make one of a text: shardwright tokenise")
    flat = (
        np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if array.nbytes <= WHOLE_BYTES
        else _spread_pieces(array)
    )
    digest = blake2b(flat.tobytes(), digest_size=16).hexdigest()
    return f"{'x'.join(map(str, array.shape))} {array.dtype.name} {digest}"


def _spread_pieces(array: np.ndarray) -> np.ndarray:
    """Bytes of a large array in pieces at equal distances, with its first and last bytes."""
    flat = array.reshape(-1).view(np.uint8)
    starts = np.linspace(0, flat.size - PIECE_BYTES, WHOLE_BYTES // PIECE_BYTES).astype(np.int64)
    return np.concatenate([flat[start : start + PIECE_BYTES] for start in starts])


def stored_facts(folder: Path) -> dict[str, Any]:
    """Facts of the run whose checkpoints are in a folder; empty if none are stored."""
    try:
        document = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    facts = document.get(FACTS) if isinstance(document, dict) else None
    if not isinstance(facts, dict):
        return {}
    return {
        word: facts[word]
        for word, kind in KINDS.items()
        if word in facts and isinstance(facts[word], kind)
    }


def require_words(accepted: Collection[str]) -> None:
    """Raise UsageError for a word of ``--accept`` that names no fact of a run.

    Raises:
        UsageError: a word is not in `WORDS`.
    """
    for word in accepted:
        if word not in WORDS:
            raise UsageError(f"--accept {word[:40]!r} is unknown", hint=nearest(word, WORDS))


def compare_facts(
    stored: Mapping[str, Any], now: Mapping[str, Any], *, accepted: Collection[str], folder: Path
) -> tuple[str, ...]:
    """Lines on accepted changes of facts that both runs know; DataError for any other change.

    Raises:
        DataError: a fact differs that is not accepted.
    """
    lines = []
    for word, description in WORDS.items():
        if word not in stored:
            lines += [f"not known whether {description} are those of before"] * (word == "data")
            continue
        if stored[word] is None or now[word] is None or stored[word] == now[word]:
            continue
        if word not in accepted:
            raise DataError(
                _difference_error(word, stored[word], now[word], folder),
                hint=f"--accept {word} goes on with it; or use another folder",
            )
        lines.append(_difference_line(word, stored[word], now[word]))
    return tuple(lines)


def _difference_error(word: str, stored: Any, now: Any, folder: Path) -> str:
    """Error text on a fact (data, batch ..) that differs between stored and new run."""
    if word == "data":
        return (
            f"--data has other tokens of {_changed_sequences(stored, now)} than the"
            f" checkpoints of {folder} were made with"
        )
    return (
        f"{word} is {_fact_text(now)}, and the checkpoints of {folder} were made with"
        f" {_fact_text(stored)}"
    )


def _difference_line(word: str, stored: Any, now: Any) -> str:
    """Line of a report on a fact that differs from the stored run and was accepted."""
    if word == "data":
        return f"--data has other tokens of {_changed_sequences(stored, now)} than before"
    return f"{word} {_fact_text(now)} (was {_fact_text(stored)})"


def _changed_sequences(stored: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Text for messages: names of the sequences whose token files differ, joined by "and"."""
    return " and ".join(
        sorted(name for name in {*stored, *now} if stored.get(name) != now.get(name))
    )


def _fact_text(value: Any) -> str:
    """A fact's value as text for messages."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact_text(item)}" for name, item in value.items())
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)
