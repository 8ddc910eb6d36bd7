"""Operators over merged tokens, each of which covers several neighbouring positions.

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
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.program.layout.tensor_layout import Indices, count


def merge_neighbours(x: torch.Tensor, count: int) -> torch.Tensor:
    """Join the elements of `count` neighbours: (samples, positions / count, count x elements)."""
    return x.unflatten(1, (-1, count)).flatten(2)


def split_neighbours(x: torch.Tensor, count: int) -> torch.Tensor:
    """Inverse of `merge_neighbours`: split each merged token into `count` neighbours."""
    return x.unflatten(2, (count, -1)).flatten(1, 2)


def fold_elements(x: torch.Tensor, count: int) -> torch.Tensor:
    """Store each token as `count` rows: element e in row e mod `count`, zeros at the end.

    (samples, positions x count, elements / count, rounded up), zeros after the last element.

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
    """The operator `of`, applied to tokens of several neighbours each.

    See `Operator.joins` and `Operator.folds`.
    """

    of: Numerics

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Apply the operator to merged tokens, and store its outputs by position.

        See `Numerics`.

        Raises:
            StrategyError: the device has only a part of elements that lie over several neighbours
            (rule ``execute.width``).
        """
        _require_uncut_tokens(place)
        outputs, saved = yield from self.of.forward(
            _share_of_merged_norm(place), _merged_inputs(place, inputs), weights
        )
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
        """Input gradients of the operator over merged tokens, by position.

        See `Numerics`.
        """
        operator = place.operator
        token_grads = yield from self.of.input_grad(
            _share_of_merged_norm(place),
            _with_merged_inputs(place, saved),
            _merged_gradients(place, grads),
            weights,
        )

        def by_position(gradient: torch.Tensor | None) -> torch.Tensor | None:
            """Gradient by position, from a gradient by merged token; None for None."""
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
        """Parameter gradients of the operator over merged tokens.

        See `Numerics`.
        """
        return (
            yield from self.of.weight_grad(
                _share_of_merged_norm(place),
                _with_merged_inputs(place, saved),
                _merged_gradients(place, grads),
                weights,
            )
        )


def _merged_inputs(place: OperatorShare, inputs: tuple[Values, ...]) -> tuple[Values, ...]:
    """Inputs with `joins` neighbouring tokens merged to one, or folded elements unfolded."""
    operator = place.operator
    if operator.joins > 1:
        return tuple(
            tuple(merge_neighbours(x, operator.joins) for x in values) for values in inputs
        )
    width = _widths(place)[0]
    return tuple(
        tuple(unfold_elements(x, operator.folds, width=width) for x in values) for values in inputs
    )


def _merged_gradients(place: OperatorShare, grads: Gradients) -> Gradients:
    """Output gradients by merged token, from gradients by position."""
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


def _with_merged_inputs(place: OperatorShare, saved: SavedTensors) -> SavedTensors:
    """Saved tensors of the operator, with its inputs by merged token."""
    return replace(saved, inputs=_merged_inputs(place, saved.inputs))


def _widths(place: OperatorShare) -> tuple[int, ...]:
    """Local elements of a merged token, for the input and then for each output."""
    operator = place.operator
    if operator.kind is not OperatorKind.LINEAR:
        return tuple(
            e.size * neighbour_count(operator) for e in (operator.reads[0], *operator.writes)
        )
    boxes = [place.parameters[p.name] for p in operator.parameters[: len(operator.writes)]]
    return (count(boxes[0][0]), *(count(box[-1]) for box in boxes))


def _share_of_merged_norm(place: OperatorShare) -> OperatorShare:
    """Share with a norm's extents widened to all neighbours, uncut; other operators' unchanged."""
    operator = place.operator
    if operator.kind is not OperatorKind.NORM:
        return place
    wide = tuple(replace(e, size=e.size * neighbour_count(operator)) for e in operator.reads)
    full_intervals = tuple((0, e.size) for e in wide)
    return replace(
        place,
        operator=replace(operator, reads=wide, writes=wide),
        reads=full_intervals,
        writes=full_intervals,
        groups={},
    )


def neighbour_count(operator: Operator) -> int:
    """Number of positions of the sequence that a token of the operator covers."""
    return max(operator.joins, operator.folds)


def splits_tokens(positions: Indices, count: int) -> bool:
    """True if the positions contain only a part of some token of `count` neighbours."""
    return any(end % count for interval in positions for end in interval)


def _require_uncut_tokens(place: OperatorShare) -> None:
    """Raise StrategyError if the device has only a part of elements spread over neighbours."""
    operator = place.operator
    assert not splits_tokens(place.positions, neighbour_count(operator)), (
        "cuts through a token are rejected before a step"
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
            " and the device has only a part of them",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )
