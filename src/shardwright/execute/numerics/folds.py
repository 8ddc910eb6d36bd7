"""Operators whose tokens are of several neighbours of the sequence each: image tokens that a projector merges of patches.

A token of m neighbours and n elements is held as m rows of n / m: no sequence of its own, and devices that cut the sequence have whole
tokens where they have whole groups of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.protocol import Gradients, Numerics, SavedTensors, Values, Weights
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import Operator, OperatorKind


def joined(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions / count, count x elements): what neighbours have, side by side."""
    return x.unflatten(1, (-1, count)).flatten(2)


def apart(x: torch.Tensor, count: int) -> torch.Tensor:
    """As it was before `joined`."""
    return x.unflatten(2, (count, -1)).flatten(1, 2)


def folded(x: torch.Tensor, count: int) -> torch.Tensor:
    """(samples, positions x count, elements / count): element e of a token at its neighbour e mod `count`.

    So a part of a token's elements, from a multiple of `count` to another, is a part of each neighbour's, and cuts of a width are those of
    any tensor.
    """
    return x.unflatten(2, (-1, count)).transpose(2, 3).flatten(1, 2)


def unfolded(x: torch.Tensor, count: int) -> torch.Tensor:
    """As it was before `folded`."""
    return x.unflatten(1, (-1, count)).transpose(2, 3).flatten(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """What `of` computes, over tokens of several neighbours each (`Operator.joins`, `Operator.folds`)."""

    of: Numerics

    def forward(self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: the device has some neighbours of a token and not all (rule ``execute.neighbours``), or of elements that are
                joined only a part (``execute.width``).
        """
        _require_whole(place)
        made, saved = yield from self.of.forward(_wide(place), _read(place.operator, inputs), weights)
        # Backward asks for what came, as other operators that keep it do.
        return _rows(place.operator, made), SavedTensors(inputs=inputs, own=saved.own)

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        one = place.operator
        back = yield from self.of.input_grad(_wide(place), _tokens(one, saved), _cotangents(one, grads), weights)
        return tuple(values if values is None else tuple(g if g is None else _given_back(one, g) for g in values) for values in back)

    def weight_grad(self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        one = place.operator
        return (yield from self.of.weight_grad(_wide(place), _tokens(one, saved), _cotangents(one, grads), weights))


def _read(operator: Operator, inputs: tuple[Values, ...]) -> tuple[Values, ...]:
    """Tokens of what came."""
    count, view = (operator.joins, joined) if operator.joins > 1 else (operator.folds, unfolded)
    return tuple(tuple(view(x, count) for x in values) for values in inputs)


def _given_back(operator: Operator, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient of tokens as one of what came."""
    return apart(gradient, operator.joins) if operator.joins > 1 else folded(gradient, operator.folds)


def _rows(operator: Operator, made: Values) -> Values:
    """Tokens as they are held: those that are only read together are apart again."""
    return tuple(folded(y, operator.folds) if operator.folds > 1 else apart(y, operator.joins) for y in made)


def _cotangents(operator: Operator, grads: Gradients) -> Gradients:
    """Of tokens, from those of what is held."""
    count, view = (operator.folds, unfolded) if operator.folds > 1 else (operator.joins, joined)
    return tuple(g if g is None else view(g, count) for g in grads)


def _tokens(operator: Operator, saved: SavedTensors) -> SavedTensors:
    return replace(saved, inputs=_read(operator, saved.inputs))


def _wide(place: OperatorShare) -> OperatorShare:
    """The place of a norm over joined elements, which are all there."""
    operator = place.operator
    if operator.kind is not OperatorKind.NORM:
        return place
    wide = tuple(replace(e, size=e.size * operator.joins) for e in operator.reads)
    whole = tuple((0, e.size) for e in wide)
    return replace(place, operator=replace(operator, reads=wide, writes=wide), reads=whole, writes=whole, groups={})


def _require_whole(place: OperatorShare) -> None:
    operator = place.operator
    count = max(operator.joins, operator.folds)
    if any(end % count for stretch in place.positions for end in stretch):
        raise StrategyError(
            f"{operator.name} works on tokens of {count} neighbours, of which a device has only some: positions {list(place.positions)}",
            hint=f"cut the sequence into parts of a multiple of {count} positions, or not at all",
            rule="execute.neighbours",
        )
    if operator.joins > 1 and place.reads[0] != (0, operator.reads[0].size):
        raise StrategyError(
            f"{operator.name} joins elements of {operator.joins} neighbours, which are cut",
            hint="replicate this operator's class over that cut",
            rule="execute.width",
        )
