"""Batches from a file of tokens: memory-mapped, the same for every plan, by number of the step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shardwright.errors import DataError
from shardwright.execute.device import Batch
from shardwright.job.training import TrainingJob
from shardwright.model.graph import Model

CHUNK = 1 << 24
KINDS = ("uint8", "uint16", "uint32", "int32", "int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Tokens of a text, on disk. A sample is a window of length + 1 tokens; windows overlap by one, and follow one another.

    Args:
        tokens: one row. samples: a step. length: tokens of a sample.
    """

    tokens: np.ndarray
    samples: int
    length: int

    @property
    def windows(self) -> int:
        """Samples in the file."""
        return (len(self.tokens) - 1) // self.length

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0; after its last sample the file begins again."""
        rows = [(step * self.samples + i) % self.windows * self.length for i in range(self.samples)]
        taken = torch.from_numpy(np.stack([self.tokens[a : a + self.length + 1].astype(np.int64) for a in rows]))
        return {"text": taken[:, :-1], "labels": taken[:, 1:]}


def token_file(path: Path, *, model: Model, job: TrainingJob) -> TokenFile:
    """Open a ``.npy`` file of one row of integers.

    Raises:
        DataError: not such a file; shorter than a batch; a token outside the vocabulary; the job has other sequences than text.
    """
    others = [s.name for s in job.sequences if s.name != "text"]
    if others:
        raise DataError(f"{path}: a file of tokens has no {others[0]} sequence", hint="train models of text on it")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a file of tokens: {error}", hint="write it with numpy.save") from None
    if tokens.ndim != 1 or tokens.dtype.name not in KINDS:
        raise DataError(f"{path} has {tokens.ndim} dims of {tokens.dtype}", hint=f"one row of {', '.join(KINDS)}")
    wanted = job.global_batch * job.sequence_length + 1
    if len(tokens) < wanted:
        raise DataError(f"{path} has {len(tokens)} tokens, a batch needs {wanted}", hint="use more text, or a smaller batch")
    for start in range(0, len(tokens), CHUNK):
        part = tokens[start : start + CHUNK]
        if int(part.max()) >= model.vocab or int(part.min()) < 0:
            at = start + int(np.argmax((part >= model.vocab) | (part < 0)))
            raise DataError(
                f"{path}: token {int(tokens[at])} at {at} is outside the vocabulary of {model.vocab}",
                hint="use the model's own tokenizer",
            )
    return TokenFile(tokens=tokens, samples=job.global_batch, length=job.sequence_length)


def write_tokens(path: Path, tokens: np.ndarray) -> None:
    """A file of tokens in the smallest dtype that holds them."""
    top = int(tokens.max(initial=0))
    np.save(path, tokens.astype(next(k for k in ("uint8", "uint16", "uint32") if top <= np.iinfo(k).max)))
