"""Parameters of a plan's devices: which part of which each holds, made from a seed or sliced from
whole ones.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import Protocol, runtime_checkable

import torch

from shardwright.execute.numerics.base.run_precision import EXACT, Precision
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.operator_constants import Settings
from shardwright.model.ir.tensor_dims import Parameter
from shardwright.program.layout.tensor_layout import Box

Key = tuple[int, int, str, str]
"""(run, layer, operator, parameter) of a parameter's owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The owner of a parameter, and whether its dims stand in the owner's order (tied weights may
    be transposed).
    """

    key: Key
    order: tuple[int, ...]


def origin(model: Model, run: int, layer: int, operator: Operator, parameter: Parameter) -> Origin:
    """Whose elements `parameter` of a layer is; `order`: its dims in the order of the owner's."""
    if not parameter.tied_to:
        return Origin(
            key=(run, layer, operator.name, parameter.name),
            order=tuple(range(len(parameter.extents))),
        )
    for number, other in enumerate(model.runs):
        for one in model.blocks[other.block].operators:
            for own in one.parameters:
                if (
                    f"{model.blocks[other.block].name}.{own.name}" == parameter.tied_to
                    and not own.tied_to
                ):
                    dims = [e.dim for e in parameter.extents]
                    return Origin(
                        key=(number, 0, one.name, own.name),
                        order=tuple(dims.index(e.dim) for e in own.extents),
                    )
    raise KeyError(parameter.tied_to)


def parameter_of(model: Model, key: Key) -> Parameter:
    """The parameter that a key names."""
    run, _, operator, name = key
    block = model.blocks[model.runs[run].block]
    return next(
        p for o in block.operators if o.name == operator for p in o.parameters if p.name == name
    )


def whole_shape(model: Model, key: Key) -> tuple[int, ...]:
    """Shape of a whole parameter."""
    return tuple(e.size for e in parameter_of(model, key).extents)


Source = Callable[[Key], torch.Tensor]
"""Whole parameters by key. One that is also `SourceOfParts` is asked for parts only."""


@runtime_checkable
class SourceOfParts(Protocol):
    """A source that makes or reads a part of a parameter without the rest of it."""

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """The elements of a parameter in a box, dims in the parameter's own order."""


def parameter_part(source: Source, key: Key, box: Box) -> torch.Tensor:
    """The part of a parameter in a box: a tensor that nothing else refers to."""
    asked: object = source
    return (
        asked.part(key, box)
        if isinstance(asked, SourceOfParts)
        else box_slice(source(key), box).clone()
    )


def seeded(model: Model, *, seed: int, dtype: torch.dtype = torch.float64) -> Source:
    """Parameters drawn from a seed: normal with 1 / sqrt(fan in); gains near one. The same key is
    the same tensor in every plan.
    """

    @cache
    def made(key: Key) -> torch.Tensor:
        shape = whole_shape(model, key)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(repr(key).encode()))
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 1:
            return (
                (1.0 + 0.1 * drawn).to(dtype)
                if key[3].endswith("weight")
                else (0.1 * drawn).to(dtype)
            )
        fan = shape[-2] if len(shape) > 2 else shape[0]
        return (drawn * fan**-0.5).to(dtype)

    return made


def box_slice(whole: torch.Tensor, box: Box) -> torch.Tensor:
    """The part of a tensor in a box."""
    for dim, taken in enumerate(box):
        if taken != ((0, whole.shape[dim]),):
            rows = torch.cat([torch.arange(low, high) for low, high in taken])
            whole = whole.index_select(dim, rows)
    return whole


@dataclass(slots=True)
class StoredParameter:
    """A device's part of one parameter for one use: its box in the owner's order, values and
    gradient.

    Args:
        room: where a gradient is written that is the first; None: it gets memory of its own.
    """

    box: Box
    value: torch.Tensor
    gradient: torch.Tensor | None = None
    room: torch.Tensor | None = None


@dataclass(slots=True)
class ParameterStore:
    """A device's parameters by owner, and by box where uses need different parts.

    Args:
        precision: of values, gradients and all that is computed with them.
        on: where all of it lies.
        fine: parameters that are kept, and used, in the precision's format of statistics.
    """

    model: Model
    source: Source
    settings: Settings
    precision: Precision = EXACT
    on: torch.device | str = "cpu"
    held: dict[Key, dict[Box, StoredParameter]] = field(default_factory=dict)
    fine: frozenset[Key] = frozenset()

    def use(
        self, run: int, layer: int, operator: Operator, parameter: Parameter, box: Box
    ) -> torch.Tensor:
        """The device's part of a parameter as products take it,
        dims in the parameter's own order.
        """
        held, found = self._held(run, layer, operator, parameter, box)
        value = held.value if found.key in self.fine else held.value.to(self.precision.compute)
        return (
            value.permute([found.order.index(i) for i in range(value.dim())])
            if parameter.tied_to
            else value
        )

    def part(self, key: Key, box: Box) -> StoredParameter:
        """The device's part of a parameter, dims in the owner's order; made of the source when it
        is first asked for.
        """
        boxes = self.held.setdefault(key, {})
        if box not in boxes:
            dtype = self.precision.statistics if key in self.fine else self.precision.parameter
            boxes[box] = StoredParameter(
                box=box, value=parameter_part(self.source, key, box).to(device=self.on, dtype=dtype)
            )
        return boxes[box]

    def _held(
        self, run: int, layer: int, operator: Operator, parameter: Parameter, box: Box
    ) -> tuple[StoredParameter, Origin]:
        found = origin(self.model, run, layer, operator, parameter)
        return self.part(found.key, tuple(box[i] for i in found.order)), found

    def add(
        self,
        run: int,
        layer: int,
        operator: Operator,
        parameter: Parameter,
        box: Box,
        gradient: torch.Tensor,
    ) -> None:
        """Add to the gradient of a device's part."""
        held, found = self._held(run, layer, operator, parameter, box)
        own = gradient.permute(found.order)
        if held.gradient is None:
            held.gradient = (
                own.to(self.precision.gradient, copy=True)
                if held.room is None
                else held.room.copy_(own)
            )
        else:
            held.gradient += own
