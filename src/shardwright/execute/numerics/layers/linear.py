"""Linear layers y = x W (+ b), with explicit gradients and low-rank adapters."""

from __future__ import annotations

import torch

from shardwright.errors import StrategyError
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    input_gradients,
    keep_extents,
    require_gradient,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Linear layers y_i = f_i (x W_i (+ b_i)), one for every extent written.

    f_i are `Operator.factors`; x joins the first extents of all inputs.

    Where the contracted dim is cut, y is a partial sum, and the device of the first part adds the
    bias (and has its gradient). Adapters A, B_i add (x A) B_i to each output. Parameters other than
    weights and biases (tables of `PatchEmbedding`) are not used; their gradients are zero.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Outputs x W_i, with adapters and biases, times the operator's factors, for each extent.

        See `Numerics`.

        Raises:
            StrategyError: the input is not as wide as the weight (towers of which only the sizes
            are known), rule ``execute.width``; the operator reads and writes the same dim, and that
            dim is cut, ``execute.diagonal``.
        """
        yield from ()
        x = _joined_inputs(inputs)
        matrices, biases = weight_and_bias_names(place)
        if x.shape[-1] != weights[matrices[0]].shape[0]:
            raise StrategyError(
                f"{place.operator.name} reads {x.shape[-1]} elements with a weight of"
                f" {weights[matrices[0]].shape[0]} rows",
                hint="a tower of which only the sizes are known cannot be executed yet",
                rule="execute.width",
            )
        _require_uncut_diagonal(place)
        outputs = [x @ weights[name] for name in matrices]
        adapter_tensors: Values = ()
        for down, *ups in adapter_names(place):
            projected = x @ weights[down]
            outputs = [y + projected @ weights[up] for y, up in zip(outputs, ups, strict=True)]
            # The zeros are room for the cotangent of `projected`, which `input_grad` leaves for
            # `weight_grad`.
            adapter_tensors = (projected, torch.zeros_like(projected))
        if biases and has_first_part(place):
            outputs = [y + weights[name] for y, name in zip(outputs, biases, strict=True)]
        return tuple(scale_by_factors(place, outputs)), SavedTensors(
            inputs=tuple(keep_extents(values, 0) for values in inputs), own=adapter_tensors
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradients of the inputs, and the adapters' cotangent left in `saved` for `weight_grad`.

        See `Numerics`.
        """
        yield from ()
        matrices, _ = weight_and_bias_names(place)
        scaled_grads = scale_by_factors(place, [require_gradient(g) for g in grads])
        terms = [g @ weights[name].T for g, name in zip(scaled_grads, matrices, strict=True)]
        for down, *ups in adapter_names(place):
            cotangent = sum_tensors(
                [g @ weights[up].T for g, up in zip(scaled_grads, ups, strict=True)]
            )
            saved.own[1].copy_(cotangent)
            terms.append(cotangent @ weights[down].T)
        dx = sum_tensors(terms)
        pieces = torch.split(dx, [values[0].shape[-1] for values in saved.inputs], dim=-1)
        return tuple(
            input_gradients(values, {0: piece})
            for values, piece in zip(saved.inputs, pieces, strict=True)
        )

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradients of trainable weights, biases and adapters, which need `input_grad` before.

        See `Numerics`.
        """
        yield from ()
        x = _joined_inputs(saved.inputs).flatten(0, 1)
        matrices, biases = weight_and_bias_names(place)
        scaled_grads = scale_by_factors(place, [require_gradient(g) for g in grads])
        frozen = {p.name for p in place.operator.parameters if not p.trainable}
        weight_grads = {
            name: x.T @ g.flatten(0, 1)
            for name, g in zip(matrices, scaled_grads, strict=True)
            if name not in frozen
        }
        for down, *ups in adapter_names(place):
            projected, cotangent = (tensor.flatten(0, 1) for tensor in saved.own)
            weight_grads |= {down: x.T @ cotangent}
            weight_grads |= {
                up: projected.T @ g.flatten(0, 1) for g, up in zip(scaled_grads, ups, strict=True)
            }
        if biases and has_first_part(place):
            weight_grads |= {
                name: g.sum((0, 1)) for name, g in zip(biases, scaled_grads, strict=True)
            }
        return {
            p.name: weight_grads[p.name]
            if p.name in weight_grads
            else torch.zeros_like(weights[p.name])
            for p in place.operator.parameters
            if p.trainable
        }


def scale_by_factors(place: OperatorShare, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Multiply an operator's outputs, or their gradients, by the operator's factors."""
    factors = place.operator.factors
    return (
        [
            value if factor == 1.0 else value * factor
            for value, factor in zip(values, factors, strict=True)
        ]
        if factors
        else values
    )


def weight_and_bias_names(place: OperatorShare) -> tuple[list[str], list[str]]:
    """Names of (weights, biases) in the order of the extents written; biases may be empty."""
    count = len(place.operator.writes)
    listed = [p.name for p in place.operator.parameters]
    biases = [name for name in listed[count:] if name.rpartition("bias")[1]]
    return listed[:count], biases


def adapter_names(place: OperatorShare) -> tuple[tuple[str, ...], ...]:
    """((name of A, name of every B, ...),) if the operator has adapters, else ()."""
    return (tuple(p.name for p in place.operator.adapters),) if place.operator.adapted else ()


def _require_uncut_diagonal(place: OperatorShare) -> None:
    """Raise StrategyError if the operator reads and writes the same dim and the dim is cut."""
    operator = place.operator
    cut = place.reads[0] != (0, operator.reads[0].size)
    if cut and any(extent.dim is operator.reads[0].dim for extent in operator.writes):
        raise StrategyError(
            f"{operator.name} reads and writes dim {operator.reads[0].dim.value}, which is cut",
            hint="replicate this operator's class over that cut",
            rule="execute.diagonal",
        )


def has_first_part(place: OperatorShare) -> bool:
    """True if the device has the first input elements, so that it alone adds the bias."""
    low, high = place.reads[0]
    return low == 0 and high > low


def sum_tensors(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum of at least one tensor."""
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def _joined_inputs(inputs: tuple[Values, ...]) -> torch.Tensor:
    """First extent of each input, concatenated along the elements."""
    return inputs[0][0] if len(inputs) == 1 else torch.cat([values[0] for values in inputs], dim=-1)
