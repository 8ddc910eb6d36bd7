"""Elements of a Hugging Face checkpoint's tensors that make up a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product
from math import prod

import numpy as np

from shardwright.errors import DataError
from shardwright.execute.device_state.stored_parameter_parts import Key
from shardwright.execute.numerics.positions.rotary_angles import rotated_pair_count
from shardwright.execute.weights.naming_rules import FamilyNames, NamingRule
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import MODULE
from shardwright.model.freeze_parameters_or_add_lora import LEFT_OUT
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Dim, Parameter
from shardwright.program.layout.tensor_layout import Box, Interval, count, joined_intervals

MOST_RUNS = 64
"""Indices in more runs than this are read as one interval that covers them."""
Rows = np.ndarray | None
"""For every index of our parameter, its index in the tensor; None = the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTensor:
    """Name, shape and dims of the checkpoint tensors that hold a parameter.

    Args:
        tensor: name, with ``{expert}`` where each element of our first dim has its own tensor.
        dims: number of our dim for each dim of the tensor, of which the first `first` are one dim,
            as are all dims from the last on; -1 = a dim of one element.
        shape: shape of the tensor.
        rows: indices in the tensor, for each of our dims.
        add: our value minus the stored value.
        either: some files have the last two dims in the other order.
    """

    tensor: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    rows: tuple[Rows, ...]
    add: float
    first: int = 1
    either: bool = False

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes in which files may store the tensor: one, or two if dims may be swapped."""
        return (
            (self.shape, (*self.shape[:-2], self.shape[-1], self.shape[-2]))
            if self.either
            else (self.shape,)
        )

    @property
    def flat(self) -> tuple[int, ...]:
        """The stored shape with dims merged that are one dim of our parameter."""
        shape = (prod(self.shape[: self.first]), *self.shape[self.first :])
        last = len(self.dims) - 1
        return (*shape[:last], prod(shape[last:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A box of a checkpoint tensor, and the place of its elements in a parameter's box.

    Args:
        box: box of the tensor in the shape `StoredTensor.flat`.
        pick: for each dim of the values read, the indices to take (None = all).
        dims: as in `StoredTensor`.
        into: interval of each dim in our box, counted from its first element.
    """

    tensor: str
    box: tuple[Interval, ...]
    pick: tuple[Rows, ...]
    dims: tuple[int, ...]
    into: tuple[Interval, ...]


def stored_parameters(model: Model) -> Iterator[tuple[Key, Parameter]]:
    """Iterate over (key, parameter) of every parameter that a checkpoint stores: not tied ones."""
    for number, run in enumerate(model.runs):
        for layer in range(run.count):
            for operator in model.blocks[run.block].operators:
                for parameter in operator.parameters:
                    if not parameter.tied_to:
                        yield (number, layer, operator.name, parameter.name), parameter


@lru_cache(maxsize=8)
def adapter_keys(model: Model) -> frozenset[Key]:
    """Keys of the adapters added to the model, which no published checkpoint has."""
    layers = ((n, layer, run) for n, run in enumerate(model.runs) for layer in range(run.count))
    return frozenset(
        (n, layer, o.name, p.name)
        for n, layer, run in layers
        for o in model.blocks[run.block].operators
        for p in o.adapters
    )


def stored_tensor_of(model: Model, family: FamilyNames, key: Key) -> StoredTensor:
    """Layout of the checkpoint tensors that hold a parameter, by the family's naming rules.

    Raises:
        DataError: the family has no rule for the parameter.
    """
    run, layer, _, name = key
    rule, tensor = _rule(model, family, run, layer, name)
    dims, shape, rows = _tensor_layout(model, model.runs[run].block, rule, name)
    return StoredTensor(
        tensor=tensor,
        dims=dims,
        shape=shape,
        rows=rows,
        add=rule.add,
        first=2 if rule.gridded else 1,
        either=rule.either,
    )


