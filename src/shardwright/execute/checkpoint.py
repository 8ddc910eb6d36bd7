"""Checkpoints that any plan can resume: whole parameters and optimizer states, by owner and index boxes, in files of each device.

A checkpoint is a folder ``step-N`` with one safetensors file a device and ``manifest.json``: which elements of which parameter lie where,
and a digest of every file. It is made beside its place and renamed once all files are on disk, so that what has its name is whole.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any, cast

import torch

from shardwright.errors import DataError
from shardwright.execute.flat import boxed, unboxed, values_of
from shardwright.execute.gradients import dims_in_order
from shardwright.execute.parameters import Key, Source, whole_shape
from shardwright.execute.train import Member, Training, member
from shardwright.model.graph import Model
from shardwright.program.layout import Box

FORMAT = "shardwright-checkpoint-1"
MANIFEST = "manifest.json"
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
VALUE, STATES = "value", ("first", "second", "master")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Elements [start, start + count) of the boxes of a parameter, in a file.

    Args:
        boxes: dims sorted by name. tensors: by state, (name of its dtype, first byte in the file, bytes).
    """

    key: Key
    boxes: tuple[Box, ...]
    start: int
    count: int
    file: str
    tensors: Mapping[str, tuple[str, int, int]]


def write_device(own: Member, known: Training, folder: Path) -> dict[str, Any]:
    """Write the pieces that a device answers for to its file; what the manifest says of them.

    Args:
        folder: exists. Of copies of the same elements one device writes them.
    """
    name = f"device-{own.device:05d}.safetensors"
    entries: list[dict[str, Any]] = []
    content: dict[str, torch.Tensor] = {}
    for bucket in (b for b in known.buckets if own.device in b.devices and b.answers(own.device)):
        sharers = bucket.sharing(own.device)
        low, high = sharers.piece(own.device, bucket.elements, 1)
        if bucket.number in own.pieces:
            outer = sharers.piece(own.device, bucket.elements, 3)[0]
            values = own.pieces[bucket.number][low - outer : high - outer]
        else:
            values = values_of(own.views[bucket.number])[low:high]
        states = {VALUE: values, **own.states[bucket.number].tensors}
        begin = 0
        for (key, boxes), size in zip(bucket.boxes, bucket.sizes, strict=True):
            a, b = max(low, begin), min(high, begin + size)
            if a < b:
                label = f"{'.'.join(map(str, key))}[{len(entries)}]"
                for state, tensor in states.items():
                    content[f"{label}.{state}"] = tensor[a - low : b - low]
                entries.append({"label": label, "key": key, "boxes": boxes, "start": a - begin, "count": b - a, "states": sorted(states)})
            begin += size
    places, size, digest = _write(folder / name, content)
    for entry in entries:
        label = entry.pop("label")
        entry["tensors"] = {state: places[f"{label}.{state}"] for state in entry.pop("states")}
    return {"file": name, "bytes": size, "digest": digest, "pieces": entries}


def _write(path: Path, content: Mapping[str, torch.Tensor]) -> tuple[dict[str, tuple[str, int, int]], int, str]:
    """A safetensors file: length of a header, the header, the tensors' bytes. Places of tensors, size, and digest of the file."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in content.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    places, digest = {}, blake2b(digest_size=16)
    with path.open("wb") as file:
        for chunk in (len(text).to_bytes(8, "little"), text):
            digest.update(chunk)
            file.write(chunk)
        for name, tensor in content.items():
            chunk = tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()
            digest.update(chunk)
            places[name] = (NAMES[tensor.dtype], file.tell(), len(chunk))
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    return places, size, digest.hexdigest()


def begin(root: Path, step: int) -> Path:
    """An empty folder for a checkpoint that is being made; what is left of one that was not finished is removed."""
    folder = root / f".step-{step:08d}.unfinished"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def finish(folder: Path, written: list[dict[str, Any]], known: Training, *, step: int) -> Path:
    """Write the manifest and give the checkpoint its name. A checkpoint of that name is replaced.

    Args:
        folder: of `begin`. written: by `write_device`, of all devices.
    """
    model = known.work.model
    manifest = {
        "format": FORMAT,
        "step": step,
        "files": [{"file": w["file"], "bytes": w["bytes"], "digest": w["digest"]} for w in written],
        "parameters": [[list(key), list(whole_shape(model, key))] for key in _keys(known)],
        "pieces": [{**piece, "file": w["file"]} for w in written for piece in w["pieces"]],
    }
    text = json.dumps(manifest)
    with (folder / MANIFEST).open("w") as file:
        json.dump({"digest": _digest(text), "manifest": text}, file)
        file.flush()
        os.fsync(file.fileno())
    target = folder.parent / f"step-{step:08d}"
    before = folder.parent / f".step-{step:08d}.before"
    if target.exists():
        target.rename(before)
    folder.rename(target)
    shutil.rmtree(before, ignore_errors=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return target


def save(members: Mapping[int, Member], known: Training, root: Path) -> Path:
    """Save all devices of this process; the new checkpoint's folder."""
    step = next(iter(members.values())).steps
    folder = begin(root, step)
    return finish(folder, [write_device(own, known, folder) for own in members.values()], known, step=step)


