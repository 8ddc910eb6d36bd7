"""y = x W (+ b), with explicit gradients."""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.local_tensors import given, only, returned
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """y_i = f_i (x W_i (+ b_i)) for every extent written (f_i: `Operator.factors`); x: the first
    extent of every input, side by side.

    Where the contracted dim is cut, y is a part of a sum, and the device of the first part adds the
    bias (and has its gradient). Adapters A, B_i add (x A) B_i to each. Another parameter beside
    weights and biases (tables of `Patches`) is not used; its gradient is zero.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`.

        Raises:
            StrategyError: the input is not as wide as the weight (towers of which only the sizes
                are known), rule ``execute.width``; the operator reads and writes one dim, and it is
                cut, so that a device would have only a part of its own part, ``execute.diagonal``.
        """
        yield from ()
        x = _joined(inputs)
        matrices, biases = names(place)
        if x.shape[-1] != weights[matrices[0]].shape[0]:
            raise StrategyError(
                f"{place.operator.name} reads {x.shape[-1]} elements with a weight of"
                f" {weights[matrices[0]].shape[0]} rows",
                hint="a tower of which only the sizes are known cannot be executed yet",
                rule="execute.width",
            )
        _check_whole(place)
        outputs = [x @ weights[name] for name in matrices]
        own: Values = ()
        for down, *ups in adapters(place):
            made = x @ weights[down]
            outputs = [y + made @ weights[up] for y, up in zip(outputs, ups, strict=True)]
            # Room for the cotangent of `made`: the input gradient leaves it for the weight
            # gradient.
            own = (made, torch.zeros_like(made))
        if biases and first_part(place):
            outputs = [y + weights[name] for y, name in zip(outputs, biases, strict=True)]
        return tuple(scaled(place, outputs)), SavedTensors(
            inputs=tuple(only(values, 0) for values in inputs), own=own
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`."""
        yield from ()
        matrices, _ = names(place)
        own = scaled(place, [given(g) for g in grads])
        terms = [g @ weights[name].T for g, name in zip(own, matrices, strict=True)]
        for down, *ups in adapters(place):
            cotangent = sum_of([g @ weights[up].T for g, up in zip(own, ups, strict=True)])
            saved.own[1].copy_(cotangent)
            terms.append(cotangent @ weights[down].T)
        dx = sum_of(terms)
        pieces = torch.split(dx, [values[0].shape[-1] for values in saved.inputs], dim=-1)
        return tuple(
            returned(values, {0: piece}) for values, piece in zip(saved.inputs, pieces, strict=True)
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        x = _joined(saved.inputs).flatten(0, 1)
        matrices, biases = names(place)
        own = scaled(place, [given(g) for g in grads])
        frozen = {p.name for p in place.operator.parameters if not p.trainable}
        found = {
            name: x.T @ g.flatten(0, 1)
            for name, g in zip(matrices, own, strict=True)
            if name not in frozen
        }
        for down, *ups in adapters(place):
            made, cotangent = (one.flatten(0, 1) for one in saved.own)
            found |= {down: x.T @ cotangent}
            found |= {up: made.T @ g.flatten(0, 1) for g, up in zip(own, ups, strict=True)}
        if biases and first_part(place):
            found |= {name: g.sum((0, 1)) for name, g in zip(biases, own, strict=True)}
        return {
            p.name: found[p.name] if p.name in found else torch.zeros_like(weights[p.name])
            for p in place.operator.parameters
            if p.trainable
        }


def scaled(place: OperatorShare, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """What an operator writes, or the gradients of it, times its factors."""
    factors = place.operator.factors
    return (
        [one if f == 1.0 else one * f for one, f in zip(values, factors, strict=True)]
        if factors
        else values
    )


def names(place: OperatorShare) -> tuple[list[str], list[str]]:
    """(weights, biases) in the order of the extents written;
    no biases where the operator has none.
    """
    count = len(place.operator.writes)
    listed = [p.name for p in place.operator.parameters]
    biases = [name for name in listed[count:] if name.rpartition("bias")[1]]
    return listed[:count], biases


def adapters(place: OperatorShare) -> tuple[tuple[str, ...], ...]:
    """Names of A and of every B, where the operator has adapters."""
    return (tuple(p.name for p in place.operator.adapters),) if place.operator.adapted else ()


def _check_whole(place: OperatorShare) -> None:
    operator = place.operator
    cut = place.reads[0] != (0, operator.reads[0].size)
    if cut and any(extent.dim is operator.reads[0].dim for extent in operator.writes):
        raise StrategyError(
            f"{operator.name} reads and writes dim {operator.reads[0].dim.value}, which is cut",
            hint="replicate this operator's class over that cut",
            rule="execute.diagonal",
        )


def first_part(place: OperatorShare) -> bool:
    """The device has the first part of what the operator contracts (all of it, where it is not
    cut).
    """
    low, high = place.reads[0]
    return low == 0 and high > low


def sum_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum of at least one tensor."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _joined(inputs: tuple[Values, ...]) -> torch.Tensor:
    return inputs[0][0] if len(inputs) == 1 else torch.cat([values[0] for values in inputs], dim=-1)
