"""Reader of Hugging Face safetensors: each device reads only its slices of parameters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from shardwright.errors import DataError, ModelError
from shardwright.execute.checkpoints.draw_initial_parameter_values import InitialValues
from shardwright.execute.device_state.stored_parameter_parts import Key, origin, whole_shape
from shardwright.execute.weights.family_parameter_names import CONFIG, naming_rules_of
from shardwright.execute.weights.naming_rules import FamilyNames
from shardwright.execute.weights.parameter_slices_of_stored_tensors import (
    StoredTensor,
    TensorSlice,
    adapter_keys,
    stored_parameters,
    stored_tensor_of,
    tensor_slices,
)
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import num_predictors_of, without_predictors
from shardwright.model.families.huggingface_config import load_config
from shardwright.model.freeze_parameters_or_add_lora import LEFT_OUT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.layout.tensor_layout import Box, count

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
COMPARED = 64
"""Minimum number of rows of a head that are compared with the embedding."""
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceWeights:
    """Parameter source: a folder of safetensors that has been checked against a model.

    Args:
        files: (file, name in the file) of every tensor.
        dtype: format of the values that are returned.
        beside: initial values of adapters, which no file has.
        remarks: sentences on tensors of the folder that the model does not use.
    """

    folder: Path
    model: Model
    family: FamilyNames
    files: Mapping[str, tuple[str, str]]
    dtype: torch.dtype
    beside: InitialValues
    remarks: tuple[str, ...] = ()

    def __call__(self, key: Key) -> torch.Tensor:
        """Read a full parameter from the files, or draw it if it is an adapter's."""
        return self.part(key, tuple(((0, n),) for n in whole_shape(self.model, key)))

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """Read only a box of a parameter from the files, or draw it if it is an adapter's.

        Raises:
            DataError: the file can no longer be read.
        """
        if key in adapter_keys(self.model):
            return self.beside.part(key, box)
        stored = stored_tensor_of(self.model, self.family, key)
        result = torch.empty([count(i) for i in box], dtype=self.dtype)
        by_file: dict[str, list[TensorSlice]] = {}
        for piece in tensor_slices(stored, box):
            by_file.setdefault(self.files[piece.tensor][0], []).append(piece)
        for name, slices_of_file in by_file.items():
            with _open_safetensors(self.folder / name) as file:
                for piece in slices_of_file:
                    values = _read_slice(file.get_slice(self.files[piece.tensor][1]), piece, stored)
                    result[tuple(slice(a, b) for a, b in piece.into)] = _to_our_dims(
                        values, piece, stored, result
                    )
        return result


def _read_slice(tensor: Any, piece: TensorSlice, stored: StoredTensor) -> torch.Tensor:
    """Read a box of a file's tensor, in the tensor's own order of dims.

    Dims that are one dim of our parameter are read in full and merged first.
    """
    box = tuple(slice(a, b) for a, b in piece.box)
    if tuple(tensor.get_shape()) != stored.shape:
        return cast(torch.Tensor, tensor[(*box[:-2], box[-1], box[-2])].mT)
    if stored.first > 1:
        return cast(torch.Tensor, tensor[:].reshape(stored.flat)[box])
    if len(stored.shape) == len(box):
        return cast(torch.Tensor, tensor[box])
    return cast(torch.Tensor, tensor[box[:-1]].flatten(len(box) - 1)[..., box[-1]])


def _to_our_dims(
    values: torch.Tensor, piece: TensorSlice, stored: StoredTensor, like: torch.Tensor
) -> torch.Tensor:
    """Pick, transpose and shift values read from a tensor to a parameter's dims and values."""
    for dim, pick in enumerate(piece.pick):
        if pick is not None:
            values = values.index_select(dim, torch.from_numpy(pick))
    values = values.reshape([n for n, d in zip(values.shape, piece.dims, strict=True) if d >= 0])
    our_dims = [d for d in piece.dims if d >= 0]
    values = values.permute([our_dims.index(d) for d in sorted(our_dims)]).reshape(
        [b - a for a, b in piece.into]
    )
    return (
        values.to(torch.promote_types(like.dtype, torch.float32)) + stored.add
        if stored.add
        else values
    )