def _rule(
    model: Model, family: FamilyNames, run: int, layer: int, name: str
) -> tuple[NamingRule, str]:
    """(naming rule, full tensor name) of a parameter, by its family, run and layer."""
    run_name = model.runs[run].name
    layers = [r for r in model.runs if r.name.startswith("layers")]
    rules = family.outer
    stem = ""
    if (stack := family.stacks.get(run_name.partition(".")[0])) is not None:
        earlier_layers = sum(
            r.count
            for r in model.runs[:run]
            if r.name.partition(".")[0] == run_name.partition(".")[0]
        )
        rules, stem = stack.rules, stack.stem.replace("{layer}", str(layer + earlier_layers))
    elif run_name.startswith("layers"):
        rules, stem = (
            family.layers,
            family.stem.replace(
                "{layer}", str(layer + sum(r.count for r in model.runs[:run] if r in layers))
            ),
        )
    elif run_name.startswith(MODULE):
        depth = run_name.rpartition(".")[2]
        number = sum(r.count for r in layers) + (int(depth) if depth.isdigit() else 0)
        rules = {**family.layers, **family.predictors} if family.predictors else {}
        stem = family.stem.replace("{layer}", str(number))
    if name not in rules:
        hint = (
            f"plan the model without: --train {LEFT_OUT}"
            if run_name.startswith(MODULE)
            else "train a model of this family from random weights"
        )
        raise DataError(
            f"weights of {family.name}: no tensor name is known for {run_name}.{name}", hint=hint
        )
    rule = rules[name]
    is_alone = rule.alone and all(
        p.name != f"{name}.1"
        for o in model.blocks[model.runs[run].block].operators
        for p in o.parameters
    )
    return rule, stem + (rule.alone if is_alone else rule.tensor)


@lru_cache(maxsize=4096)
def _tensor_layout(
    model: Model, block: int, rule: NamingRule, name: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Rows, ...]]:
    """(our dim of each tensor dim or -1, tensor shape, tensor indices by our dim or None)."""
    operators = model.blocks[block].operators
    parameter = _parameter_named(operators, name)
    sizes = [e.size for e in parameter.extents]
    out = 0 if rule.middle or len(sizes) == 1 else len(sizes) - 1
    rows, width = _tensor_indices(operators, rule, parameter, out, settings=model.settings)
    kept_dims = list(range(1 if "{expert}" in rule.tensor else 0, len(sizes)))
    # Experts that are one tensor stay its first dim.
    first = 1 if len(kept_dims) > 2 and parameter.extents[kept_dims[0]].dim is Dim.EXPERTS else 0
    dims = [*kept_dims[:first], *kept_dims[first:][::-1]] if rule.turned else kept_dims
    tensor_shape = [width if d == out else sizes[d] for d in dims]
    if rule.middle:
        dims.insert(1, -1)
        tensor_shape.insert(1, 1)
    if rule.folded:
        assert model.settings.image is not None, "only patch projections are folded"
        tensor_shape[-1:] = model.settings.image.pixels
    if rule.gridded:
        table = model.settings.of_block(model.blocks[block].name).stretched
        assert table is not None, "only grid tables are stored as grids"
        tensor_shape[:1] = table.shape
    return (
        tuple(dims),
        tuple(tensor_shape),
        tuple(rows if d == out else None for d in range(len(sizes))),
    )


def _parameter_named(operators: tuple[Operator, ...], name: str) -> Parameter:
    """Parameter called `name` among the parameters of some operators."""
    return next(p for o in operators for p in o.parameters if p.name == name)


