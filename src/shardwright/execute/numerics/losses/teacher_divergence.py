"""Divergence of a model's words from its teacher's, over logits that may be cut by vocabulary."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.group_calls import reduced
from shardwright.execute.numerics.base.local_tensors import column, fine, given
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
)
from shardwright.execute.numerics.losses.logit_scaling import logits_of, products_grad
from shardwright.execute.transport.requests import Reduction, Task
from shardwright.execute.transport.torch_device import OperatorShare
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """KL(teacher || student) of every token, not divided: (samples, positions, 1); zero where the
    label is negative.

        sum over words of p (log p - log q)
        p = softmax(teacher's logits), q = softmax(the model's own)

    Cut by vocabulary (`groups["vocab"]`), the maxima of both are reduced, then both normal sums and
    the sum of exp(teacher) x (teacher - own): every device of the group has the whole value. A
    temperature is 1.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """See `Numerics`: the model's own logits, the teacher's, the labels."""
        own, taught = (logits_of(fine(one[0]), place.settings) for one in inputs[:2])
        labels = column(inputs[-1][0])
        tops = torch.cat([_top(own), _top(taught)], dim=-1)
        tops = yield from reduced(place, "vocab", tops, what="max", reduction=Reduction.MAX)
        top, other = tops[..., :1], tops[..., 1:]
        weight = (taught - other).exp()
        parts = ((own - top).exp(), weight, weight * (taught - own))
        sums = yield from reduced(
            place,
            "vocab",
            torch.cat([part.sum(-1, keepdim=True) for part in parts], dim=-1),
            what="sum",
        )
        normal, of_teacher = top + sums[..., :1].log(), other + sums[..., 1:2].log()
        value = sums[..., 2:] / sums[..., 1:2] - of_teacher + normal
        return (torch.where(labels >= 0, value, 0),), SavedTensors(
            inputs=inputs, own=(normal, of_teacher)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """See `Numerics`: (q - p) x gradient; the teacher's logits have none."""
        yield from ()
        own, taught = (logits_of(fine(one[0]), place.settings) for one in saved.inputs[:2])
        labels = column(saved.inputs[-1][0])
        scale = torch.where(labels >= 0, given(grads[0]), 0)
        dx = ((own - saved.own[0]).exp() - (taught - saved.own[1]).exp()) * scale
        return (products_grad(dx, own, place.settings).to(saved.inputs[0][0].dtype),), None, None

    def weight_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[dict[str, torch.Tensor]]:
        """See `Numerics`."""
        yield from ()
        return {}


def _top(logits: torch.Tensor) -> torch.Tensor:
    return (
        logits.amax(-1, keepdim=True)
        if logits.shape[-1]
        else logits.new_full((*logits.shape[:-1], 1), -torch.inf)
    )