def open_weights(
    folder: Path, *, model: Model, dtype: torch.dtype, seed: int = 0
) -> HuggingFaceWeights:
    """Open a folder of Hugging Face weights, and check that it has every tensor of the model.

    The folder has ``config.json`` and ``model.safetensors``, or shards and their index. The headers
    of all files are read, so that a missing tensor is found before the first step.

    Args:
        model: the model that is trained; the folder's configuration must describe the same model,
            without adapters.
        dtype: format of the values, independent of the files' format.
        seed: seed of the adapters' initial values.

    Raises:
        DataError: the family has no naming rules; a file or a tensor is missing, truncated, or of
        another shape or dtype; the configuration is of another model (prediction modules may be
        left out); the model has a teacher. The error names file and tensor.
    """
    if model.teacher_layers:
        raise DataError(
            "weights of a model and its teacher are not read yet",
            hint="without --weights both begin at random values",
        )
    family = naming_rules_of(model.architecture)
    described = _require_model(folder, model.base or model)
    file_of_tensor = _read_index(folder)
    headers: dict[str, _TensorHeader] = {}
    for name in sorted(set(file_of_tensor.values()) if file_of_tensor else {SINGLE}):
        headers |= _read_headers(folder, name)
    files: dict[str, tuple[str, str]] = {}
    if num_predictors_of(model) and not _has_predictors(model, family, headers):
        raise DataError(
            f"{folder}: its files have nothing of the {_module_count_text(model)} that its"
            f" {CONFIG} names, as Transformers saves {family.name}",
            hint=f"plan the model without, and it is read: --train {LEFT_OUT}",
        )
    for tensor, stored in stored_tensors(model, family):
        if tensor not in files:
            files[tensor] = _locate_tensor(folder, family, headers, tensor, stored, file_of_tensor)
    _require_tied(folder, model, family, headers)
    return HuggingFaceWeights(
        folder=folder,
        model=model,
        family=family,
        files=files,
        dtype=dtype,
        beside=InitialValues(model=model, seed=seed, dtype=dtype),
        remarks=_unused_modules(folder, model, described, family, headers),
    )


def stored_tensors(model: Model, family: FamilyNames) -> Iterator[tuple[str, StoredTensor]]:
    """Iterate over (tensor name, layout) of tensors that hold the model's parameters; may repeat.

    A tensor may occur several times.
    """
    for key, _ in stored_parameters(model):
        if key not in adapter_keys(model):
            stored = stored_tensor_of(model, family, key)
            names = dict.fromkeys(
                p.tensor
                for p in tensor_slices(stored, tuple(((0, n),) for n in whole_shape(model, key)))
            )
            yield from ((name, stored) for name in names)


def _has_predictors(
    model: Model, family: FamilyNames, headers: Mapping[str, _TensorHeader]
) -> bool:
    """True if the files have any tensor that only prediction modules (MTP) use."""
    other_tensors = {name for name, _ in stored_tensors(without_predictors(model), family)}
    predictor_tensors = {name for name, _ in stored_tensors(model, family)} - other_tensors
    return any(
        name in headers or family.alternative_name(name) in headers for name in predictor_tensors
    )


def _module_count_text(model: Model) -> str:
    """Text for messages such as ``1 prediction module``."""
    number = num_predictors_of(model)
    return f"{number} prediction module{'s' if number > 1 else ''}"


