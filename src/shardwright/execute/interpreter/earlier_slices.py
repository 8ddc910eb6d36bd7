"""Keys, values and states of a microbatch's earlier slices that operators read, and the gradients
that later slices send back for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.gathered_positions import looks_around
from shardwright.execute.numerics.base.operator_protocol import Gradients, Values
from shardwright.model.ir.operator import Operator

_Some = TypeVar("_Some", Values, Gradients | None)


@dataclass(slots=True)
class EarlierSlices:
    """Of one layer of one microbatch, by operator: what it looks back on of each slice, in order;
    gradients that are owed to each.
    """

    kept: dict[str, list[Values]] = field(default_factory=dict)
    owed: dict[str, list[Values | None]] = field(default_factory=dict)

    def longer(
        self, operator: Operator, inputs: tuple[Values, ...], *, part: int
    ) -> tuple[Values, ...]:
        """The inputs of an operator for slice number `part`, with those positions of all slices
        before that it looks back on. A slice that runs again is known.

        Raises:
            StrategyError: keys of another sequence (rule ``execute.slices``).
        """
        if operator.attention is not None and operator.attention.cross:
            raise StrategyError(
                f"{operator.name} cannot be run slice by slice",
                hint="cut only models of one sequence into slices",
                rule="execute.slices",
            )
        own = tuple(_looked(operator, inputs))
        if not own:
            return inputs
        slices = self.kept.setdefault(operator.name, [])
        if len(slices) == part:
            slices.append(own)
            self.owed.setdefault(operator.name, []).append(None)
        return _with(
            operator,
            inputs,
            [torch.cat(parts, dim=1) for parts in zip(*slices[: part + 1], strict=True)],
        )

    def shorter(
        self, operator: Operator, backs: tuple[Gradients | None, ...]
    ) -> tuple[Gradients | None, ...]:
        """Gradients of the last slice's positions, with what later slices owed it; those of earlier
        slices are owed to them.
        """
        found = _looked(operator, backs)
        if not found:
            return backs
        slices, owed = self.kept[operator.name], self.owed[operator.name]
        lengths = [own[0].shape[1] for own in slices]
        for number, part in enumerate(
            zip(*(tensor.split(lengths, dim=1) for tensor in found), strict=True)
        ):
            known = owed[number]
            owed[number] = (
                part if known is None else tuple(a + b for a, b in zip(known, part, strict=True))
            )
        slices.pop()
        last = owed.pop()
        assert last is not None
        return _with(operator, backs, last)


def _looked(operator: Operator, inputs: tuple[Gradients | None, ...]) -> list[torch.Tensor]:
    """The tensors of earlier slices that the operator reads, over all its inputs."""
    tensors = enumerate(tensor for values in inputs for tensor in values or ())
    return [
        tensor
        for number, tensor in tensors
        if looks_around(operator, number) and tensor is not None
    ]


def _with(
    operator: Operator, inputs: tuple[_Some, ...], found: Sequence[torch.Tensor]
) -> tuple[_Some, ...]:
    """The inputs with `found` in the places of what the operator looks back on."""
    numbers, rest = count(), iter(found)
    return tuple(
        values and tuple(next(rest) if looks_around(operator, next(numbers)) else t for t in values)
        for values in inputs
    )
