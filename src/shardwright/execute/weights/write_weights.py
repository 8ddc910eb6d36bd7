"""Write parameters as Hugging Face safetensors, tensor by tensor: shards, their index and the
configuration.

Where each parameter stands is the table that reading uses. A file is eight bytes with the length of
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
from shardwright.execute.device_state.device_parameters import (
    Key,
    Source,
    SourceOfParts,
    parameter_part,
    whole_shape,
)
from shardwright.execute.weights.parameter_layout import (
    Patch,
    Stored,
    patches,
    stored_parameters,
    stored_place,
)
from shardwright.execute.weights.parameter_names import CONFIG, family_of
from shardwright.execute.weights.read_weights import FLOATS, INDEX, SINGLE
from shardwright.lazy_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import PREDICTED, predictors_of
from shardwright.model.families.huggingface_config import parse_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.router_balancing import choice_biases

SHARD_BYTES = 5_000_000_000
WORDS = {dtype: word for word, dtype in FLOATS.items()}
"""Name of each dtype in a safetensors header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor to write: its shape and dtype, and what of which parameters it is made of."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[tuple[Key, Stored, Patch]]

    @property
    def bytes(self) -> int:
        """In the file."""
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
    """Write all parameters of a model to a new folder as its family's class in Transformers would;
    the files of tensors.

    Args:
        source: of a checkpoint: `SavedSource`.
        config: ``config.json`` of the model, which is copied with the dtype of the files.
        dtype: of the files; biases of routers' choices have float32 at least, as in Transformers.
        shard_bytes: most bytes of tensors in a file, but for a larger one. One tensor is in memory
            at a time.

    Raises:
        DataError: the family has no table; the folder exists; a file cannot be written.
    """
    planned = _planned(model, dtype)
    asked: object = source
    parts = source if isinstance(asked, SourceOfParts) else lru_cache(maxsize=1)(source)
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
    made = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    try:
        made.mkdir(parents=True)
        (made / CONFIG).write_text(_configured(config, dtype, model))
        for file, names in zip(files, shards, strict=True):
            _write(made / file, {name: planned[name] for name in names}, parts)
        if len(files) > 1:
            listed = {
                name: file for file, names in zip(files, shards, strict=True) for name in names
            }
            index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": listed}
            (made / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
        os.rename(made, folder)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error}", hint="give a folder with room for the weights"
        ) from None
    return tuple(folder / file for file in files)


def _planned(model: Model, dtype: torch.dtype) -> dict[str, _Tensor]:
    """Every tensor that is written."""
    family = family_of(model.architecture)
    found: dict[str, _Tensor] = {}
    biases = set(choice_biases(model))
    for key, _ in stored_parameters(model):
        place, own = (
            stored_place(model, family, key),
            torch.promote_types(dtype, torch.float32) if key in biases else dtype,
        )
        for patch in patches(place, tuple(((0, n),) for n in whole_shape(model, key))):
            found.setdefault(
                patch.tensor, _Tensor(shape=place.shape, dtype=own, parts=[])
            ).parts.append((key, place, patch))
    return found


def _assembled(tensor: _Tensor, source: Source) -> torch.Tensor:
    """A whole tensor from the parameters that it is made of."""
    result, filled = torch.empty(tensor.parts[0][1].flat, dtype=tensor.dtype), 0
    for key, place, patch in tensor.parts:
        values = parameter_part(source, key, tuple((interval,) for interval in patch.into))
        values = values - place.add if place.add else values
        experts = values.dim() - sum(d >= 0 for d in patch.dims)
        values = values.reshape(values.shape[experts:])
        order = [d - experts for d in patch.dims if d >= 0]
        values = values.permute(order)
        for dim, d in enumerate(patch.dims):
            values = values.unsqueeze(dim) if d < 0 else values
        place_of = torch.meshgrid(
            *(
                torch.arange(a, b) if pick is None else a + torch.from_numpy(pick)
                for (a, b), pick in zip(patch.box, patch.pick, strict=True)
            ),
            indexing="ij",
        )
        result[place_of] = values.to(tensor.dtype)
        filled += values.numel()
    assert filled == result.numel(), "a family's table covers every element of its tensors once"
    return result


def _configured(config: Path, dtype: torch.dtype, model: Model) -> str:
    """The text of a configuration that says which dtype the files have, and that there are no
    prediction modules where there are none.
    """
    found = parse_config(config.read_bytes(), source=str(config))
    found["dtype" if "dtype" in found else "torch_dtype"] = str(dtype).removeprefix("torch.")
    if not predictors_of(model):
        found |= dict.fromkeys((name for name in PREDICTED if found.get(name)), 0)
    return json.dumps(found, indent=2) + "\n"


def _write(path: Path, tensors: Mapping[str, _Tensor], source: Source) -> None:
    """Write a file of tensors, each made when its turn comes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + tensor.bytes
        header[name] = {
            "dtype": WORDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(_assembled(tensor, source).reshape(-1).view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
