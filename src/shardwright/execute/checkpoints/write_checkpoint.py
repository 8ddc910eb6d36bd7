"""Write a checkpoint: each device its parameters and optimizer states, then the manifest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import (
    FORMAT,
    METADATA,
    VALUE,
    file_description,
    pieces_of_flat,
    tensor_name,
    text_digest,
)
from shardwright.execute.checkpoints.find_finished_checkpoints import MANIFEST
from shardwright.execute.checkpoints.same_computation_check import (
    model_computation,
)
from shardwright.execute.checkpoints.torch_checkpoint_planners import (
    CheckpointPiece,
    WrittenPieces,
    write_metadata,
    write_pieces,
)
from shardwright.execute.device_state.stored_parameter_parts import (
    whole_shape,
)
from shardwright.execute.device_state.zero_bucket_collectives import Bucket
from shardwright.execute.training.device_training_state import DeviceState, PreparedTraining
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """The tensors that one device has written, and (name, bytes, digest) of its files."""

    written: WrittenPieces
    files: tuple[tuple[str, int, str], ...]


def write_device(state: DeviceState, training: PreparedTraining, folder: Path) -> DeviceFiles:
    """Write a device's values and optimizer states, unless another device writes the same ones.

    Args:
        folder: an existing folder. One device writes elements of which several have copies.
    """
    pieces = [
        piece
        for bucket in training.buckets
        if state.device in bucket.devices and bucket.counts_piece(state.device)
        for piece in _bucket_pieces(state, training, bucket)
    ]
    return write_files([*pieces, *_bias_pieces(state, training)], folder, device=state.device)


def _bias_pieces(state: DeviceState, training: PreparedTraining) -> Iterator[CheckpointPiece]:
    """Iterate over the router biases that this device writes as their first holder."""
    for key in (key for key in training.biases if training.bias_holders(key)[0] == state.device):
        name, shape = tensor_name(training.work.model, key), whole_shape(training.work.model, key)
        (stored,) = state.store.held[key].values()
        yield CheckpointPiece(name=name, shape=shape, box=((0, shape[0]),), values=stored.value)


def write_files(pieces: list[CheckpointPiece], folder: Path, *, device: int) -> DeviceFiles:
    """Write a device's pieces to files named after it; return their names, bytes and digests."""
    written = write_pieces(pieces, folder, device=device)
    return DeviceFiles(
        written=written, files=tuple(file_description(folder / name) for name in written.files)
    )


def _bucket_pieces(
    state: DeviceState, training: PreparedTraining, bucket: Bucket
) -> Iterator[CheckpointPiece]:
    """Iterate over the pieces of a bucket that a device owns (ZeRO 1): values, optimizer states."""
    low, _ = bucket.sharing(state.device).piece(state.device, bucket.elements, 1)
    yield from pieces_of_flat(training.work.model, bucket, low, state.owned(bucket), VALUE)
    for start, _, states in state.shares(bucket):
        for state_name, tensor in states.tensors.items():
            yield from pieces_of_flat(training.work.model, bucket, start, tensor, state_name)


def begin_checkpoint(root: Path, step: int) -> Path:
    """Create a step's empty checkpoint folder, after removing an unfinished one of that step."""
    folder = root / f".step-{step:08d}.unfinished"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def finish_checkpoint(
    folder: Path, written: list[DeviceFiles], training: PreparedTraining, *, step: int
) -> Path:
    """Write metadata and manifest, and rename `folder` to ``step-N``, in place of an existing one.

    An existing checkpoint of that name is replaced.

    Args:
        folder: the folder of `begin_checkpoint`.
        written: results of `write_device` of all devices.
    """
    model = training.work.model
    write_metadata([w.written for w in written], folder)
    files = [*(file for w in written for file in w.files), file_description(folder / METADATA)]
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": [{"file": name, "bytes": size, "digest": digest} for name, size, digest in files],
        "computed": model_computation(model, training.settings),
        "parameters": [
            [list(key), list(whole_shape(model, key))]
            for key in sorted((*training.trained_keys, *training.biases))
        ],
    }
    text = json.dumps(manifest)
    with (folder / MANIFEST).open("w") as file:
        json.dump({"digest": text_digest(text), "manifest": text}, file)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)
    target = folder.parent / f"step-{step:08d}"
    replaced = folder.parent / f".step-{step:08d}.before"
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    folder.rename(target)
    _sync_folder(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return target


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
