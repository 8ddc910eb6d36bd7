"""Checkpoints that any plan can resume: boxes of whole parameters and optimizer states, written by
torch.distributed.checkpoint.

A checkpoint is a folder ``step-N`` that any reader of torch.distributed.checkpoint opens, and
``manifest.json``: the step, the keys of the parameters, and a digest of every file. It is made
beside its place and renamed once all files are on disk, so that what has its name is whole.
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
    Piece,
    WrittenPieces,
    read_pieces,
    write_metadata,
    write_pieces,
    written_elements,
)
from shardwright.execute.checkpoints.model_computation import (
    model_computation,
    require_same_computation,
)
from shardwright.execute.device_state.device_parameters import (
    Key,
    Source,
    parameter_of,
    parameter_part,
    whole_shape,
)
from shardwright.execute.device_state.flat_views import box_views
from shardwright.execute.device_state.optimizer_shards import Bucket
from shardwright.execute.training.training_loop import DeviceState, Training, device_state
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator_constants import Settings
from shardwright.program.layout.tensor_layout import Box, count

FORMAT = "shardwright-checkpoint-2"
METADATA = ".metadata"
VALUE = "value"
EARLIER = "remove its folder to resume from the checkpoint before"


def tensor_name(model: Model, key: Key, state: str = VALUE) -> str:
    """The name of a parameter, or of a state of it, in a checkpoint: ``model.layers.0.qkv.weight``,
    ``optimizer.first.layers.0...``.
    """
    run, layer, _, name = key
    return (
        f"{'model' if state == VALUE else f'optimizer.{state}'}"
        f".{model.runs[run].name}.{layer}.{name}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFiles:
    """One device's written tensors, and (name, bytes, digest) of its files."""

    written: WrittenPieces
    files: tuple[tuple[str, int, str], ...]


def write_device(own: DeviceState, known: Training, folder: Path) -> DeviceFiles:
    """Write the pieces that a device answers for.

    Args:
        folder: exists. Of copies of the same elements one device writes them.
    """
    pieces = [
        piece
        for bucket in known.buckets
        if own.device in bucket.devices and bucket.answers(own.device)
        for piece in _pieces(own, known, bucket)
    ]
    return write_files([*pieces, *_biases(own, known)], folder, device=own.device)


def _biases(own: DeviceState, known: Training) -> Iterator[Piece]:
    """Biases of routers' choices of which the device is the first that has them."""
    for key in (key for key in known.biases if known.bias_holders(key)[0] == own.device):
        name, shape = tensor_name(known.work.model, key), whole_shape(known.work.model, key)
        (held,) = own.store.held[key].values()
        yield Piece(name=name, shape=shape, box=((0, shape[0]),), values=held.value)


def write_files(pieces: list[Piece], folder: Path, *, device: int) -> DeviceFiles:
    """Write a device's pieces to files that are named after it."""
    written = write_pieces(pieces, folder, device=device)
    return DeviceFiles(
        written=written, files=tuple(_described(folder / name) for name in written.files)
    )


def _pieces(own: DeviceState, known: Training, bucket: Bucket) -> Iterator[Piece]:
    """A device's share of a bucket: values and states."""
    low, _ = bucket.sharing(own.device).piece(own.device, bucket.elements, 1)
    yield from _of_bucket(known.work.model, bucket, low, own.owned(bucket), VALUE)
    for start, _, states in own.shares(bucket):
        for state, tensor in states.tensors.items():
            yield from _of_bucket(known.work.model, bucket, start, tensor, state)


def _of_bucket(
    model: Model, bucket: Bucket, low: int, flat: torch.Tensor, state: str
) -> Iterator[Piece]:
    """Pieces that are views of `flat`, elements of a bucket from `low` on."""
    begin = 0
    for (key, boxes), size in zip(bucket.boxes, bucket.sizes, strict=True):
        a, b = max(low, begin), min(low + flat.numel(), begin + size)
        if a < b:
            name, shape = tensor_name(model, key, state), whole_shape(model, key)
            for box, view in box_views(flat[a - low : b - low], boxes, low=a - begin):
                yield Piece(name=name, shape=shape, box=box, values=view)
        begin += size


def _described(path: Path) -> tuple[str, int, str]:
    found = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            found.update(chunk)
        return path.name, file.tell(), found.hexdigest()


