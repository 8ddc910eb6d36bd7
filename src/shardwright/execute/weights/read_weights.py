"""Read parameters from Hugging Face safetensors: a device reads the slices that it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from shardwright.errors import DataError, ModelError
from shardwright.execute.checkpoints.initial_values import InitialValues
from shardwright.execute.device_state.device_parameters import Key, origin, whole_shape
from shardwright.execute.weights.naming_rules import Family
from shardwright.execute.weights.parameter_layout import (
    Patch,
    Stored,
    adapters,
    patches,
    stored_parameters,
    stored_place,
)
from shardwright.execute.weights.parameter_names import CONFIG, family_of
from shardwright.lazy_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import predictors_of, without_predictors
from shardwright.model.families.huggingface_config import load_config
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.model.trained_parameters import LEFT_OUT
from shardwright.program.layout.tensor_layout import Box, count

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
COMPARED = 64
"""Rows, or some more, of a head that are compared with the embedding."""
FLOATS = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceWeights:
    """A source of parameters: a folder of safetensors that has been verified against a model.

    Args:
        files: of every tensor, its file and its name there.
        dtype: of what is read.
        beside: what adapters begin with, which no file has.
        remarks: what of the folder the model is without, in a sentence.
    """

    folder: Path
    model: Model
    family: Family
    files: Mapping[str, tuple[str, str]]
    dtype: torch.dtype
    beside: InitialValues
    remarks: tuple[str, ...] = ()

    def __call__(self, key: Key) -> torch.Tensor:
        """A whole parameter."""
        return self.part(key, tuple(((0, n),) for n in whole_shape(self.model, key)))

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """The part of a parameter in a box: only the slices of it are read.

        Raises:
            DataError: the file cannot be read any more.
        """
        if key in adapters(self.model):
            return self.beside.part(key, box)
        found = stored_place(self.model, self.family, key)
        result = torch.empty([count(i) for i in box], dtype=self.dtype)
        by_file: dict[str, list[Patch]] = {}
        for patch in patches(found, box):
            by_file.setdefault(self.files[patch.tensor][0], []).append(patch)
        for name, wanted in by_file.items():
            with _opened(self.folder / name) as file:
                for patch in wanted:
                    values = _slice(file.get_slice(self.files[patch.tensor][1]), patch, found)
                    result[tuple(slice(a, b) for a, b in patch.into)] = _ours(
                        values, patch, found, result
                    )
        return result


def _slice(tensor: Any, patch: Patch, found: Stored) -> torch.Tensor:
    """A box of a tensor of a file; of its first or last dims, where they are one of ours, all is
    read first.
    """
    box = tuple(slice(a, b) for a, b in patch.box)
    if tuple(tensor.get_shape()) != found.shape:
        return cast(torch.Tensor, tensor[(*box[:-2], box[-1], box[-2])].mT)
    if found.first > 1:
        return cast(torch.Tensor, tensor[:].reshape(found.flat)[box])
    if len(found.shape) == len(box):
        return cast(torch.Tensor, tensor[box])
    return cast(torch.Tensor, tensor[box[:-1]].flatten(len(box) - 1)[..., box[-1]])


def _ours(values: torch.Tensor, patch: Patch, found: Stored, like: torch.Tensor) -> torch.Tensor:
    """The values read, picked and transposed to our dims and dtype."""
    for dim, pick in enumerate(patch.pick):
        if pick is not None:
            values = values.index_select(dim, torch.from_numpy(pick))
    values = values.reshape([n for n, d in zip(values.shape, patch.dims, strict=True) if d >= 0])
    own = [d for d in patch.dims if d >= 0]
    values = values.permute([own.index(d) for d in sorted(own)]).reshape(
        [b - a for a, b in patch.into]
    )
    return (
        values.to(torch.promote_types(like.dtype, torch.float32)) + found.add
        if found.add
        else values
    )


def open_weights(
    folder: Path, *, model: Model, dtype: torch.dtype, seed: int = 0
) -> HuggingFaceWeights:
    """The weights of a model in a folder with ``config.json`` and ``model.safetensors``, or shards
    and their index.

    Headers of all files are read, and every tensor that the model needs is sought: no step begins
    with a tensor missing.

    Args:
        model: that is trained; the folder's configuration must describe the same, but for adapters.
        dtype: of what is read, whatever the files have.
        seed: of adapters' first values.

    Raises:
        DataError: the family has no table; a file lacks or is truncated; a tensor lacks, or has
            another shape or dtype; the configuration is of another model, but for prediction
            modules that the model is without. File and tensor are named. A model beside a teacher.
    """
    if model.teacher_layers:
        raise DataError(
            "weights of a model and its teacher are not read yet",
            hint="without --weights both begin at random values",
        )
    family = family_of(model.architecture)
    described = _require_model(folder, model.base or model)
    listed = _listed(folder)
    headers: dict[str, _Header] = {}
    for name in sorted(set(listed.values()) if listed else {SINGLE}):
        headers |= _headers(folder, name)
    files: dict[str, tuple[str, str]] = {}
    if predictors_of(model) and not _has_predictors(model, family, headers):
        raise DataError(
            f"{folder}: its files have nothing of the {_modules(model)} that its {CONFIG} names, as"
            f" Transformers saves {family.name}",
            hint=f"plan the model without, and it is read: --train {LEFT_OUT}",
        )
    for tensor, place in tensors_of(model, family):
        if tensor not in files:
            files[tensor] = _require(folder, family, headers, tensor, place, listed)
    _require_tied(folder, model, family, headers)
    return HuggingFaceWeights(
        folder=folder,
        model=model,
        family=family,
        files=files,
        dtype=dtype,
        beside=InitialValues(model=model, seed=seed, dtype=dtype),
        remarks=_left_out(folder, model, described, family, headers),
    )


def tensors_of(model: Model, family: Family) -> Iterator[tuple[str, Stored]]:
    """Every tensor that some part of a model's parameters stands in, with how; one may come several
    times.
    """
    for key, _ in stored_parameters(model):
        if key not in adapters(model):
            place = stored_place(model, family, key)
            names = dict.fromkeys(
                p.tensor for p in patches(place, tuple(((0, n),) for n in whole_shape(model, key)))
            )
            yield from ((name, place) for name in names)


def _has_predictors(model: Model, family: Family, headers: Mapping[str, _Header]) -> bool:
    """Some tensor of a prediction module is in the files."""
    others = {name for name, _ in tensors_of(without_predictors(model), family)}
    own = {name for name, _ in tensors_of(model, family)} - others
    return any(name in headers or family.other(name) in headers for name in own)


def _modules(model: Model) -> str:
    number = predictors_of(model)
    return f"{number} prediction module{'s' if number > 1 else ''}"


def _left_out(
    folder: Path, model: Model, described: Model, family: Family, headers: Mapping[str, _Header]
) -> tuple[str, ...]:
    """The tensors that the folder describes and the model lacks."""
    if predictors_of(model) or not predictors_of(described):
        return ()
    known = bool(family.predictors) and not _has_predictors(described, family, headers)
    why = "of which its files have nothing" if known else "which is not trained"
    return (f"the model is without the {_modules(described)} that {folder / CONFIG} names, {why}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    file: str
    shape: tuple[int, ...]
    dtype: str


def _require(
    folder: Path,
    family: Family,
    headers: Mapping[str, _Header],
    tensor: str,
    place: Stored,
    listed: Mapping[str, str],
) -> tuple[str, str]:
    """(file, name there) of a tensor that has the right shape and a dtype that we read."""
    name = tensor if tensor in headers else family.other(tensor)
    if name not in headers:
        file = folder / listed.get(tensor, INDEX if listed else SINGLE)
        hint = f"give the whole checkpoint of {family.name}"
        untied = (
            "; a model whose logits are the embedding says tie_word_embeddings"
            if tensor.startswith("lm_head")
            else ""
        )
        raise DataError(f"{file}: tensor {tensor} lacks", hint=f"{hint}{untied}")
    found = headers[name]
    if found.shape not in place.shapes:
        raise DataError(
            f"{folder / found.file}: tensor {name} has shape {list(found.shape)}, not"
            f" {list(place.shape)}",
            hint="give the weights of the model that the configuration describes",
        )
    if found.dtype not in FLOATS:
        raise DataError(
            f"{folder / found.file}: tensor {name} is stored as {found.dtype}",
            hint=f"convert it to one of {', '.join(FLOATS)} first",
        )
    return found.file, name


def _require_tied(
    folder: Path, model: Model, family: Family, headers: Mapping[str, _Header]
) -> None:
    """Raise where a file has a head of its own and the model has none: trained apart, every row
    differs; some are compared.
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
            head, owner = (stored_place(model, family, key).tensor for key in keys)
            names = [name if name in headers else family.other(name) for name in (head, owner)]
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


