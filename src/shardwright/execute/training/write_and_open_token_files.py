"""Token files: rows of integers with a description file beside each.

Needs no PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardwright.errors import DataError
from shardwright.execute.training.mapped_arrays import map_array
from shardwright.execute.training.open_image_arrays_and_cut_patches import (
    open_images,
    require_image_places,
)
from shardwright.job.training_job import TrainingJob
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.model_graph import Model

CHUNK = 1 << 24
KINDS = ("uint8", "uint16", "uint32", "int32", "int64")
TEXT = "text"


def open_rows(
    files: Path | Mapping[str, Path],
    *,
    model: Model,
    job: TrainingJob,
    share: tuple[int, int] | None = (0, 1),
) -> dict[str, np.ndarray]:
    """Sequence name -> memory-mapped file, after checks; tokens of chunks i, i + n, .. by `share`.

    A text file is a ``.npy`` file of one row of integers; a file of images has one image in each
    row.

    Args:
        files: the file of every sequence, or of the text alone.
        share: (i, n): check every n-th piece of a file for tokens outside the vocabulary, where n
            processes divide the work; None = no check.

    Raises:
        DataError: no file, or another sequence than the job's; not such a file; another dtype than
        in its description; shorter than a batch; a token outside the vocabulary; images that do not
        fit (`open_image_arrays_and_cut_patches`). The error names file, number and remedy.
    """
    paths = {TEXT: files} if isinstance(files, Path) else dict(files)
    lengths = {s.name: s.tokens for s in job.sequences}
    for name in [*(n for n in lengths if n not in paths), *(n for n in paths if n not in lengths)]:
        path_text = ", ".join(str(path) for path in paths.values())
        reason = "no file has the" if name in lengths else "the job has no"
        raise DataError(
            f"{path_text}: {reason} sequence {name}",
            hint=f"give one file for each of {', '.join(lengths)}",
        )
    rows = {name: _open_row(path) for name, path in paths.items() if name != IMAGE}
    images = {
        name: open_images(path, model=model, job=job)
        for name, path in paths.items()
        if name == IMAGE
    }
    for name, row in rows.items():
        _require_described(paths[name], row, vocab=model.vocab)
        wanted_tokens = job.global_batch * lengths[name] + (name == TEXT)
        if len(row) < wanted_tokens:
            raise DataError(
                f"{paths[name]} has {len(row)} tokens, a batch needs {wanted_tokens}"
                f" ({job.global_batch} x {lengths[name]} of {name})",
                hint="use more text, a smaller batch or shorter sequences",
            )
    if share is not None:
        for name, row in rows.items():
            _require_in_vocabulary(paths[name], row, vocab=model.vocab, share=share)
        require_image_places(
            paths[TEXT], rows[TEXT], model=model, job=job, share=share, at_once=CHUNK
        )
    return rows | images


def _open_row(path: Path) -> np.ndarray:
    """Memory-map a token file, and check that it is one row of integers."""
    tokens = map_array(path, what="tokens", hint="make one of a text: shardwright tokenise")
    if tokens.ndim != 1 or tokens.dtype.name not in KINDS:
        raise DataError(
            f"{path} has {tokens.ndim} dims of {tokens.dtype}",
            hint=f"one row of {', '.join(KINDS)}",
        )
    return tokens


def description_path(path: Path) -> Path:
    """Path of a token file's description: the file's full name with ``.json`` appended."""
    return path.with_name(f"{path.name}.json")


def _require_described(path: Path, row: np.ndarray, *, vocab: int) -> None:
    """Raise DataError if a description beside a file is of other data, or a larger vocabulary."""
    description_file = description_path(path)
    if not description_file.is_file():
        return
    try:
        description: Any = json.loads(description_file.read_text())
        described = (str(description["dtype"]), int(description["tokens"]))
        vocabulary = int(description["vocabulary"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{description_file} does not describe a file of tokens: {error!r}",
            hint="remove it, or make both again",
        ) from None
    if described != (row.dtype.name, len(row)):
        raise DataError(
            f"{path} has {len(row)} tokens of {row.dtype.name}, {description_file.name} says"
            f" {described[1]} of {described[0]}",
            hint="make both again",
        )
    if vocabulary > vocab:
        raise DataError(
            f"{path} was made with a vocabulary of {vocabulary}, the model has {vocab}",
            hint=f"use the model's own tokenizer, or a model with vocab_size {vocabulary} or more",
        )


def _require_in_vocabulary(
    path: Path, row: np.ndarray, *, vocab: int, share: tuple[int, int]
) -> None:
    """Raise for the first token outside the vocabulary in chunks i, i + n, .. for `share` (i, n).

    A dtype that holds no such token is not searched.
    """
    bounds = np.iinfo(row.dtype)
    if bounds.min >= 0 and bounds.max < vocab:
        return
    for start in range(share[0] * CHUNK, len(row), share[1] * CHUNK):
        part = row[start : start + CHUNK]
        if int(part.max()) >= vocab or int(part.min()) < 0:
            at = start + int(np.argmax((part >= vocab) | (part < 0)))
            raise DataError(
                f"{path}: token {int(row[at])} at {at} is outside the vocabulary of {vocab}",
                hint="use the model's own tokenizer, or a model with a larger vocab_size",
            )


def write_tokens(path: Path, tokens: np.ndarray, *, vocabulary: int, tokenizer: str = "") -> None:
    """Write a token file in the smallest dtype for the vocabulary, and its description beside it.

    Raises:
        DataError: a token is outside the vocabulary; the file cannot be written.
    """
    kind = next(k for k in ("uint8", "uint16", "uint32") if vocabulary - 1 <= np.iinfo(k).max)
    _require_in_vocabulary(path, tokens, vocab=vocabulary, share=(0, 1))
    description = {
        "tokenizer": tokenizer,
        "vocabulary": vocabulary,
        "dtype": kind,
        "tokens": len(tokens),
    }
    try:
        with path.open("wb") as file:
            np.save(file, tokens.astype(kind))
        description_path(path).write_text(json.dumps(description) + "\n")
    except OSError as error:
        raise DataError(
            f"{path} cannot be written: {error.strerror}", hint="give a path in a folder with room"
        ) from None
