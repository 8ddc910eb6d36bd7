"""Pooling of neighbouring patches to one token (Gemma 4)."""

from __future__ import annotations

from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    parameters_by_role,
)


def pool_patches(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """Pool neighbours to one token: (factor x mean over the neighbours - shift) x scale.

    Factor, shift and scale are optional.

    Reads merged tokens (`operators_over_merged_tokens`). Worked: of 1 2 and 3 6 with factor
    2, shift 1 0 and scale 1 3 it is 3 24.
    """
    operator, x = place.operator, inputs[0][0]
    mean = at_least_float32(x).unflatten(-1, (operator.joins, -1)).mean(-2)
    y = mean * operator.factors[0] if operator.factors else mean
    parameters = parameters_by_role(operator, weights)
    if parameters:
        y = (y - parameters["shift"]) * parameters["scale"]
    return (y.to(x.dtype),)