def _some_rows(folder: Path, header: _Header, name: str) -> torch.Tensor:
    """Rows of a tensor, evenly spread over it."""
    with _opened(folder / header.file) as file:
        part = file.get_slice(name)
        return torch.stack(
            [
                part[row].double()
                for row in range(0, header.shape[0], max(header.shape[0] // COMPARED, 1))
            ]
        )


def _require_model(folder: Path, model: Model) -> Model:
    """The model that the folder's configuration describes: this one, but for prediction modules
    that it may have more.

    Raises:
        DataError: it is another one.
    """
    path = folder / CONFIG
    try:
        described = load_config(path)
    except ModelError as error:
        raise DataError(error.message, hint=error.hint) from None
    other = described if predictors_of(model) else without_predictors(described)
    pairs = {
        "architecture": (other.architecture, model.architecture),
        "hidden width": (other.hidden, model.hidden),
        "vocabulary": (other.vocab, model.vocab),
        "blocks in a row": (sum(r.count for r in other.runs), sum(r.count for r in model.runs)),
        "parameters": (other.num_parameters, model.num_parameters),
        "blocks": (other.blocks, model.blocks),
        "order of layers": (other.runs, model.runs),
        "patches of images": (other.settings.image, model.settings.image),
        "pairs of rotary elements": (other.settings.rope_pairs, model.settings.rope_pairs),
    }
    for what, (theirs, ours) in pairs.items():
        if theirs != ours:
            shown = f" ({theirs}, not {ours})" if isinstance(theirs, int | str) else ""
            raise DataError(
                f"{path}: it is of another model: {what} differ{shown}",
                hint=f"train the model of that file, or give {model.name}'s",
            )
    return described


def _listed(folder: Path) -> dict[str, str]:
    """File of every tensor, by the index; empty where all are in one file."""
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


def _headers(folder: Path, name: str) -> dict[str, _Header]:
    """The header entries of a file's tensors, by name."""
    found = {}
    with _opened(folder / name) as file:
        for tensor in file.keys():  # noqa: SIM118
            part = file.get_slice(tensor)
            found[tensor] = _Header(
                file=name, shape=tuple(part.get_shape()), dtype=part.get_dtype()
            )
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file. A file that is shorter than its header says is refused as soon as it is
    opened.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        raise DataError(
            f"{path} needs the safetensors package", hint="pip install 'shardwright[run]'"
        ) from None
    if not path.is_file():
        raise DataError(f"{path} lacks", hint="give a whole checkpoint")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is no whole safetensors file: {error}",
            hint="fetch it again: it is truncated or damaged",
        ) from None