def begin_checkpoint(root: Path, step: int) -> Path:
    """An empty folder for a checkpoint that is being made; what is left of one that was not
    finished is removed.
    """
    folder = root / f".step-{step:08d}.unfinished"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def finish_checkpoint(
    folder: Path, written: list[DeviceFiles], known: Training, *, step: int
) -> Path:
    """Write metadata and manifest, and give the checkpoint its name. A checkpoint of that name is
    replaced.

    Args:
        folder: of `begin_checkpoint`.
        written: by `write_device`, of all devices.
    """
    model = known.work.model
    write_metadata([w.written for w in written], folder)
    files = [*(file for w in written for file in w.files), _described(folder / METADATA)]
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": [{"file": name, "bytes": size, "digest": digest} for name, size, digest in files],
        "computed": model_computation(model, known.settings),
        "parameters": [
            [list(key), list(whole_shape(model, key))]
            for key in sorted((*_keys(known), *known.biases))
        ],
    }
    text = json.dumps(manifest)
    with (folder / MANIFEST).open("w") as file:
        json.dump({"digest": _digest(text), "manifest": text}, file)
        file.flush()
        os.fsync(file.fileno())
    _synced(folder)
    target = folder.parent / f"step-{step:08d}"
    before = folder.parent / f".step-{step:08d}.before"
    if target.exists():
        shutil.rmtree(before, ignore_errors=True)
        target.rename(before)
    folder.rename(target)
    _synced(folder.parent)
    shutil.rmtree(before, ignore_errors=True)
    return target


def _synced(folder: Path) -> None:
    """Put the names in a folder on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keys(known: Training) -> list[Key]:
    return sorted({key for bucket in known.buckets if bucket.trainable for key, _ in bucket.boxes})


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint whose files have been verified. Only what is asked for is read."""

    folder: Path
    step: int
    shapes: Mapping[Key, tuple[int, ...]]
    model: Model
    metadata: Metadata

    def has(self, key: Key, state: str) -> bool:
        """A parameter has the state."""
        return tensor_name(self.model, key, state) in self.metadata.state_dict_metadata

    def part(self, key: Key, box: Box, state: str = VALUE) -> torch.Tensor:
        """The part of a parameter, or of a state of it, in a box, dims in the parameter's own
        order.
        """
        name = tensor_name(self.model, key, state)
        found = torch.empty(
            [count(i) for i in box], dtype=self.metadata.state_dict_metadata[name].properties.dtype
        )
        self.fill(
            [
                Piece(name=name, shape=self.shapes[key], box=own, values=view)
                for own, view in box_views(found.view(-1), (box,))
            ]
        )
        return found

    def whole(self, key: Key, state: str = VALUE) -> torch.Tensor:
        """A whole parameter, or a state of it in the parameter's shape."""
        return self.part(key, tuple(((0, n),) for n in self.shapes[key]), state)

    def fill(self, pieces: list[Piece]) -> None:
        """Read pieces, in place."""
        read_pieces(pieces, FileSystemReader(self.folder), self.metadata)


def read_checkpoint(
    folder: Path, *, model: Model, settings: Settings | None = None, share: tuple[int, int] = (0, 1)
) -> SavedCheckpoint:
    """A checkpoint with its files verified.

    Args:
        model: that it must be of.
        settings: that it must compute with; None = the model's own.
        share: (i, n): verify every n-th file from the i-th on, where n processes divide the work.

    Raises:
        DataError: a file lacks, is truncated or altered, or the checkpoint is of another model; the
        file is named.
    """
    manifest = _manifest(folder)
    entries = {entry["file"]: entry for entry in manifest["files"]}
    for name in sorted({*list(entries)[share[0] :: share[1]], METADATA}):
        _verify(folder / name, entries.get(name))
    for name in entries:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} lacks", hint=EARLIER)
    shapes = {_key(key): tuple(shape) for key, shape in manifest["parameters"]}
    for key, shape in shapes.items():
        _same(folder, model, key, shape)
    if "computed" in manifest:  # earlier versions did not write it
        require_same_computation(
            manifest["computed"], model, settings or model.settings, folder=folder
        )
    # The metadata is a pickle: it is read only once it is known to be what was written.
    metadata = FileSystemReader(folder).read_metadata()
    for name, shape, elements in written_elements(metadata):
        if elements != prod(shape):
            raise DataError(f"{folder / METADATA}: elements of {name} lack", hint=EARLIER)
    found = SavedCheckpoint(
        folder=folder, step=manifest["step"], shapes=shapes, model=model, metadata=metadata
    )
    missing = next((key for key in shapes if not found.has(key, VALUE)), None)
    if missing is not None:
        raise DataError(f"{folder / METADATA}: {tensor_name(model, missing)} lacks", hint=EARLIER)
    return found


