"""Checkpoints that a run under any plan can resume from: parameters and optimizer states.

Boxes of full tensors are written with torch.distributed.checkpoint.

A checkpoint is a folder ``step-N`` that any reader of torch.distributed.checkpoint opens, and
``manifest.json``: the step, the keys of the parameters, and a digest of every file. It is written
under a temporary name and renamed once all files are on disk, so that a folder with the final name
is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from shardwright.errors import DataError
from shardwright.execute.checkpoints.checkpoint_folders import MANIFEST
from shardwright.execute.checkpoints.checkpoint_planners import (
    CheckpointPiece,
    WrittenPieces,
    read_pieces,
    write_metadata,
    write_pieces,
    written_elements,
)
from shardwright.execute.checkpoints.model_compatibility_check import (
    model_computation,
    require_same_computation,
)
from shardwright.execute.device_state.flat_tensor_boxes import box_views
from shardwright.execute.device_state.parameter_store import (
    Key,
    Source,
    parameter_of,
    parameter_part,
    whole_shape,
)
from shardwright.execute.device_state.zero_shards import Bucket
from shardwright.execute.training.training_loop import (
    DeviceState,
    PreparedTraining,
    create_device_state,
)
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.layout.tensor_layout import Box, count

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """The tensors that one device has written, and (name, bytes, digest) of its files."""

    written: WrittenPieces
    files: tuple[tuple[str, int, str], ...]


def write_device(state: DeviceState, training: PreparedTraining, folder: Path) -> DeviceFiles:
    """Write the pieces of a checkpoint that count on this device.

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
    """Write a device's pieces to files that are named after the device."""
    written = write_pieces(pieces, folder, device=device)
    return DeviceFiles(
        written=written, files=tuple(_file_description(folder / name) for name in written.files)
    )


def _bucket_pieces(
    state: DeviceState, training: PreparedTraining, bucket: Bucket
) -> Iterator[CheckpointPiece]:
    """Iterate over a device's share of a bucket: values and optimizer states, as named pieces."""
    low, _ = bucket.sharing(state.device).piece(state.device, bucket.elements, 1)
    yield from _pieces_of_flat(training.work.model, bucket, low, state.owned(bucket), VALUE)
    for start, _, states in state.shares(bucket):
        for state_name, tensor in states.tensors.items():
            yield from _pieces_of_flat(training.work.model, bucket, start, tensor, state_name)


