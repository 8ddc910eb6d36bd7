"""Places of images in the texts of a batch, looked at before it goes to an accelerator, which would
wait for the answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from shardwright.errors import DataError
from shardwright.execute.numerics.images.patch_grid import grid_of
from shardwright.model.blocks.vision import IMAGE
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.settings import ImageInput, Settings, TextRotary


def require_written(batch: Mapping[str, torch.Tensor], settings: Settings) -> None:
    """Raise for a batch whose texts image tokens cannot be written over; files are looked at when
    they are opened (`image_files`).

    Args:
        batch: whole, as it was made.
        settings: of the model.

    Raises:
        DataError: a text has more places than its image has tokens, or, where tokens turn by the
            row and column of their place, places that are not one row of as many; such an image is
            no square of whole blocks.
    """
    image = settings.image
    if image is None or IMAGE not in batch:
        return
    places, patches = batch[TEXT].numpy(force=True) == image.token, batch[IMAGE].shape[1]
    most, written = int(places.sum(1).max(initial=0)), image.written(patches)
    if most > written:
        raise DataError(
            f"a text has {most} places of images (token {image.token}), its image {written}",
            hint="one image a sample, and as many places for it as it has tokens",
        )
    if isinstance(settings.turns, TextRotary):
        rows, columns = grid_of(image, patches=patches)
        require_rows(places, image, grid=(rows // image.block[0], columns // image.block[1]))


def require_rows(places: np.ndarray, image: ImageInput, *, grid: tuple[int, int]) -> None:
    """Raise for (samples, positions) places that are not, in each sample that has some, one row of
    as many as the grid has.

    Raises:
        DataError: as said.
    """
    rows, columns = grid
    counts, first = places.sum(1, keepdims=True), places.argmax(1)[:, np.newaxis]
    number = np.arange(places.shape[1]) - first
    if (places != ((number >= 0) & (number < counts))).any() or not np.isin(
        counts, (0, rows * columns)
    ).all():
        raise DataError(
            f"places of an image (token {image.token}) are not one row of {rows} x {columns}",
            hint="one image a sample, all of whose places follow one another",
        )
