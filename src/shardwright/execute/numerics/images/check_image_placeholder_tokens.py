"""Checks of the positions of image tokens in the texts of a batch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from shardwright.errors import DataError
from shardwright.execute.numerics.images.patch_grid_and_position_interpolation import image_grid
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.block import TEXT
from shardwright.model.ir.numerical_constants import ImageInput, Settings, TextRotary


def require_image_positions(batch: Mapping[str, torch.Tensor], settings: Settings) -> None:
    """Raise DataError if a text's image places exceed the image's tokens; M-RoPE: one full run.

    Files are checked when they are opened (`training.open_image_arrays_and_cut_patches`).

    Args:
        batch: the whole batch.
        settings: settings of the model.

    Raises:
        DataError: a text has more places than its image has tokens. Where tokens are rotated by the
        row and column of their place: the places are not one row of as many, or the image is no
        square of whole blocks.
    """
    image = settings.image
    if image is None or IMAGE not in batch:
        return
    places, patches = batch[TEXT].numpy(force=True) == image.token, batch[IMAGE].shape[1]
    most_places, image_tokens = int(places.sum(1).max(initial=0)), image.written(patches)
    if most_places > image_tokens:
        raise DataError(
            f"a text has {most_places} places of images (token {image.token}),"
            f" its image {image_tokens}",
            hint="one image a sample, and as many places for it as it has tokens",
        )
    if isinstance(settings.turns, TextRotary):
        rows, columns = image_grid(image, patches=patches)
        require_one_run(places, image, grid=(rows // image.block[0], columns // image.block[1]))


def require_one_run(places: np.ndarray, image: ImageInput, *, grid: tuple[int, int]) -> None:
    """Raise DataError unless each sample's image places are none, or one run of rows x columns.

    Samples without places are allowed. Places are (samples, positions).

    Raises:
        DataError: the places of a sample are interrupted, or of another number.
    """
    rows, columns = grid
    counts, first_place = places.sum(1, keepdims=True), places.argmax(1)[:, np.newaxis]
    number = np.arange(places.shape[1]) - first_place
    if (places != ((number >= 0) & (number < counts))).any() or not np.isin(
        counts, (0, rows * columns)
    ).all():
        raise DataError(
            f"places of an image (token {image.token}) are not one row of {rows} x {columns}",
            hint="one image a sample, all of whose places follow one another",
        )
