"""What an operator can do on its local boxes: forward, input gradient, weight gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from shardwright.execute.transport.requests import Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass

Values = tuple[torch.Tensor, ...]
"""What an operator writes: one tensor for each extent, (samples, positions, elements) of the
device's box in the order of its index lists.

Behind the extents' tensors may lie integers: the experts' numbers of ``route``, and the counts of
routed rows (see `numerics.experts`).
"""
Gradients = tuple[torch.Tensor | None, ...]
"""Of Values: None for integers."""
Weights = Mapping[str, torch.Tensor]
"""Local slices of an operator's parameters by `Parameter.name`, dims in the order of its extents.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensors:
    """What backward needs of a forward pass; no tensor in it has an autograd graph.

    Args:
        inputs: as they came; extents that backward does not read are stand-ins without memory.
        own: what the operator made besides.
    """

    inputs: tuple[Values, ...]
    own: Values = ()


class Forward(Protocol):
    """What a forward pass asks of an operator: a generator (`Task`); one without communication
    yields nothing.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """What the operator writes, and what its backward needs.

        Args:
            inputs: in the order of `operator.inputs`, each all extents that its producer writes, in
                the box that this operator reads (elements whole where it does not cut that dim). An
                embedding has one input: ((token ids,),), int64, (samples, positions) or with a last
                dim of one. A loss has a last one more: ((labels,),) of that form, negative where
                there is nothing to predict.
        """
        ...


class Numerics(Forward, Protocol):
    """An operator's numbers. All three are generators."""

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradient of each input: one tensor for each extent (zeros for those that the operator
        does not read), or None for the whole input where it has no gradient (ids, labels).

        Where the operator cuts a dim that the input lacks, the result is this device's part of a
        sum.
        """
        ...

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """Gradient of each trainable parameter's slice from the device's own tokens and parts, in
        the weights' dtype or a finer one.

        Where the operator cuts a dim that the parameter lacks, it is this device's part of a sum.
        """
        ...
