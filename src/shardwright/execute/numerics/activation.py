"""Activations: GELU, SwiGLU, and the gates behind cores, scans and shared experts."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.execute.numerics.protocol import Values, Weights
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.model.ir.operator import OperatorClass

GATE_EXTENT = {1: 0, 2: 1, 4: 3, 5: 0, 6: 3}
"""Which extent of a fused projection is the gate, by how many it writes.

2: x z (Mamba-1). 4: q k v gate (gated attention). 5: z x B C dt (Mamba-2). 6: q k v z b a (delta net). 1: a projection of its own.
"""


def activation(place: OperatorShare, inputs: tuple[Values, ...], weights: Weights) -> Values:
    """GELU in its tanh form of one extent; silu(first) x second of two; or, with two inputs, first x act(gate).

    The gate's act is silu behind a scan and sigmoid elsewhere; one narrower than what it scales holds one score a head (or a token). What
    follows the extents (counts of routed rows) passes through.
    """
    operator = place.operator
    if len(inputs) == 1:
        (values,) = inputs
        count = len(operator.reads)
        if not operator.gated:
            return (functional.gelu(values[0], approximate="tanh"), *values[count:])
        return (functional.silu(values[0]) * values[1], *values[count:])
    x, scores = inputs[0][0], inputs[1][GATE_EXTENT[len(inputs[1])]]
    gate = functional.silu(scores) if operator.klass is OperatorClass.SSM else torch.sigmoid(scores)
    return ((x.unflatten(-1, (gate.shape[-1], -1)) * gate.unsqueeze(-1)).flatten(-2),)