def has_block(folder: Path, name: str) -> bool:
    """True if a checkpoint's model has a block of that name, or if the checkpoint does not list its
    blocks.

    Raises:
        DataError: the manifest is not whole.
    """
    named = _manifest(folder).get("computed", {f"{name}.": 0})
    return any(key.startswith(f"{name}.") for key in named)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        outer = json.loads(path.read_text())
        if _digest(outer["manifest"]) != outer["digest"]:
            raise ValueError("its digest is another")
        manifest = json.loads(outer["manifest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a whole manifest: {error}", hint=EARLIER) from None
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{path} has format {manifest.get('format')}, not {FORMAT}",
            hint="use the version that wrote it",
        )
    return cast(dict[str, Any], manifest)


def _verify(path: Path, entry: Mapping[str, Any] | None) -> None:
    if entry is None or not path.is_file():
        raise DataError(f"{path} lacks", hint=EARLIER)
    if path.stat().st_size != entry["bytes"]:
        raise DataError(
            f"{path} has {path.stat().st_size} bytes, not {entry['bytes']}",
            hint=f"it is truncated; {EARLIER}",
        )
    if _described(path)[2] != entry["digest"]:
        raise DataError(f"{path} has been altered: its digest is another", hint=EARLIER)


def _key(parts: list[Any]) -> Key:
    run, layer, operator, name = parts
    return int(run), int(layer), str(operator), str(name)


def _same(folder: Path, model: Model, key: Key, shape: tuple[int, ...]) -> None:
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
    """Values of a checkpoint; of frozen parameters, which it does not have, another source's.

    Args:
        state: that is read in place of the value where there is it: ``master`` gives values before
            they were rounded.
    """

    saved: SavedCheckpoint
    frozen: Source
    state: str = VALUE

    def _state(self, key: Key) -> str:
        return self.state if self.saved.has(key, self.state) else VALUE

    def __call__(self, key: Key) -> torch.Tensor:
        """A whole parameter."""
        return (
            self.saved.whole(key, self._state(key))
            if key in self.saved.shapes
            else self.frozen(key)
        )

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """The part of a parameter in a box."""
        return (
            self.saved.part(key, box, self._state(key))
            if key in self.saved.shapes
            else parameter_part(self.frozen, key, box)
        )


def require_biases_kept(saved: SavedCheckpoint, known: Training) -> None:
    """Raise where a checkpoint has biases of routers' choices, which a run that does not keep them
    would begin anew the next time.

    Raises:
        DataError: it has.
    """
    frozen = next(
        (key for key in saved.shapes if not parameter_of(saved.model, key).trainable), None
    )
    if frozen is not None and known.bias_rate is None:
        raise DataError(
            f"{saved.folder} has biases of routers that its run moved"
            f" ({tensor_name(saved.model, frozen)})",
            hint="--router-bias-update with that run's rate, or 0 to keep them as they are",
        )


def resumed_device(
    device: int, known: Training, saved: SavedCheckpoint, *, source: Source
) -> DeviceState:
    """A device as the checkpoint has it, under any plan of the same model: it reads what it holds.

    Args:
        source: of frozen parameters, which a checkpoint does not have.

    Raises:
        DataError: the checkpoint lacks a parameter, or has biases of routers that the run would
        drop.
    """
    require_biases_kept(saved, known)
    missing = [key for key in _keys(known) if key not in saved.shapes]
    if missing:
        raise DataError(
            f"{saved.folder / MANIFEST}: {'.'.join(map(str, missing[0]))} lacks",
            hint="resume with the model that was saved",
        )
    own = device_state(device, known, source=SavedSource(saved=saved, frozen=source))
    for bucket in (b for b in known.buckets if device in b.devices):
        for low, _, states in own.shares(bucket):
            for state, tensor in states.tensors.items():
                # A run that kept no master copy updated the parameter itself.
                wanted = (
                    VALUE
                    if state == "master" and not saved.has(bucket.boxes[0][0], state)
                    else state
                )
                pieces = _of_bucket(known.work.model, bucket, low, tensor, wanted)
                saved.fill(
                    [piece for piece in pieces if piece.name in saved.metadata.state_dict_metadata]
                )
    own.steps = saved.step
    return own
