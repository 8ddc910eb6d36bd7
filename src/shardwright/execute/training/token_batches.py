"""Batches of training steps from memory-mapped token files, equal for every plan."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from shardwright.execute.interpreter.prepared_step import Batch
from shardwright.execute.training.open_image_arrays_and_cut_patches import image_patches
from shardwright.execute.training.write_and_open_token_files import TEXT, open_rows
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.model_graph import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatches:
    """Token files of every sequence, cut into windows, and the order in which steps read them.

    Args:
        rows: tokens of every sequence; images, one in each row.
        lengths: number of tokens of a window, by sequence.
        samples: number of windows of a step.
        model: the model that reads the batches.
        seed: seed of the order of windows; None = the order of the file.

    Window k of a sequence begins at token k x length. A window of the text has one token more,
    which is only predicted and is the first token of the next window. Sample k is window k of every
    sequence, and image k. A pass reads every window once, in an order of its own. A place of an
    image token is not a token: as a label it is left out of the loss.
    """

    rows: Mapping[str, np.ndarray]
    lengths: Mapping[str, int]
    samples: int
    model: Model
    seed: int | None = None

    @property
    def windows(self) -> int:
        """Samples in one pass over the data: windows of the input that has the fewest."""
        counts = {
            name: len(row) if name == IMAGE else (len(row) - (name == TEXT)) // self.lengths[name]
            for name, row in self.rows.items()
        }
        return min(counts.values())

    def passes(self, steps: int) -> float:
        """Passes over the data that `steps` steps make; above 1, tokens are read again."""
        return steps * self.samples / self.windows

    def order(self, step: int) -> list[int]:
        """Window numbers of a step (from 0): in file order, or permuted by seed and pass.

        Only the number of the step is needed to resume from it.
        """
        windows = []
        for position in range(step * self.samples, (step + 1) * self.samples):
            pass_number, place = divmod(position, self.windows)
            windows.append(
                place
                if self.seed is None
                else permuted_position(place, self.windows, seed=(self.seed, pass_number))
            )
        return windows

    def batch(self, step: int) -> Batch:
        """Token ids, next-token labels (and images) of the windows of `step`, counted from 0.

        After the last window a new pass begins, within a batch if necessary.
        """
        windows, result = self.order(step), {}
        for name, row in self.rows.items():
            if name == IMAGE:
                result[name] = torch.from_numpy(image_patches(row[windows], model=self.model))
                continue
            length = self.lengths[name]
            window_tokens = [
                row[k * length : (k + 1) * length + (name == TEXT)].astype(np.int64)
                for k in windows
            ]
            result[name] = torch.from_numpy(np.stack(window_tokens))
        labels, image = result[TEXT][:, 1:], self.model.settings.image
        if image is not None and IMAGE in result:
            labels = labels.masked_fill(labels == image.token, -1)
        return {**result, TEXT: result[TEXT][:, :-1], "labels": labels}


def permuted_position(place: int, count: int, *, seed: tuple[int, ...]) -> int:
    """The image of `place` under a seeded permutation of [0, count), in constant memory.

    Four rounds of a Feistel network over the smallest even number of bits, repeated until the
    result lies below `count` (Black and Rogaway, Ciphers with arbitrary finite domains, 2002,
    section 4).
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
    """Open token files as batches, after checks; `share` (i, n) checks every n-th piece from i on.

    Args:
        files: the file of every sequence, or of the text alone.
        seed: seed of the order of windows; None = the order of the file.
        share: (i, n): check every n-th piece of a file for tokens outside the vocabulary, where n
            processes divide the work.

    Raises:
        DataError: as `write_and_open_token_files.open_rows`.
    """
    rows = open_rows(files, model=model, job=job, share=share)
    lengths = {s.name: s.tokens for s in job.sequences}
    return TokenBatches(
        rows=rows, lengths=lengths, samples=job.global_batch, model=model, seed=seed
    )