def _keys(known: Training) -> list[Key]:
    return sorted({key for bucket in known.buckets for key, _ in bucket.boxes})


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def latest(root: Path) -> Path | None:
    """The newest finished checkpoint; None if there is none."""
    found = [p for p in root.glob("step-*") if (p / MANIFEST).exists()] if root.is_dir() else []
    return max(found, key=lambda p: p.name, default=None)


@dataclass(slots=True)
class Saved:
    """A checkpoint whose files have been verified. `whole` makes parameters and states of it, one at a time."""

    folder: Path
    step: int
    shapes: dict[Key, tuple[int, ...]]
    pieces: dict[Key, list[_Piece]]
    model: Model
    maps: dict[str, mmap.mmap] = field(default_factory=dict)
    known: tuple[tuple[Key, str], torch.Tensor] | None = None

    def has(self, key: Key, state: str) -> bool:
        """Every piece of a parameter has the state."""
        return all(state in piece.tensors for piece in self.pieces[key])

    def whole(self, key: Key, state: str = VALUE) -> torch.Tensor:
        """A whole parameter, or a state of it in the parameter's shape."""
        if self.known is not None and self.known[0] == (key, state):
            return self.known[1]
        order, result = dims_in_order(self.model, key), torch.empty(0)
        for piece in self.pieces[key]:
            name, at, size = piece.tensors[state]
            values = torch.frombuffer(bytearray(self._map(piece.file)[at : at + size]), dtype=DTYPES[name])
            if not result.numel():
                result = torch.empty(self.shapes[key], dtype=values.dtype)
            unboxed(result, piece.boxes, order, low=piece.start, values=values)
        self.known = ((key, state), result)
        return result

    def _map(self, file: str) -> mmap.mmap:
        if file not in self.maps:
            with (self.folder / file).open("rb") as opened:
                self.maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self.maps[file]


def read(folder: Path, *, model: Model) -> Saved:
    """A checkpoint, every file of it verified.

    Args:
        model: that it must be of.

    Raises:
        DataError: a file lacks, is truncated or altered, or the checkpoint is of another model; the file is named.
    """
    manifest = _manifest(folder)
    for entry in manifest["files"]:
        _verify(folder / entry["file"], size=entry["bytes"], digest=entry["digest"])
    shapes = {_key(key): tuple(shape) for key, shape in manifest["parameters"]}
    pieces: dict[Key, list[_Piece]] = {key: [] for key in shapes}
    for entry in manifest["pieces"]:
        boxes = tuple(tuple(tuple((a, b) for a, b in dim) for dim in box) for box in entry["boxes"])
        tensors = {state: (name, at, size) for state, (name, at, size) in entry["tensors"].items()}
        key = _key(entry["key"])
        pieces[key].append(_Piece(key=key, boxes=boxes, start=entry["start"], count=entry["count"], file=entry["file"], tensors=tensors))
    for key, shape in shapes.items():
        _same(folder, model, key, shape)
        if sum(p.count for p in pieces[key]) != prod(shape):
            raise DataError(f"{folder / MANIFEST}: elements of {'.'.join(map(str, key))} lack", hint="resume from an earlier checkpoint")
    return Saved(folder=folder, step=manifest["step"], shapes=shapes, pieces=pieces, model=model)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        outer = json.loads(path.read_text())
        if _digest(outer["manifest"]) != outer["digest"]:
            raise ValueError("its digest is another")
        manifest = json.loads(outer["manifest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is not a whole manifest: {error}", hint="resume from an earlier checkpoint") from None
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path} has format {manifest.get('format')}, not {FORMAT}", hint="use the version that wrote it")
    return cast(dict[str, Any], manifest)


def _verify(path: Path, *, size: int, digest: str) -> None:
    if not path.is_file():
        raise DataError(f"{path} lacks", hint="resume from an earlier checkpoint")
    if path.stat().st_size != size:
        raise DataError(f"{path} has {path.stat().st_size} bytes, not {size}", hint="it is truncated; resume from an earlier checkpoint")
    found = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            found.update(chunk)
    if found.hexdigest() != digest:
        raise DataError(f"{path} has been altered: its digest is another", hint="resume from an earlier checkpoint")


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


def resumed(device: int, known: Training, saved: Saved, *, source: Source) -> Member:
    """A device as the checkpoint has it, under any plan of the same model: it slices what it holds.

    Args:
        source: of frozen parameters, which a checkpoint does not have.

    Raises:
        DataError: the checkpoint lacks a parameter.
    """
    missing = [key for key in _keys(known) if key not in saved.shapes]
    if missing:
        raise DataError(f"{saved.folder / MANIFEST}: {'.'.join(map(str, missing[0]))} lacks", hint="resume with the model that was saved")
    own = member(device, known, source=lambda key: saved.whole(key) if key in saved.shapes else source(key))
    for bucket in (b for b in known.buckets if device in b.devices):
        low, high = bucket.sharing(device).piece(device, bucket.elements, 1)
        states = own.states[bucket.number].tensors
        begin = 0
        for (key, boxes), size in zip(bucket.boxes, bucket.sizes, strict=True):
            a, b = max(low, begin), min(high, begin + size)
            order = dims_in_order(known.work.model, key)
            for state in (s for s in STATES if a < b and s in states and saved.has(key, s)):
                states[state][a - low : b - low] = boxed(saved.whole(key, state), boxes, order, low=a - begin, high=b - begin)
            begin += size
    own.steps = saved.step
    return own
