"""The mean of neighbours: patches of an image that are pooled to one image token (Gemma 4)."""

from __future__ import annotations

from shardwright.execute.numerics.base.local_tensors import fine
from shardwright.execute.numerics.base.operator_protocol import Values, Weights
from shardwright.execute.transport.torch_device import OperatorShare


def pooled(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """(factor x mean over the neighbours - shift) x scale, of the parameters that the operator has.

    Reads what neighbours have side by side (`numerics.folds`). Worked: of 1 2 and 3 6 with factor
    2, shift 1 0 and scale 1 3 it is 3 24.
    """
    operator, x = place.operator, inputs[0][0]
    mean = fine(x).unflatten(-1, (operator.joins, -1)).mean(-2)
    y = mean * operator.factors[0] if operator.factors else mean
    own = {p.name.rpartition(".")[2]: fine(weights[p.name]) for p in operator.parameters}
    if own:
        y = (y - own["shift"]) * own["scale"]
    return (y.to(x.dtype),)
