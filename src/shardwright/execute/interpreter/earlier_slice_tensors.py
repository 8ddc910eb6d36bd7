"""Tensors of a microbatch's earlier slices that operators read, and their gradients.

Tensors are keys, values and states. Later slices send the gradients back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.decide_operator_inputs_to_gather import (
    reads_other_positions,
)
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.model.ir.operator import Operator

_Some = TypeVar("_Some", Values, Gradients | None)


@dataclass(slots=True)
class EarlierSlices:
    """Tensors of a microbatch's earlier slices in one layer, and their gradients so far.

    Both are stored by operator, with one entry for each slice in order.
    """

    kept: dict[str, list[Values]] = field(default_factory=dict)
    pending_grads: dict[str, list[Values | None]] = field(default_factory=dict)

    def with_earlier_positions(
        self, operator: Operator, inputs: tuple[Values, ...], *, part: int
    ) -> tuple[Values, ...]:
        """An operator's inputs for a slice, keys and values extended by those of earlier slices.

        A slice that runs again is not stored twice. `part`: the number of the slice.

        Raises:
            StrategyError: keys of another sequence (rule ``execute.slices``).
        """
        if operator.attention is not None and operator.attention.cross:
            raise StrategyError(
                f"{operator.name} cannot be run slice by slice",
                hint="cut only models of one sequence into slices",
                rule="execute.slices",
            )
        own_tensors = tuple(_tensors_of_all_slices(operator, inputs))
        if not own_tensors:
            return inputs
        slices = self.kept.setdefault(operator.name, [])
        if len(slices) == part:
            slices.append(own_tensors)
            self.pending_grads.setdefault(operator.name, []).append(None)
        return _replace_tensors_of_all_slices(
            operator,
            inputs,
            [torch.cat(parts, dim=1) for parts in zip(*slices[: part + 1], strict=True)],
        )

    def own_position_grads(
        self, operator: Operator, backs: tuple[Gradients | None, ...]
    ) -> tuple[Gradients | None, ...]:
        """Input gradients at this slice's positions, with those of later slices; earlier ones wait.

        Gradients of earlier slices' positions are stored until the backward pass of those slices.
        """
        position_grads = _tensors_of_all_slices(operator, backs)
        if not position_grads:
            return backs
        slices, pending = self.kept[operator.name], self.pending_grads[operator.name]
        lengths = [slice_tensors[0].shape[1] for slice_tensors in slices]
        for number, part in enumerate(
            zip(*(tensor.split(lengths, dim=1) for tensor in position_grads), strict=True)
        ):
            grad_so_far = pending[number]
            pending[number] = (
                part
                if grad_so_far is None
                else tuple(a + b for a, b in zip(grad_so_far, part, strict=True))
            )
        slices.pop()
        last = pending.pop()
        assert last is not None
        return _replace_tensors_of_all_slices(operator, backs, last)


def _tensors_of_all_slices(
    operator: Operator, inputs: tuple[Gradients | None, ...]
) -> list[torch.Tensor]:
    """Tensors among an operator's inputs of which it also reads other positions, in order."""
    tensors = enumerate(tensor for values in inputs for tensor in values or ())
    return [
        tensor
        for number, tensor in tensors
        if reads_other_positions(operator, number) and tensor is not None
    ]


def _replace_tensors_of_all_slices(
    operator: Operator, inputs: tuple[_Some, ...], tensors: Sequence[torch.Tensor]
) -> tuple[_Some, ...]:
    """The inputs of an operator, with `tensors` in place of those that span earlier slices."""
    numbers, rest = count(), iter(tensors)
    return tuple(
        values
        and tuple(
            next(rest) if reads_other_positions(operator, next(numbers)) else t for t in values
        )
        for values in inputs
    )
