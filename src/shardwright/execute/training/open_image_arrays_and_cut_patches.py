"""Image files: pixels or patches, one image in each row.

Needs no PyTorch.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from shardwright.errors import DataError
from shardwright.execute.training.mapped_arrays import map_array
from shardwright.job.training_job import TrainingJob
from shardwright.model.blocks.vision_tower_and_projector import IMAGE
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import ImageInput, PositionAxes, TextRotary
from shardwright.model.ir.operator import Operator

FLOATS = ("float16", "float32", "float64")
HINT = (
    "numpy.save an array of (images, channels, rows, columns) of pixels as the model takes them, or"
    " of (images, patches, elements)"
)


def open_images(path: Path, *, model: Model, job: TrainingJob) -> np.ndarray:
    """Memory-map a ``.npy`` file of images; DataError unless it fits the model and the job.

    (images, channels, rows, columns), or (images, patches, elements of a patch).

    Raises:
        DataError: the model reads no images; not such a file; fewer images than a batch has
        samples; images of another size than the model's or the job's. The error names the file, the
        numbers and the remedy.
    """
    image, first = model.settings.image, patch_operator(model)
    if image is None or first is None:
        raise DataError(
            f"{path}: {model.name} reads no images, or only the sizes of its image tower are known",
            hint="give a file of tokens alone",
        )
    images = map_array(path, what="images", hint=HINT)
    if images.dtype.name not in FLOATS or images.ndim not in (3, 4):
        raise DataError(
            f"{path} has {images.ndim} dims of {images.dtype}, not images",
            hint=f"{HINT}; of {', '.join(FLOATS)}",
        )
    channels, height, width = image.patch
    matches = images.shape[2] == prod(image.pixels)
    if images.ndim == 4:
        matches = (
            images.shape[1] == channels
            and not images.shape[2] % height
            and not images.shape[3] % width
        )
    if not matches:
        raise DataError(
            f"{path} has images of {list(images.shape[1:])}, not of whole patches of"
            f" {list(image.pixels)}",
            hint=HINT,
        )
    sides = (
        (images.shape[2] // height, images.shape[3] // width)
        if images.ndim == 4
        else image.grid(images.shape[1])
    )
    patches = (
        images.shape[1]
        if images.ndim == 3
        else images.shape[2] // height * (images.shape[3] // width)
    )
    if has_grid(model) and (sides is None or sides != image.grid(patches)):
        raise DataError(
            f"{path} has images of {' x '.join(map(str, sides)) if sides else patches} patches, not"
            f" squares of whole blocks of {image.block[0]} x {image.block[1]}",
            hint=(
                "cut or fill up the images: their patches' rows and columns follow from their"
                " number"
            ),
        )
    axes = model.settings.of_block("vision_embed").stretched
    if sides is not None and isinstance(axes, PositionAxes) and max(sides) > axes.rows:
        raise DataError(
            f"{path} has images of {' x '.join(map(str, sides))} patches, of which the model knows"
            f" {axes.rows} positions along a side",
            hint="cut the images: position_embedding_size says how many it knows",
        )
    tokens = patches + has_class_token(first)
    tables = (
        ()
        if has_grid(model)
        else tuple(p for p in first.parameters if p.name.endswith(".positions"))
    )
    rows = next((p.extents[0].size for p in tables), tokens)
    job_tokens = job.tokens(IMAGE)
    if not tokens == rows == job_tokens:
        raise DataError(
            f"{path} has images of {tokens} tokens (patches, and the model's class token), the"
            f" model of {rows}, the job of {job_tokens}",
            hint=f"give images of the model's size, and --image-tokens {rows}",
        )
    if len(images) < job.global_batch:
        raise DataError(
            f"{path} has {len(images)} images, a batch needs {job.global_batch}",
            hint="use more images or a smaller batch",
        )
    return images


def patch_operator(model: Model) -> Operator | None:
    """The operator that projects image patches; None for a model without an image tower."""
    return next((o for block in model.blocks for o in block.operators if o.reads_features), None)


def has_class_token(first: Operator) -> bool:
    """True if a learned class token lies before the patches."""
    return any(p.name.endswith(".class") for p in first.parameters)


def has_grid(model: Model) -> bool:
    """True if the model needs rows and columns of patches: 2D positions, or merged patches."""
    settings = [model.settings, *(block_settings for _, block_settings in model.settings.own)]
    blocks = [
        block_settings.image.block
        for block_settings in settings
        if block_settings.image is not None
    ]
    return any(
        block_settings.turns is not None or block_settings.stretched is not None
        for block_settings in settings
    ) or any(block != (1, 1) for block in blocks)


def image_patches(images: np.ndarray, *, model: Model) -> np.ndarray:
    """(images, tokens, elements) inputs of the image tower: patches block by block, in order.

    The class token's row is zero.

    Args:
        images: (images, channels, rows, columns), or (images, patches, elements) in the order of
            the model's own processor.
    """
    image, first = model.settings.image, patch_operator(model)
    assert image is not None, "only of models whose patches are known"
    assert first is not None, "only of models whose patches are known"
    images = np.asarray(images).astype(
        images.dtype.newbyteorder("="), copy=False
    )  # PyTorch reads the machine's own order alone
    if images.ndim == 4:
        images = _cut_pixels(images, image)
    elif not image.in_blocks:
        images = images[:, _block_order(images.shape[1], image)]
    return np.pad(images, ((0, 0), (1, 0), (0, 0))) if has_class_token(first) else images


def _cut_pixels(images: np.ndarray, image: ImageInput) -> np.ndarray:
    """Cut (images, channels, rows, columns) into (images, patches, elements), block by block."""
    count, channels, rows, columns = images.shape
    (_, height, width), (high, wide) = image.patch, image.block
    cut = images.reshape(
        count,
        channels,
        rows // (height * high),
        high,
        height,
        columns // (width * wide),
        wide,
        width,
    )
    patches = cut.transpose(0, 2, 5, 3, 6, 1, 4, 7)
    if image.frames:
        patches = np.repeat(patches[..., np.newaxis, :, :], image.frames, axis=-3)
    if image.channels_last:
        patches = np.moveaxis(patches, -3, -1)
    return patches.reshape(count, -1, prod(image.pixels))


def _block_order(patches: int, image: ImageInput) -> np.ndarray:
    """Row-by-row numbers of patches, listed block by block as the image tower reads them."""
    grid, (high, wide) = image.grid(patches), image.block
    assert grid is not None, "images that are no squares of whole blocks are rejected"
    numbers = np.arange(patches).reshape(grid[0] // high, high, grid[1] // wide, wide)
    return numbers.transpose(0, 2, 1, 3).reshape(-1)


def require_image_places(
    path: Path,
    row: np.ndarray,
    *,
    model: Model,
    job: TrainingJob,
    share: tuple[int, int],
    at_once: int,
) -> None:
    """Raise DataError if a window has a wrong number of image places; `share` checks a part.

    There must be as many places as the image has tokens, in one row where tokens are rotated by the
    row and column of their place.

    Args:
        share: (i, n): check every n-th piece of the file, from the i-th on.
        at_once: number of tokens of a piece.

    Raises:
        DataError: names the window and its number of places.
    """
    image, length = model.settings.image, job.sequence_length
    if image is None or not job.tokens(IMAGE):
        return
    image_tokens, windows = image.written(job.tokens(IMAGE)), (len(row) - 1) // length
    in_row = isinstance(model.settings.turns, TextRotary)
    step = max(1, at_once // length)
    for start in range(share[0] * step, windows, share[1] * step):
        end = min(start + step, windows)
        is_place = row[start * length : end * length].reshape(-1, length) == image.token
        places = is_place.sum(1)
        if (places != image_tokens).any():
            at = int(np.argmax(places != image_tokens))
            raise DataError(
                f"{path}: window {start + at} of {length} tokens has {int(places[at])} places of"
                f" image tokens (token {image.token}), its image has {image_tokens}",
                hint="one image a window, and as many places for it in the text as it has tokens",
            )
        # Places are in one row if all but the first follow another place.
        is_interrupted = (is_place[:, 1:] & is_place[:, :-1]).sum(1) != image_tokens - 1
        if in_row and is_interrupted.any():
            raise DataError(
                f"{path}: places of image tokens (token {image.token}) of window"
                f" {start + int(np.argmax(is_interrupted))} are not one row",
                hint=f"{model.name} reads an image whose places follow one another",
            )
