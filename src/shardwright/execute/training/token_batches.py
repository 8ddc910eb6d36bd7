"""Batches from files of tokens: memory-mapped, the same for every plan, by number of the step."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from shardwright.execute.interpreter.device_walk import Batch
from shardwright.execute.training.image_files import patches_of
from shardwright.execute.training.token_files import TEXT, open_rows
from shardwright.job.training_job import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.blocks.vision_language import IMAGE
from shardwright.model.ir.model_graph import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatches:
    """Tokens of every sequence, on disk, cut into windows.

    Args:
        rows: of every sequence, its tokens; of images, one a row.
        lengths: tokens of a window.
        samples: windows of a step.
        model: that reads them.
        seed: of the order; None = as they stand.

    Window k of a sequence begins at token k x length; that of the text has one token more, which is
    only predicted, and is the first of the next. Sample k is window k of every sequence, and image
    k. A pass reads every window once, in an order of its own. What a place of an image token would
    predict, or be predicted as, is no token: as a label such a place is left out of the loss.
    """

    rows: Mapping[str, np.ndarray]
    lengths: Mapping[str, int]
    samples: int
    model: Model
    seed: int | None = None

    @property
    def windows(self) -> int:
        """Samples of a pass: of the sequence that has fewest."""
        counts = {
            name: len(row) if name == IMAGE else (len(row) - (name == TEXT)) // self.lengths[name]
            for name, row in self.rows.items()
        }
        return min(counts.values())

    def passes(self, steps: int) -> float:
        """The number of times that `steps` steps read all windows: above 1, tokens are repeated."""
        return steps * self.samples / self.windows

    def order(self, step: int) -> list[int]:
        """Windows of a step, counted from 0. Nothing but the number of the step is needed to go on
        from it.
        """
        found = []
        for position in range(step * self.samples, (step + 1) * self.samples):
            turn, place = divmod(position, self.windows)
            found.append(
                place
                if self.seed is None
                else permuted_position(place, self.windows, seed=(self.seed, turn))
            )
        return found

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0; after the last window a new pass begins, within a
        batch if need be.
        """
        windows, result = self.order(step), {}
        for name, row in self.rows.items():
            if name == IMAGE:
                result[name] = torch.from_numpy(patches_of(row[windows], model=self.model))
                continue
            length = self.lengths[name]
            taken = [
                row[k * length : (k + 1) * length + (name == TEXT)].astype(np.int64)
                for k in windows
            ]
            result[name] = torch.from_numpy(np.stack(taken))
        labels, image = result[TEXT][:, 1:], self.model.settings.image
        if image is not None and IMAGE in result:
            labels = labels.masked_fill(labels == image.token, -1)
        return {**result, TEXT: result[TEXT][:, :-1], "labels": labels}


def permuted_position(place: int, count: int, *, seed: tuple[int, ...]) -> int:
    """The image of `place` under a permutation of [0, count), computed without the permutation in
    memory.

    Four rounds of a Feistel network over the smallest even number of bits, walked until the result
    lies below `count` (Black and Rogaway, Ciphers with arbitrary finite domains, 2002, section 4).
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for number in range(4):
            text = repr((*seed, number, right)).encode()
            left, right = (
                right,
                left ^ (int.from_bytes(blake2b(text, digest_size=8).digest(), "little") & mask),
            )
        place = left << half | right
        if place < count:
            return place


def open_tokens(
    files: Path | Mapping[str, Path],
    *,
    model: Model,
    job: TrainingJob,
    seed: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> TokenBatches:
    """The batches of files of tokens, which are refused where no step could use them.

    Args:
        files: of every sequence, or of the text alone.
        seed: of the order of windows; None = as they stand.
        share: (i, n): look at every n-th piece of a file for tokens outside the vocabulary, where n
            processes divide the work.

    Raises:
        DataError: as `token_files.open_rows`.
    """
    rows = open_rows(files, model=model, job=job, share=share)
    lengths = {s.name: s.tokens for s in job.sequences}
    return TokenBatches(
        rows=rows, lengths=lengths, samples=job.global_batch, model=model, seed=seed
    )
