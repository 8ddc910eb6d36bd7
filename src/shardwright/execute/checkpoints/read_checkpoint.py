"""Open a checkpoint after verifying its files and its model, and read its tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from shardwright.errors import DataError
from shardwright.execute.checkpoints.checkpoint_tensor_names_and_file_digests import (
    EARLIER,
    FORMAT,
    METADATA,
    VALUE,
    file_description,
    tensor_name,
    text_digest,
)
from shardwright.execute.checkpoints.find_finished_checkpoints import MANIFEST
from shardwright.execute.checkpoints.same_computation_check import (
    require_same_computation,
)
from shardwright.execute.checkpoints.torch_checkpoint_planners import (
    CheckpointPiece,
    read_pieces,
    written_elements,
)
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    Source,
    parameter_part,
    whole_shape,
)
from shardwright.execute.device_state.views_of_flat_ranges_as_boxes import box_views
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.program.layout.tensor_layout import Box, count


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
    """Open a checkpoint; verify its model, and each n-th file from the i-th: `share` = (i, n).

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
    """Read a checkpoint's manifest; `DataError` if it is damaged or of another format."""
    path = folder / MANIFEST
    try:
        outer = json.loads(path.read_text())
        if text_digest(outer["manifest"]) != outer["digest"]:
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
    if file_description(path)[2] != entry["digest"]:
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
        """A full parameter from the checkpoint (`state` if stored), else from source `frozen`."""
        return (
            self.saved.whole(key, self._state_name(key))
            if key in self.saved.shapes
            else self.frozen(key)
        )

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """A parameter's box from the checkpoint (`state` if stored), else from source `frozen`."""
        return (
            self.saved.part(key, box, self._state_name(key))
            if key in self.saved.shapes
            else parameter_part(self.frozen, key, box)
        )
