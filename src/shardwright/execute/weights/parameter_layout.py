"""The elements of a Hugging Face checkpoint's tensors that make up a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise, product
from math import prod

import numpy as np

from shardwright.errors import DataError
from shardwright.execute.device_state.device_parameters import Key
from shardwright.execute.numerics.positions.rotary_angles import rotated_pair_count
from shardwright.execute.weights.naming_rules import Family, Rule
from shardwright.lazy_dataclass import dataclass
from shardwright.model.blocks.multi_token_prediction import MODULE
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.operator_constants import Settings
from shardwright.model.ir.tensor_dims import Dim, Parameter
from shardwright.model.trained_parameters import LEFT_OUT
from shardwright.program.layout.tensor_layout import Box, Interval, count, joined_intervals

MOST_RUNS = 64
"""Indices in more stretches than this are read as one stretch that covers them."""
Rows = np.ndarray | None
"""Index in the tensor of every index of ours; None = the same."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """The tensors of a checkpoint that hold a parameter.

    Args:
        tensor: name, with ``{expert}`` where each element of our first dim has a tensor of its own.
        dims: which of our dims each dim of the tensor is, the first `first` being one, and all dims
            from the last on; -1 = of one element.
        shape: of the tensor.
        rows: for each of our dims.
        add: our value less the stored one.
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
        """Shapes that the tensor of a file may have."""
        return (
            (self.shape, (*self.shape[:-2], self.shape[-1], self.shape[-2]))
            if self.either
            else (self.shape,)
        )

    @property
    def flat(self) -> tuple[int, ...]:
        """The tensor's shape in as many dims as `dims` has."""
        shape = (prod(self.shape[: self.first]), *self.shape[self.first :])
        last = len(self.dims) - 1
        return (*shape[:last], prod(shape[last:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A box of a tensor, and what of it goes where.

    Args:
        box: of the tensor in the shape `Stored.flat`.
        pick: of each dim of what was read, the indices to take (None = all).
        dims: as in `Stored`.
        into: where it goes in our box, counted from its first element, a dim each.
    """

    tensor: str
    box: tuple[Interval, ...]
    pick: tuple[Rows, ...]
    dims: tuple[int, ...]
    into: tuple[Interval, ...]


def stored_parameters(model: Model) -> Iterator[tuple[Key, Parameter]]:
    """Every parameter that is stored: tied ones at their owner."""
    for number, run in enumerate(model.runs):
        for layer in range(run.count):
            for operator in model.blocks[run.block].operators:
                for parameter in operator.parameters:
                    if not parameter.tied_to:
                        yield (number, layer, operator.name, parameter.name), parameter


@lru_cache(maxsize=8)
def adapters(model: Model) -> frozenset[Key]:
    """Parameters that were added to the model, which no checkpoint of it has."""
    layers = ((n, layer, run) for n, run in enumerate(model.runs) for layer in range(run.count))
    return frozenset(
        (n, layer, o.name, p.name)
        for n, layer, run in layers
        for o in model.blocks[run.block].operators
        for p in o.adapters
    )


def stored_place(model: Model, family: Family, key: Key) -> Stored:
    """The place of a parameter in a checkpoint.

    Raises:
        DataError: the family's table does not say.
    """
    run, layer, _, name = key
    rule, tensor = _rule(model, family, run, layer, name)
    dims, shape, rows = _placed(model, model.runs[run].block, rule, name)
    return Stored(
        tensor=tensor,
        dims=dims,
        shape=shape,
        rows=rows,
        add=rule.add,
        first=2 if rule.gridded else 1,
        either=rule.either,
    )


def _rule(model: Model, family: Family, run: int, layer: int, name: str) -> tuple[Rule, str]:
    own = model.runs[run].name
    layers = [r for r in model.runs if r.name.startswith("layers")]
    rules = family.outer
    stem = ""
    if (stack := family.stacks.get(own.partition(".")[0])) is not None:
        before = sum(
            r.count for r in model.runs[:run] if r.name.partition(".")[0] == own.partition(".")[0]
        )
        rules, stem = stack.rules, stack.stem.replace("{layer}", str(layer + before))
    elif own.startswith("layers"):
        rules, stem = (
            family.layers,
            family.stem.replace(
                "{layer}", str(layer + sum(r.count for r in model.runs[:run] if r in layers))
            ),
        )
    elif own.startswith(MODULE):
        depth = own.rpartition(".")[2]
        number = sum(r.count for r in layers) + (int(depth) if depth.isdigit() else 0)
        rules = {**family.layers, **family.predictors} if family.predictors else {}
        stem = family.stem.replace("{layer}", str(number))
    if name not in rules:
        hint = (
            f"plan the model without: --train {LEFT_OUT}"
            if own.startswith(MODULE)
            else "train a model of this family from random weights"
        )
        raise DataError(
            f"weights of {family.name}: where {own}.{name} stands is not known", hint=hint
        )
    rule = rules[name]
    alone = rule.alone and all(
        p.name != f"{name}.1"
        for o in model.blocks[model.runs[run].block].operators
        for p in o.parameters
    )
    return rule, stem + (rule.alone if alone else rule.tensor)


@lru_cache(maxsize=4096)
def _placed(
    model: Model, block: int, rule: Rule, name: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Rows, ...]]:
    """(dims, shape, rows) of `Stored`."""
    operators = model.blocks[block].operators
    parameter = _find(operators, name)
    sizes = [e.size for e in parameter.extents]
    out = 0 if rule.middle or len(sizes) == 1 else len(sizes) - 1
    rows, width = _rows(operators, rule, parameter, out, settings=model.settings)
    own = list(range(1 if "{expert}" in rule.tensor else 0, len(sizes)))
    # Experts that are one tensor stay its first dim.
    first = 1 if len(own) > 2 and parameter.extents[own[0]].dim is Dim.EXPERTS else 0
    dims = [*own[:first], *own[first:][::-1]] if rule.turned else own
    placed = [width if d == out else sizes[d] for d in dims]
    if rule.middle:
        dims.insert(1, -1)
        placed.insert(1, 1)
    if rule.folded:
        assert model.settings.image is not None, "only projections of patches are folded"
        placed[-1:] = model.settings.image.pixels
    if rule.gridded:
        table = model.settings.of_block(model.blocks[block].name).stretched
        assert table is not None, "only tables that are grids stand so"
        placed[:1] = table.shape
    return tuple(dims), tuple(placed), tuple(rows if d == out else None for d in range(len(sizes)))


def _find(operators: tuple[Operator, ...], name: str) -> Parameter:
    return next(p for o in operators for p in o.parameters if p.name == name)


def _rows(
    operators: tuple[Operator, ...],
    rule: Rule,
    parameter: Parameter,
    out: int,
    *,
    settings: Settings,
) -> tuple[Rows, int]:
    """(rows of our output dim, elements of the tensor's)."""
    extent = parameter.extents[out]
    own = np.arange(extent.size)
    paired = rule.pairs or (bool(rule.rotary) and settings.rope_pairs)
    if paired:
        width = extent.quantum if extent.quantum > 1 else extent.size
        rope = (
            2 * rotated_pair_count(settings, width)
            if rule.pairs
            else _find(operators, rule.rotary).extents[-1].size
        )
        own = _paired(own, width=width, rope=rope, start=0 if rule.pairs else width - rope)
    if not rule.beside:
        return (own if paired else None), extent.size
    extents = [_find(operators, name).extents[out] for name in rule.beside]
    number = rule.beside.index(parameter.name)
    total = sum(e.size for e in extents)
    if not rule.grouped:
        return own + sum(e.size for e in extents[:number]), total
    groups = min(
        e.runs
        for e in (*extents, *((_find(operators, rule.heads).extents[out],) if rule.heads else ()))
    )
    share = [e.size // groups for e in extents]
    return own // share[number] * (total // groups) + own % share[number] + sum(
        share[:number]
    ), total


def _paired(own: np.ndarray, *, width: int, rope: int, start: int) -> np.ndarray:
    """Of heads of `width` whose `rope` elements from `start` on are halves: where each stands if
    they are pairs.

    Of a head of 6 whose first 4 turn, 0 1 2 3 4 5 stand at 0 2 1 3 4 5.
    """
    within = own % width - start
    half = rope // 2
    turned = own - within + np.where(within < half, 2 * within, 2 * (within - half) + 1)
    return np.where((within < 0) | (within >= rope), own, turned)


def patches(found: Stored, box: Box) -> Iterator[Patch]:
    """The boxes of tensors that make up a box of a parameter."""
    experts = "{expert}" in found.tensor
    names = [(found.tensor, (0, 0))]
    if experts:
        numbers = [i for a, b in box[0] for i in range(a, b)]
        names = [
            (found.tensor.replace("{expert}", str(n)), (at, at + 1)) for at, n in enumerate(numbers)
        ]
    cuts = [_cuts(indices, rows) for indices, rows in zip(box, found.rows, strict=True)]
    for name, first in names:
        for chosen in product(*(cuts[1:] if experts else cuts)):
            own = [((0, 0), None, first), *chosen] if experts else list(chosen)
            yield Patch(
                tensor=name,
                box=tuple(own[d][0] if d >= 0 else (0, 1) for d in found.dims),
                pick=tuple(own[d][1] if d >= 0 else None for d in found.dims),
                dims=found.dims,
                into=tuple(o[2] for o in own),
            )


def _cuts(indices: tuple[Interval, ...], rows: Rows) -> list[tuple[Interval, Rows, Interval]]:
    """(interval of the tensor, indices within it to take, where they go) of one dim."""
    if rows is None:
        found: list[tuple[Interval, Rows, Interval]] = []
        at = 0
        for a, b in joined_intervals(indices):
            found.append(((a, b), None, (at, at + b - a)))
            at += b - a
        return found
    wanted = (
        np.concatenate([rows[a:b] for a, b in indices]) if indices else np.zeros(0, dtype=np.int64)
    )
    if not len(wanted):
        return []
    breaks = [0, *(np.flatnonzero(np.diff(wanted) != 1) + 1).tolist(), len(wanted)]
    if len(breaks) > MOST_RUNS:
        low, high = int(wanted.min()), int(wanted.max()) + 1
        return [((low, high), wanted - low, (0, count(indices)))]
    return [((int(wanted[a]), int(wanted[b - 1]) + 1), None, (a, b)) for a, b in pairwise(breaks)]
