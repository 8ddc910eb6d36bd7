"""Protocol of operators: forward, input gradient and weight gradient on one device's share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass

Values = tuple[torch.Tensor, ...]
"""An operator's output: one tensor for each extent, (samples, positions, elements) of the device's
box in the order of its index lists.

Integers may follow the extents' tensors: the experts' numbers of ``route``, and the counts of
routed rows (see `numerics.experts`).
"""
Gradients = tuple[torch.Tensor | None, ...]
"""Gradients of `Values`: None for integers."""
Weights = Mapping[str, torch.Tensor]
"""Local slices of an operator's parameters by `Parameter.name`, dims in the order of its extents.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensors:
    """Tensors that a forward pass saves for backward, without autograd graphs.

    Args:
        inputs: the forward pass's inputs; extents that backward does not read are placeholders
            without memory.
        own: further tensors that the operator computed.
    """

    inputs: tuple[Values, ...]
    own: Values = ()


class Forward(Protocol):
    """The forward pass of an operator, a generator (`Task`).

    An operator without communication yields no request.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Output extents of an operator on this device, and the tensors saved for backward.

        Args:
            inputs: in the order of `Operator.inputs`, each with all extents that its producer
                writes, in the box that this operator reads (all elements where it does not cut that
                dim). An embedding has one input: ((token ids,),), int64, (samples, positions) or
                with a last dim of one. A loss has one more input, its last: ((labels,),) of that
                form, negative where no token is predicted.
        """
        ...


class Numerics(Forward, Protocol):
    """Forward and backward passes of an operator, all three generators."""

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradient of each input: one tensor for each extent, or None for ids and labels.

        Extents that the operator does not read have zeros.

        Where the operator cuts a dim that the input lacks, the result is this device's part of a
        sum.
        """
        ...

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradient of each trainable parameter's local part, over the device's own tokens.

        Gradients have at least the weights' dtype.

        Where the operator cuts a dim that the parameter lacks, the result is this device's part of
        a sum.
        """
        ...


class WithoutParameters:
    """Base of operators without parameters, which have no weight gradients."""

    __slots__ = ()

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """No weight gradients: an empty mapping.

        See `Numerics`.
        """
        yield from ()
        return {}
