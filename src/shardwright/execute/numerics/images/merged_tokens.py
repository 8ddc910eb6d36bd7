"""Operators over merged tokens: each token covers several neighbouring positions of the sequence.

A token of m neighbours and n elements is stored as m rows of n / m elements, rounded up. Merged
tokens have no sequence of their own: devices that cut the sequence have whole tokens where they
have whole groups of neighbours.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    Numerics,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.layout.tensor_layout import Indices, count


def merge_neighbours(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions / count, count x elements): the elements of `count` neighbours side by
    side.
    """
    return x.unflatten(1, (-1, count)).flatten(2)


def split_neighbours(x: torch.Tensor, count: int) -> torch.Tensor:
    """Inverse of `merge_neighbours`: each merged token as `count` neighbours."""
    return x.unflatten(2, (count, -1)).flatten(1, 2)


def fold_elements(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions x count, elements / count, rounded up): element e of a token at its
    neighbour e mod `count`, zeros after the last.

    A part of a token's elements, from one multiple of `count` to another, is then a part of each
    neighbour's, so that a width is cut like that of any tensor.
    """
    padded = functional.pad(x, (0, -x.shape[2] % count))
    return padded.unflatten(2, (-1, count)).transpose(2, 3).flatten(1, 2)


def unfold_elements(x: torch.Tensor, count: int, *, width: int) -> torch.Tensor:
    """Inverse of `fold_elements`: tokens of `width` elements."""
    return x.unflatten(1, (-1, count)).transpose(2, 3).flatten(2)[..., :width]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverMergedTokens:
    """The operator `of`, applied to tokens of several neighbours each (`Operator.joins`,
    `Operator.folds`).
    """

    of: Numerics

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: the device has only a part of elements that lie over several neighbours
            (rule ``execute.width``).
        """
        _require_whole(place)
        outputs, saved = yield from self.of.forward(_wide(place), _read(place, inputs), weights)
        operator = place.operator
        rows = tuple(
            fold_elements(y, operator.folds)
            if operator.folds > 1
            else split_neighbours(y, operator.joins)
            for y in outputs
        )
        # Backward needs the inputs in the form in which they came.
        return rows, SavedTensors(inputs=inputs, own=saved.own)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        operator = place.operator
        token_grads = yield from self.of.input_grad(
            _wide(place), _tokens(place, saved), _cotangents(place, grads), weights
        )

        def by_position(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:
                return None
            return (
                split_neighbours(gradient, operator.joins)
                if operator.joins > 1
                else fold_elements(gradient, operator.folds)
            )

        return tuple(
            values if values is None else tuple(map(by_position, values)) for values in token_grads
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        return (
            yield from self.of.weight_grad(
                _wide(place), _tokens(place, saved), _cotangents(place, grads), weights
            )
        )


def _read(place: OperatorShare, inputs: tuple[Values, ...]) -> tuple[Values, ...]:
    """Merged tokens of the inputs."""
    operator = place.operator
    if operator.joins > 1:
        return tuple(
            tuple(merge_neighbours(x, operator.joins) for x in values) for values in inputs
        )
    width = _widths(place)[0]
    return tuple(
        tuple(unfold_elements(x, operator.folds, width=width) for x in values) for values in inputs
    )


def _cotangents(place: OperatorShare, grads: Gradients) -> Gradients:
    """Gradients of merged tokens, from the gradients of the stored rows."""
    operator = place.operator
    if operator.folds == 1:
        return tuple(
            grad if grad is None else merge_neighbours(grad, operator.joins) for grad in grads
        )
    widths = _widths(place)[1:]
    return tuple(
        grad if grad is None else unfold_elements(grad, operator.folds, width=width)
        for grad, width in zip(grads, widths, strict=True)
    )


def _tokens(place: OperatorShare, saved: SavedTensors) -> SavedTensors:
    return replace(saved, inputs=_read(place, saved.inputs))


def _widths(place: OperatorShare) -> tuple[int, ...]:
    """Local elements of a merged token that is read, then of those that are written, as the weights
    have them.
    """
    operator = place.operator
    if operator.kind is not OperatorKind.LINEAR:
        return tuple(
            e.size * neighbour_count(operator) for e in (operator.reads[0], *operator.writes)
        )
    boxes = [place.parameters[p.name] for p in operator.parameters[: len(operator.writes)]]
    return (count(boxes[0][0]), *(count(box[-1]) for box in boxes))


def _wide(place: OperatorShare) -> OperatorShare:
    """The share of a norm over the elements of all neighbours, which the device has entirely."""
    operator = place.operator
    if operator.kind is not OperatorKind.NORM:
        return place
    wide = tuple(replace(e, size=e.size * neighbour_count(operator)) for e in operator.reads)
    whole = tuple((0, e.size) for e in wide)
    return replace(
        place,
        operator=replace(operator, reads=wide, writes=wide),
        reads=whole,
        writes=whole,
        groups={},
    )


def neighbour_count(operator: Operator) -> int:
    """Positions of the sequence that a token of the operator covers."""
    return max(operator.joins, operator.folds)


def splits_tokens(positions: Indices, count: int) -> bool:
    """True if the positions contain only a part of some token of `count` neighbours."""
    return any(end % count for stretch in positions for end in stretch)


def _require_whole(place: OperatorShare) -> None:
    operator = place.operator
    assert not splits_tokens(place.positions, neighbour_count(operator)), (
        "cuts through a token are refused before a step"
    )
    cut = (operator.joins > 1 or operator.kind is OperatorKind.NORM) and place.reads[0] != (
        0,
        operator.reads[0].size,
    )
    for part, extent, parameter in zip(
        place.writes, operator.writes, operator.parameters, strict=False
    ):
        width = parameter.extents[-1].size
        filled = operator.folds > 1 and extent.size * operator.folds != width
        cut = cut or (filled and part != (0, extent.size))
    if cut:
        raise StrategyError(
            f"{operator.name} has elements that lie over {neighbour_count(operator)} neighbours,"
            " and of them a part",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )
