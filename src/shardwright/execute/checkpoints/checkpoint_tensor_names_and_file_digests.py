"""Format of a checkpoint: names of tensors, pieces of flat buckets, and digests of files.

Boxes of full tensors are written with torch.distributed.checkpoint.

A checkpoint is a folder ``step-N`` that any reader of torch.distributed.checkpoint opens, and
``manifest.json``: the step, the keys of the parameters, and a digest of every file. It is written
under a temporary name and renamed once all files are on disk, so that a folder with the final name
is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import torch

from shardwright.execute.checkpoints.torch_checkpoint_planners import (
    CheckpointPiece,
)
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    whole_shape,
)
from shardwright.execute.device_state.views_of_flat_ranges_as_boxes import box_views
from shardwright.execute.device_state.zero_bucket_collectives import Bucket
from shardwright.model.ir.model_graph import Model

FORMAT = "shardwright-checkpoint-2"


METADATA = ".metadata"


VALUE = "value"


EARLIER = "remove its folder to resume from the checkpoint before"


def tensor_name(model: Model, key: Key, state: str = VALUE) -> str:
    """The name of a parameter, or of its optimizer state, in a checkpoint.

    Examples: ``model.layers.0.qkv.weight``, ``optimizer.first.layers.0...``.
    """
    run, layer, _, name = key
    return (
        f"{'model' if state == VALUE else f'optimizer.{state}'}"
        f".{model.runs[run].name}.{layer}.{name}"
    )


def pieces_of_flat(
    model: Model, bucket: Bucket, low: int, flat: torch.Tensor, state: str
) -> Iterator[CheckpointPiece]:
    """Iterate over named pieces, views of `flat`: the elements of a bucket from `low` on."""
    begin = 0
    for (key, boxes), size in zip(bucket.boxes, bucket.sizes, strict=True):
        a, b = max(low, begin), min(low + flat.numel(), begin + size)
        if a < b:
            name, shape = tensor_name(model, key, state), whole_shape(model, key)
            for box, view in box_views(flat[a - low : b - low], boxes, low=a - begin):
                yield CheckpointPiece(name=name, shape=shape, box=box, values=view)
        begin += size


def file_description(path: Path) -> tuple[str, int, str]:
    """(name without folder, size in bytes, hexadecimal BLAKE2 digest) of a file."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
        return path.name, file.tell(), digest.hexdigest()


def text_digest(text: str) -> str:
    """BLAKE2 digest of a text, in hexadecimal."""
    return blake2b(text.encode(), digest_size=16).hexdigest()