def _tensor_indices(
    operators: tuple[Operator, ...],
    rule: NamingRule,
    parameter: Parameter,
    out: int,
    *,
    settings: Settings,
) -> tuple[Rows, int]:
    """(tensor index of each element of our dim `out`, None if equal; tensor size in that dim)."""
    extent = parameter.extents[out]
    indices = np.arange(extent.size)
    paired = rule.pairs or (bool(rule.rotary) and settings.rope_pairs)
    if paired:
        width = extent.quantum if extent.quantum > 1 else extent.size
        rope = (
            2 * rotated_pair_count(settings, width)
            if rule.pairs
            else _parameter_named(operators, rule.rotary).extents[-1].size
        )
        indices = _indices_as_pairs(
            indices, width=width, rope=rope, start=0 if rule.pairs else width - rope
        )
    if not rule.beside:
        return (indices if paired else None), extent.size
    extents = [_parameter_named(operators, name).extents[out] for name in rule.beside]
    number = rule.beside.index(parameter.name)
    total = sum(e.size for e in extents)
    if not rule.grouped:
        return indices + sum(e.size for e in extents[:number]), total
    groups = min(
        e.runs
        for e in (
            *extents,
            *((_parameter_named(operators, rule.heads).extents[out],) if rule.heads else ()),
        )
    )
    share = [e.size // groups for e in extents]
    return indices // share[number] * (total // groups) + indices % share[number] + sum(
        share[:number]
    ), total


def _indices_as_pairs(indices: np.ndarray, *, width: int, rope: int, start: int) -> np.ndarray:
    """Convert indices of head elements to those of a file with rotary (even, odd) pairs.

    Heads have `width` elements, of which `rope` from `start` on are rotated.

    Example: for a head of 6 whose first 4 are rotated, 0 1 2 3 4 5 are stored at 0 2 1 3 4 5.
    """
    within = indices % width - start
    half = rope // 2
    turned = indices - within + np.where(within < half, 2 * within, 2 * (within - half) + 1)
    return np.where((within < 0) | (within >= rope), indices, turned)


def tensor_slices(stored: StoredTensor, box: Box) -> Iterator[TensorSlice]:
    """Iterate over the slices of checkpoint tensors that make up a box of a parameter."""
    experts = "{expert}" in stored.tensor
    names = [(stored.tensor, (0, 0))]
    if experts:
        numbers = [i for a, b in box[0] for i in range(a, b)]
        names = [
            (stored.tensor.replace("{expert}", str(n)), (at, at + 1))
            for at, n in enumerate(numbers)
        ]
    cuts = [_cuts(indices, rows) for indices, rows in zip(box, stored.rows, strict=True)]
    for name, first in names:
        for cuts_of_slice in product(*(cuts[1:] if experts else cuts)):
            by_dim = [((0, 0), None, first), *cuts_of_slice] if experts else list(cuts_of_slice)
            yield TensorSlice(
                tensor=name,
                box=tuple(by_dim[d][0] if d >= 0 else (0, 1) for d in stored.dims),
                pick=tuple(by_dim[d][1] if d >= 0 else None for d in stored.dims),
                dims=stored.dims,
                into=tuple(cut[2] for cut in by_dim),
            )


def _cuts(indices: tuple[Interval, ...], rows: Rows) -> list[tuple[Interval, Rows, Interval]]:
    """(tensor interval, picked indices in it or None, interval of our box), along one dim."""
    if rows is None:
        cuts: list[tuple[Interval, Rows, Interval]] = []
        at = 0
        for a, b in joined_intervals(indices):
            cuts.append(((a, b), None, (at, at + b - a)))
            at += b - a
        return cuts
    tensor_indices = (
        np.concatenate([rows[a:b] for a, b in indices]) if indices else np.zeros(0, dtype=np.int64)
    )
    if not len(tensor_indices):
        return []
    breaks = [0, *(np.flatnonzero(np.diff(tensor_indices) != 1) + 1).tolist(), len(tensor_indices)]
    if len(breaks) > MOST_RUNS:
        low, high = int(tensor_indices.min()), int(tensor_indices.max()) + 1
        return [((low, high), tensor_indices - low, (0, count(indices)))]
    return [
        ((int(tensor_indices[a]), int(tensor_indices[b - 1]) + 1), None, (a, b))
        for a, b in pairwise(breaks)
    ]