def _pieces_of_flat(
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


def _file_description(path: Path) -> tuple[str, int, str]:
    """(name, bytes, BLAKE2 digest) of a file."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
        return path.name, file.tell(), digest.hexdigest()


def begin_checkpoint(root: Path, step: int) -> Path:
    """Create an empty folder for a new checkpoint, and remove what an unfinished one left."""
    folder = root / f".step-{step:08d}.unfinished"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def finish_checkpoint(
    folder: Path, written: list[DeviceFiles], training: PreparedTraining, *, step: int
) -> Path:
    """Write metadata and manifest, and rename the folder to the checkpoint's final name.

    An existing checkpoint of that name is replaced.

    Args:
        folder: the folder of `begin_checkpoint`.
        written: results of `write_device` of all devices.
    """
    model = training.work.model
    write_metadata([w.written for w in written], folder)
    files = [*(file for w in written for file in w.files), _file_description(folder / METADATA)]
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": [{"file": name, "bytes": size, "digest": digest} for name, size, digest in files],
        "computed": model_computation(model, training.settings),
        "parameters": [
            [list(key), list(whole_shape(model, key))]
            for key in sorted((*_trained_keys(training), *training.biases))
        ],
    }
    text = json.dumps(manifest)
    with (folder / MANIFEST).open("w") as file:
        json.dump({"digest": _digest(text), "manifest": text}, file)
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


def _trained_keys(training: PreparedTraining) -> list[Key]:
    """Sorted keys of all trained parameters."""
    return sorted(
        {key for bucket in training.buckets if bucket.trainable for key, _ in bucket.boxes}
    )


def _digest(text: str) -> str:
    """BLAKE2 digest of a text, in hexadecimal."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint whose files have been verified; tensors are read on request."""

    folder: Path
    step: int
    shapes: Mapping[Key, tuple[int, ...]]
    model: Model
    metadata: Metadata

    def has(self, key: Key, state: str) -> bool:
        """True if the checkpoint has the state of a parameter."""
        return tensor_name(self.model, key, state) in self.metadata.state_dict_metadata

    def part(self, key: Key, box: Box, state: str = VALUE) -> torch.Tensor:
        """Read a parameter, or its state, in a box, with dims in the parameter's own order."""
        name = tensor_name(self.model, key, state)
        values = torch.empty(
            [count(i) for i in box], dtype=self.metadata.state_dict_metadata[name].properties.dtype
        )
        self.fill(
            [
                CheckpointPiece(name=name, shape=self.shapes[key], box=sub_box, values=view)
                for sub_box, view in box_views(values.view(-1), (box,))
            ]
        )
        return values

    def whole(self, key: Key, state: str = VALUE) -> torch.Tensor:
        """Read a full parameter, or its state in the parameter's shape."""
        return self.part(key, tuple(((0, n),) for n in self.shapes[key]), state)

    def fill(self, pieces: list[CheckpointPiece]) -> None:
        """Read the checkpoint's values into pieces, in place."""
        read_pieces(pieces, FileSystemReader(self.folder), self.metadata)


def read_checkpoint(
    folder: Path, *, model: Model, settings: Settings | None = None, share: tuple[int, int] = (0, 1)
) -> SavedCheckpoint:
    """Open a checkpoint after verifying its files and its model.

    Args:
        model: the model that the checkpoint must have.
        settings: the settings that its model must have; None = the model's own.
        share: (i, n): verify every n-th file from the i-th on, where n processes divide the work.

    Raises:
        DataError: a file is missing, truncated or altered, or the checkpoint is of another model;
        the error names the file.
    """
    manifest = _read_manifest(folder)
    entries = {entry["file"]: entry for entry in manifest["files"]}
    for name in sorted({*list(entries)[share[0] :: share[1]], METADATA}):
        _verify_file(folder / name, entries.get(name))
    for name in entries:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing", hint=EARLIER)
    shapes = {_parse_key(key): tuple(shape) for key, shape in manifest["parameters"]}
    for key, shape in shapes.items():
        _require_parameter(folder, model, key, shape)
    if "computed" in manifest:  # earlier versions did not write it
        require_same_computation(
            manifest["computed"], model, settings or model.settings, folder=folder
        )
    # The metadata is a pickle: it is read only after its digest has been verified.
    metadata = FileSystemReader(folder).read_metadata()
    for name, shape, elements in written_elements(metadata):
        if elements != prod(shape):
            raise DataError(f"{folder / METADATA}: elements of {name} are missing", hint=EARLIER)
    checkpoint = SavedCheckpoint(
        folder=folder, step=manifest["step"], shapes=shapes, model=model, metadata=metadata
    )
    missing = next((key for key in shapes if not checkpoint.has(key, VALUE)), None)
    if missing is not None:
        raise DataError(
            f"{folder / METADATA}: {tensor_name(model, missing)} is missing", hint=EARLIER
        )
    return checkpoint


def has_block(folder: Path, name: str) -> bool:
    """True if a checkpoint's model has a block of that name, or the checkpoint lists no blocks.

    Raises:
        DataError: the manifest is damaged.
    """
    named = _read_manifest(folder).get("computed", {f"{name}.": 0})
    return any(key.startswith(f"{name}.") for key in named)


def _read_manifest(folder: Path) -> dict[str, Any]:
    """Read and verify the manifest of a checkpoint."""
    path = folder / MANIFEST
    try:
        outer = json.loads(path.read_text())
        if _digest(outer["manifest"]) != outer["digest"]:
            raise ValueError("its digest differs")
        manifest = json.loads(outer["manifest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a whole manifest: {error}", hint=EARLIER) from None
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {manifest.get('format')}, not {FORMAT}",
            hint="use the version that wrote it",
        )
    return cast(dict[str, Any], manifest)


def _verify_file(path: Path, entry: Mapping[str, Any] | None) -> None:
    """Raise `DataError` unless a file has the size and digest of its manifest entry."""
    if entry is None or not path.is_file():
        raise DataError(f"{path} is missing", hint=EARLIER)
    if path.stat().st_size != entry["bytes"]:
        raise DataError(
            f"{path} has {path.stat().st_size} bytes, not {entry['bytes']}",
            hint=f"it is truncated; {EARLIER}",
        )
    if _file_description(path)[2] != entry["digest"]:
        raise DataError(f"{path} has been altered: its digest is another", hint=EARLIER)


def _parse_key(parts: list[Any]) -> Key:
    """Parameter key from its list in a manifest."""
    run, layer, operator, name = parts
    return int(run), int(layer), str(operator), str(name)


def _require_parameter(folder: Path, model: Model, key: Key, shape: tuple[int, ...]) -> None:
    """Raise `DataError` unless the model has a parameter with this key and shape."""
    try:
        same = key[1] < model.runs[key[0]].count and whole_shape(model, key) == shape
    except (IndexError, StopIteration):
        same = False
    if not same:
        raise DataError(
            f"{folder / MANIFEST}: {'.'.join(map(str, key))} of shape {shape} is of another model",
            hint="resume with the model that was saved",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSource:
    """Parameter source that reads a checkpoint, and another source for frozen parameters.

    Args:
        state: the state that is read instead of the value, where it exists: ``master`` gives values
            before rounding.
    """

    saved: SavedCheckpoint
    frozen: Source
    state: str = VALUE

    def _state_name(self, key: Key) -> str:
        """Name of the state to read for a parameter: the wanted one if stored, else the value."""
        return self.state if self.saved.has(key, self.state) else VALUE

    def __call__(self, key: Key) -> torch.Tensor:
        """Read a full parameter."""
        return (
            self.saved.whole(key, self._state_name(key))
            if key in self.saved.shapes
            else self.frozen(key)
        )

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """Read the part of a parameter in a box."""
        return (
            self.saved.part(key, box, self._state_name(key))
            if key in self.saved.shapes
            else parameter_part(self.frozen, key, box)
        )


def require_biases_kept(saved: SavedCheckpoint, training: PreparedTraining) -> None:
    """Raise if a checkpoint has updated router biases and the run would drop them.

    Raises:
        DataError: the checkpoint has such biases, and the run has no bias rate.
    """
    frozen = next(
        (key for key in saved.shapes if not parameter_of(saved.model, key).trainable), None
    )
    if frozen is not None and training.bias_rate is None:
        raise DataError(
            f"{saved.folder} has biases of routers that its run moved"
            f" ({tensor_name(saved.model, frozen)})",
            hint="--router-bias-update with that run's rate, or 0 to keep them as they are",
        )


def resume_device(
    device: int, training: PreparedTraining, saved: SavedCheckpoint, *, source: Source
) -> DeviceState:
    """Create a device's state from a checkpoint, under any plan of the same model.

    It reads only the parts that the device holds.

    Args:
        source: source of frozen parameters, which a checkpoint does not have.

    Raises:
        DataError: the checkpoint lacks a parameter, or has biases of routers that the run would
        drop.
    """
    require_biases_kept(saved, training)
    missing = [key for key in _trained_keys(training) if key not in saved.shapes]
    if missing:
        raise DataError(
            f"{saved.folder / MANIFEST}: {'.'.join(map(str, missing[0]))} is missing",
            hint="resume with the model that was saved",
        )
    resumed = create_device_state(device, training, source=SavedSource(saved=saved, frozen=source))
    for bucket in (b for b in training.buckets if device in b.devices):
        for low, _, states in resumed.shares(bucket):
            for state, tensor in states.tensors.items():
                # A run that kept no master copy updated the parameter itself.
                state_to_read = (
                    VALUE
                    if state == "master" and not saved.has(bucket.boxes[0][0], state)
                    else state
                )
                pieces = _pieces_of_flat(training.work.model, bucket, low, tensor, state_to_read)
                saved.fill(
                    [piece for piece in pieces if piece.name in saved.metadata.state_dict_metadata]
                )
    resumed.steps = saved.step
    return resumed
