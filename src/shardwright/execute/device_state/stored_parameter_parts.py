"""A device's stored parts of parameters, drawn from a seed or cut from full tensors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import Protocol, runtime_checkable

import torch

from shardwright.execute.numerics.base.run_precision import EXACT, RunPrecision
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import Operator
from shardwright.model.ir.tensor_dims import Parameter
from shardwright.program.layout.tensor_layout import Box

Key = tuple[int, int, str, str]
"""(run, layer, operator, parameter) of the operator that owns a parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterOrigin:
    """The owner of a parameter, and the order of its dims.

    Tied weights may be transposed.
    """

    key: Key
    order: tuple[int, ...]


def origin(
    model: Model, run: int, layer: int, operator: Operator, parameter: Parameter
) -> ParameterOrigin:
    """Key of the parameter that stores the values, and this parameter's dim for each dim of it."""
    if not parameter.tied_to:
        return ParameterOrigin(
            key=(run, layer, operator.name, parameter.name),
            order=tuple(range(len(parameter.extents))),
        )
    for number, other_run in enumerate(model.runs):
        for operator_of_run in model.blocks[other_run.block].operators:
            for candidate in operator_of_run.parameters:
                if (
                    f"{model.blocks[other_run.block].name}.{candidate.name}" == parameter.tied_to
                    and not candidate.tied_to
                ):
                    dims = [e.dim for e in parameter.extents]
                    return ParameterOrigin(
                        key=(number, 0, operator_of_run.name, candidate.name),
                        order=tuple(dims.index(e.dim) for e in candidate.extents),
                    )
    raise KeyError(parameter.tied_to)


def parameter_of(model: Model, key: Key) -> Parameter:
    """The parameter of the model that a key names."""
    run, _, operator, name = key
    block = model.blocks[model.runs[run].block]
    return next(
        p for o in block.operators if o.name == operator for p in o.parameters if p.name == name
    )


def whole_shape(model: Model, key: Key) -> tuple[int, ...]:
    """Shape of the undivided parameter that a key names."""
    return tuple(e.size for e in parameter_of(model, key).extents)


Source = Callable[[Key], torch.Tensor]
"""Gives full parameters by key. If it is also a `SourceOfParts`, only parts are read."""


@runtime_checkable
class SourceOfParts(Protocol):
    """A parameter source that makes or reads a part without the rest of the parameter."""

    def part(self, key: Key, box: Box) -> torch.Tensor:
        """Read a parameter's elements in a box, with dims in the parameter's own order."""


def parameter_part(source: Source, key: Key, box: Box) -> torch.Tensor:
    """Elements of a parameter in a box, as a new tensor; the source reads no more if it can."""
    parts_source: object = source
    return (
        parts_source.part(key, box)
        if isinstance(parts_source, SourceOfParts)
        else box_slice(source(key), box).clone()
    )


def seeded(model: Model, *, seed: int, dtype: torch.dtype = torch.float64) -> Source:
    """Random parameter source: normal / sqrt(fan in); vectors near 1 (``*weight``), others near 0.

    The same key gives the same tensor in every plan.
    """

    @cache
    def made(key: Key) -> torch.Tensor:
        """Draw the whole parameter of a key from seed and key, once; no plan changes it."""
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


def box_slice(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    """Elements of a whole tensor at the indices of a box, dim by dim."""
    for dim, indices_of_dim in enumerate(box):
        if indices_of_dim != ((0, tensor.shape[dim]),):
            rows = torch.cat([torch.arange(low, high) for low, high in indices_of_dim])
            tensor = tensor.index_select(dim, rows)
    return tensor


@dataclass(slots=True)
class StoredParameter:
    """A device's part of one parameter: its box in the owner's order, values and gradient.

    Args:
        room: buffer for the first gradient that is added; None: it gets new memory.
    """

    box: Box
    value: torch.Tensor
    gradient: torch.Tensor | None = None
    room: torch.Tensor | None = None


@dataclass(slots=True)
class ParameterStore:
    """A device's parameters by owner, and by box where several uses need different parts.

    Args:
        precision: formats of values, gradients and the computation.
        on: the torch device of all values.
        in_statistics_format: parameters that are stored and used in the precision's format of
            statistics.
    """

    model: Model
    source: Source
    settings: Settings
    precision: RunPrecision = EXACT
    on: torch.device | str = "cpu"
    held: dict[Key, dict[Box, StoredParameter]] = field(default_factory=dict)
    in_statistics_format: frozenset[Key] = frozenset()

    def use(
        self, run: int, layer: int, operator: Operator, parameter: Parameter, box: Box
    ) -> torch.Tensor:
        """A parameter's box, by run and layer number, in compute format and `parameter`'s order."""
        stored, parameter_origin = self._held_part(run, layer, operator, parameter, box)
        value = (
            stored.value
            if parameter_origin.key in self.in_statistics_format
            else stored.value.to(self.precision.compute)
        )
        return (
            value.permute([parameter_origin.order.index(i) for i in range(value.dim())])
            if parameter.tied_to
            else value
        )

    def part(self, key: Key, box: Box) -> StoredParameter:
        """The stored box of a parameter in its owner's order of dims, read from the source once."""
        boxes = self.held.setdefault(key, {})
        if box not in boxes:
            dtype = (
                self.precision.statistics
                if key in self.in_statistics_format
                else self.precision.parameter
            )
            boxes[box] = StoredParameter(
                box=box, value=parameter_part(self.source, key, box).to(device=self.on, dtype=dtype)
            )
        return boxes[box]

    def _held_part(
        self, run: int, layer: int, operator: Operator, parameter: Parameter, box: Box
    ) -> tuple[StoredParameter, ParameterOrigin]:
        """(device's value and gradient of a parameter's box, made at first use; the owner)."""
        parameter_origin = origin(self.model, run, layer, operator, parameter)
        return self.part(
            parameter_origin.key, tuple(box[i] for i in parameter_origin.order)
        ), parameter_origin

    def add(
        self,
        run: int,
        layer: int,
        operator: Operator,
        parameter: Parameter,
        box: Box,
        gradient: torch.Tensor,
    ) -> None:
        """Add `gradient` to the stored gradient of a parameter's box, by run and layer number."""
        stored, parameter_origin = self._held_part(run, layer, operator, parameter, box)
        gradient_in_order = gradient.permute(parameter_origin.order)
        if stored.gradient is None:
            stored.gradient = (
                gradient_in_order.to(self.precision.gradient, copy=True)
                if stored.room is None
                else stored.room.copy_(gradient_in_order)
            )
        else:
            stored.gradient += gradient_in_order
