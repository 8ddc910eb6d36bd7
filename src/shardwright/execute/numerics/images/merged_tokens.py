"""Operators whose tokens are of several neighbours of the sequence each: image tokens that a
projector merges of patches.

A token of m neighbours and n elements is held as m rows of n / m, rounded up: it has no sequence of
its own, and devices that cut the sequence have whole tokens where they have whole groups of
neighbours.
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


def joined(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions / count, count x elements): what neighbours have, side by side."""
    return x.unflatten(1, (-1, count)).flatten(2)


def apart(x: torch.Tensor, count: int) -> torch.Tensor:
    """As it was before `joined`."""
    return x.unflatten(2, (count, -1)).flatten(1, 2)


def folded(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions x count, elements / count, rounded up): element e of a token at its
    neighbour e mod `count`, zeros behind all.

    So a part of a token's elements, from a multiple of `count` to another, is a part of each
    neighbour's, and cuts of a width are those of any tensor.
    """
    whole = functional.pad(x, (0, -x.shape[2] % count))
    return whole.unflatten(2, (-1, count)).transpose(2, 3).flatten(1, 2)


def unfolded(x: torch.Tensor, count: int, *, width: int) -> torch.Tensor:
    """As it was before `folded`, with so many elements."""
    return x.unflatten(1, (-1, count)).transpose(2, 3).flatten(2)[..., :width]


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """What `of` computes, over tokens of several neighbours each (`Operator.joins`,
    `Operator.folds`).
    """

    of: Numerics

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: of elements that lie over neighbours the device has only a part (rule
            ``execute.width``).
        """
        _require_whole(place)
        made, saved = yield from self.of.forward(_wide(place), _read(place, inputs), weights)
        operator = place.operator
        rows = tuple(
            folded(y, operator.folds) if operator.folds > 1 else apart(y, operator.joins)
            for y in made
        )
        # Backward asks for what came, as other operators that keep it do.
        return rows, SavedTensors(inputs=inputs, own=saved.own)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        operator = place.operator
        back = yield from self.of.input_grad(
            _wide(place), _tokens(place, saved), _cotangents(place, grads), weights
        )

        def given_back(gradient: torch.Tensor | None) -> torch.Tensor | None:
            if gradient is None:
                return None
            return (
                apart(gradient, operator.joins)
                if operator.joins > 1
                else folded(gradient, operator.folds)
            )

        return tuple(
            values if values is None else tuple(map(given_back, values)) for values in back
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
    """Tokens of what came."""
    operator = place.operator
    if operator.joins > 1:
        return tuple(tuple(joined(x, operator.joins) for x in values) for values in inputs)
    width = _widths(place)[0]
    return tuple(
        tuple(unfolded(x, operator.folds, width=width) for x in values) for values in inputs
    )


def _cotangents(place: OperatorShare, grads: Gradients) -> Gradients:
    """Of tokens, from those of what is held."""
    operator = place.operator
    if operator.folds == 1:
        return tuple(g if g is None else joined(g, operator.joins) for g in grads)
    widths = _widths(place)[1:]
    return tuple(
        g if g is None else unfolded(g, operator.folds, width=n)
        for g, n in zip(grads, widths, strict=True)
    )


def _tokens(place: OperatorShare, saved: SavedTensors) -> SavedTensors:
    return replace(saved, inputs=_read(place, saved.inputs))


def _widths(place: OperatorShare) -> tuple[int, ...]:
    """Local elements of a token that is read, and of those that are written:
    as weights have them.
    """
    operator = place.operator
    if operator.kind is not OperatorKind.LINEAR:
        return tuple(e.size * neighbours(operator) for e in (operator.reads[0], *operator.writes))
    boxes = [place.parameters[p.name] for p in operator.parameters[: len(operator.writes)]]
    return (count(boxes[0][0]), *(count(box[-1]) for box in boxes))


def _wide(place: OperatorShare) -> OperatorShare:
    """The place of a norm over the elements of all neighbours, which are all there."""
    operator = place.operator
    if operator.kind is not OperatorKind.NORM:
        return place
    wide = tuple(replace(e, size=e.size * neighbours(operator)) for e in operator.reads)
    whole = tuple((0, e.size) for e in wide)
    return replace(
        place,
        operator=replace(operator, reads=wide, writes=wide),
        reads=whole,
        writes=whole,
        groups={},
    )


def neighbours(operator: Operator) -> int:
    """Positions of the sequence that a token of the operator is of."""
    return max(operator.joins, operator.folds)


def splits_tokens(positions: Indices, count: int) -> bool:
    """Of some token of so many neighbours these positions are only a part."""
    return any(end % count for stretch in positions for end in stretch)


def _require_whole(place: OperatorShare) -> None:
    operator = place.operator
    assert not splits_tokens(place.positions, neighbours(operator)), (
        "cuts through a token are refused before a step"
    )
    cut = (operator.joins > 1 or operator.kind is OperatorKind.NORM) and place.reads[0] != (
        0,
        operator.reads[0].size,
    )
    for part, held, parameter in zip(
        place.writes, operator.writes, operator.parameters, strict=False
    ):
        filled = operator.folds > 1 and held.size * operator.folds != parameter.extents[-1].size
        cut = cut or (filled and part != (0, held.size))
    if cut:
        raise StrategyError(
            f"{operator.name} has elements that lie over {neighbours(operator)} neighbours, and of"
            " them a part",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )
