"""Writer of Hugging Face safetensors: shards, their index and the configuration.

Tensors are written one after another.

Naming rules are those of reading. A file is eight bytes with the length of
a JSON header, the header, and the tensors one after another (safetensors, format).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path

import torch

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    Source,
    SourceOfParts,
    parameter_part,
    whole_shape,
)
from shardwright.execute.weights.family_parameter_names import CONFIG, naming_rules_of
from shardwright.execute.weights.parameter_slices_of_stored_tensors import (
    StoredTensor,
    TensorSlice,
    stored_parameters,
    stored_tensor_of,
    tensor_slices,
)
from shardwright.execute.weights.read_weights import FLOATS, INDEX, SINGLE
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import PREDICTED, num_predictors_of
from shardwright.model.families.huggingface_config import parse_config
from shardwright.model.find_routers_with_balancing_loss_or_biases import selection_biases
from shardwright.model.ir.model_graph import Model

SHARD_BYTES = 5_000_000_000
DTYPE_NAMES = {dtype: word for word, dtype in FLOATS.items()}
"""Name of each dtype in a safetensors header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorToWrite:
    """A tensor to write: shape, dtype, and the parameter slices that it consists of."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[tuple[Key, StoredTensor, TensorSlice]]

    @property
    def bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return prod(self.shape) * int(self.dtype.itemsize)


def save_weights(
    source: Source,
    *,
    model: Model,
    config: Path,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> tuple[Path, ...]:
    """Write a model's parameters and configuration to a new folder; returns the weight files.

    The files are as the family's class in Transformers writes them.

    Args:
        source: source of parameters, such as `SavedSource` of a checkpoint.
        config: ``config.json`` of the model, which is copied with the files' dtype.
        dtype: format of the files; router choice biases have at least float32, as in Transformers.
        shard_bytes: maximum bytes of tensors in a file, unless one tensor is larger. One tensor is
            in memory at a time.

    Raises:
        DataError: the family has no naming rules; the folder exists; a file cannot be written.
    """
    planned = _tensors_to_write(model, dtype)
    parts_source: object = source
    parts = source if isinstance(parts_source, SourceOfParts) else lru_cache(maxsize=1)(source)
    if folder.exists():
        raise DataError(f"{folder} exists", hint="give the name of a folder that does not")
    shards: list[list[str]] = [[]]
    sizes = {name: tensor.bytes for name, tensor in planned.items()}
    for name in planned:
        if shards[-1] and sum(sizes[n] for n in shards[-1]) + sizes[name] > shard_bytes:
            shards.append([])
        shards[-1].append(name)
    files = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    )
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        unfinished.mkdir(parents=True)
        (unfinished / CONFIG).write_text(_config_text(config, dtype, model))
        for file, names in zip(files, shards, strict=True):
            _write_safetensors(unfinished / file, {name: planned[name] for name in names}, parts)
        if len(files) > 1:
            file_of_tensor = {
                name: file for file, names in zip(files, shards, strict=True) for name in names
            }
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": file_of_tensor}
            (unfinished / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        os.rename(unfinished, folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}", hint="give a folder with room for the weights"
        ) from None
    return tuple(folder / file for file in files)


def _tensors_to_write(model: Model, dtype: torch.dtype) -> dict[str, _TensorToWrite]:
    """Tensor name -> shape, dtype and parameter slices of each tensor to write."""
    family = naming_rules_of(model.architecture)
    tensors: dict[str, _TensorToWrite] = {}
    biases = set(selection_biases(model))
    for key, _ in stored_parameters(model):
        stored, tensor_dtype = (
            stored_tensor_of(model, family, key),
            torch.promote_types(dtype, torch.float32) if key in biases else dtype,
        )
        for piece in tensor_slices(stored, tuple(((0, n),) for n in whole_shape(model, key))):
            tensors.setdefault(
                piece.tensor, _TensorToWrite(shape=stored.shape, dtype=tensor_dtype, parts=[])
            ).parts.append((key, stored, piece))
    return tensors


def _assemble_tensor(tensor: _TensorToWrite, source: Source) -> torch.Tensor:
    """Assemble a full tensor from the parameters that it consists of."""
    result, filled = torch.empty(tensor.parts[0][1].flat, dtype=tensor.dtype), 0
    for key, stored, piece in tensor.parts:
        values = parameter_part(source, key, tuple((interval,) for interval in piece.into))
        values = values - stored.add if stored.add else values
        experts = values.dim() - sum(d >= 0 for d in piece.dims)
        values = values.reshape(values.shape[experts:])
        order = [d - experts for d in piece.dims if d >= 0]
        values = values.permute(order)
        for dim, d in enumerate(piece.dims):
            values = values.unsqueeze(dim) if d < 0 else values
        place_of = torch.meshgrid(
            *(
                torch.arange(a, b) if pick is None else a + torch.from_numpy(pick)
                for (a, b), pick in zip(piece.box, piece.pick, strict=True)
            ),
            indexing="ij",
        )
        result[place_of] = values.to(tensor.dtype)
        filled += values.numel()
    assert filled == result.numel(), "a family's table covers every element of its tensors once"
    return result


def _config_text(config: Path, dtype: torch.dtype, model: Model) -> str:
    """``config.json`` text with the written dtype, and 0 prediction modules if `model` has none."""
    fields = parse_config(config.read_bytes(), source=str(config))
    fields["dtype" if "dtype" in fields else "torch_dtype"] = str(dtype).removeprefix("torch.")
    if not num_predictors_of(model):
        fields |= dict.fromkeys((name for name in PREDICTED if fields.get(name)), 0)
    return json.dumps(fields, indent=2) + "\n"


def _write_safetensors(path: Path, tensors: Mapping[str, _TensorToWrite], source: Source) -> None:
    """Write a safetensors file, assembling each tensor when it is written."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.bytes
        header[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(_assemble_tensor(tensor, source).reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