def _unused_modules(
    folder: Path,
    model: Model,
    described: Model,
    family: FamilyNames,
    headers: Mapping[str, _TensorHeader],
) -> tuple[str, ...]:
    """At most one remark: prediction modules in the folder's configuration that the model lacks."""
    if num_predictors_of(model) or not num_predictors_of(described):
        return ()
    is_missing = bool(family.predictors) and not _has_predictors(described, family, headers)
    why = "of which its files have nothing" if is_missing else "which is not trained"
    return (
        f"the model is without the {_module_count_text(described)} that {folder / CONFIG} names,"
        f" {why}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TensorHeader:
    """File, shape and dtype of a tensor, from a safetensors header."""

    file: str
    shape: tuple[int, ...]
    dtype: str


def _locate_tensor(
    folder: Path,
    family: FamilyNames,
    headers: Mapping[str, _TensorHeader],
    tensor: str,
    stored: StoredTensor,
    file_of_tensor: Mapping[str, str],
) -> tuple[str, str]:
    """(file, name in the file) of a tensor, checked for its shape and dtype."""
    name = tensor if tensor in headers else family.alternative_name(tensor)
    if name not in headers:
        file = folder / file_of_tensor.get(tensor, INDEX if file_of_tensor else SINGLE)
        hint = f"give the whole checkpoint of {family.name}"
        untied = (
            "; a model whose logits are the embedding says tie_word_embeddings"
            if tensor.startswith("lm_head")
            else ""
        )
        raise DataError(f"{file}: tensor {tensor} is missing", hint=f"{hint}{untied}")
    header = headers[name]
    if header.shape not in stored.shapes:
        raise DataError(
            f"{folder / header.file}: tensor {name} has shape {list(header.shape)}, not"
            f" {list(stored.shape)}",
            hint="give the weights of the model that the configuration describes",
        )
    if header.dtype not in FLOATS:
        raise DataError(
            f"{folder / header.file}: tensor {name} is stored as {header.dtype}",
            hint=f"convert it to one of {', '.join(FLOATS)} first",
        )
    return header.file, name


def _require_tied(
    folder: Path, model: Model, family: FamilyNames, headers: Mapping[str, _TensorHeader]
) -> None:
    """Raise DataError if sampled rows of a file's head differ from the embedding it is tied to.

    Some rows are compared: after separate training every row differs.
    """
    heads = [(i, run) for i, run in enumerate(model.runs) if run.name == "head"]
    for number, operator in ((i, o) for i, run in heads for o in model.blocks[run.block].operators):
        for parameter in (
            p for p in operator.parameters if p.tied_to and p.klass is ParameterClass.HEAD
        ):
            keys = (
                (number, 0, operator.name, parameter.name),
                origin(model, number, 0, operator, parameter).key,
            )
            head, owner = (stored_tensor_of(model, family, key).tensor for key in keys)
            names = [
                name if name in headers else family.alternative_name(name) for name in (head, owner)
            ]
            if names[0] not in headers or names[0] == names[1]:
                continue
            rows = [_some_rows(folder, headers[name], name) for name in names]
            if rows[0].shape != rows[1].shape or not torch.equal(*rows):
                raise DataError(
                    f"{folder / headers[names[0]].file}: tensor {names[0]} is not the embedding, as"
                    " the configuration says that it is",
                    hint=(
                        f"write tie_word_embeddings false into {folder / CONFIG}, or leave the"
                        " tensor out"
                    ),
                )


def _some_rows(folder: Path, header: _TensorHeader, name: str) -> torch.Tensor:
    """Read about COMPARED evenly spaced rows of a file's tensor, as float64."""
    with _open_safetensors(folder / header.file) as file:
        part = file.get_slice(name)
        return torch.stack(
            [
                part[row].double()
                for row in range(0, header.shape[0], max(header.shape[0] // COMPARED, 1))
            ]
        )


def _require_model(folder: Path, model: Model) -> Model:
    """Model of the folder's configuration; DataError if it differs from `model`, but for MTP.

    Raises:
        DataError: it is another model.
    """
    path = folder / CONFIG
    try:
        described = load_config(path)
    except ModelError as error:
        raise DataError(error.message, hint=error.hint) from None
    comparable = described if num_predictors_of(model) else without_predictors(described)
    pairs = {
        "architecture": (comparable.architecture, model.architecture),
        "hidden width": (comparable.hidden, model.hidden),
        "vocabulary": (comparable.vocab, model.vocab),
        "blocks in a row": (
            sum(r.count for r in comparable.runs),
            sum(r.count for r in model.runs),
        ),
        "parameters": (comparable.num_parameters, model.num_parameters),
        "blocks": (comparable.blocks, model.blocks),
        "order of layers": (comparable.runs, model.runs),
        "patches of images": (comparable.settings.image, model.settings.image),
        "pairs of rotary elements": (comparable.settings.rope_pairs, model.settings.rope_pairs),
    }
    for property_name, (theirs, ours) in pairs.items():
        if theirs != ours:
            shown = f" ({theirs}, not {ours})" if isinstance(theirs, int | str) else ""
            raise DataError(
                f"{path}: it is of another model: {property_name} differ{shown}",
                hint=f"train the model of that file, or give {model.name}'s",
            )
    return described


def _read_index(folder: Path) -> dict[str, str]:
    """File of every tensor, from the index; empty where all tensors are in one file."""
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        listed = json.loads(path.read_text())["weight_map"]
        if not isinstance(listed, dict) or not all(
            isinstance(n, str) and Path(n).name == n for n in listed.values()
        ):
            raise ValueError("weight_map does not name files of this folder")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} is not an index of safetensors: {error}", hint="give a whole checkpoint"
        ) from None
    return listed


def _read_headers(folder: Path, name: str) -> dict[str, _TensorHeader]:
    """Name -> (file name, shape, dtype name) of each tensor of a safetensors file."""
    headers = {}
    with _open_safetensors(folder / name) as file:
        for tensor in file.keys():  # noqa: SIM118
            part = file.get_slice(tensor)
            headers[tensor] = _TensorHeader(
                file=name, shape=tuple(part.get_shape()), dtype=part.get_dtype()
            )
    return headers


@contextmanager
def _open_safetensors(path: Path) -> Iterator[Any]:
    """Context manager that opens a safetensors file; truncated files raise `DataError`."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise DataError(
            f"{path} needs the safetensors package", hint="pip install 'shardwright[run]'"
        ) from None
    if not path.is_file():
        raise DataError(f"{path} is missing", hint="give a whole checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is no whole safetensors file: {error}",
            hint="fetch it again: it is truncated or damaged",
        ) from None
