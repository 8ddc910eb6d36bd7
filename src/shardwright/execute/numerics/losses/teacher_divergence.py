"""Kullback-Leibler divergence from a teacher's logits, for distillation."""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_collectives import all_reduce
from shardwright.execute.numerics.base.operator_protocol import (
    Gradients,
    SavedTensors,
    Values,
    Weights,
    WithoutParameters,
)
from shardwright.execute.numerics.base.operator_share_and_routed_tokens import OperatorShare
from shardwright.execute.numerics.base.tensor_helpers_of_all_operators import (
    at_least_float32,
    require_gradient,
    with_last_dim,
)
from shardwright.execute.numerics.losses.logit_scaling import (
    largest_logits,
    scaled_logits,
    scaled_logits_grad,
)
from shardwright.execute.transport.communication_requests import Reduction, Task
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherDivergence(WithoutParameters):
    """Divergence KL(teacher, student) of every token, (samples, positions, 1).

    It is not divided by the number of tokens, and zero where the label is negative.

        sum over words of p (log p - log q)
        p = softmax(teacher's logits), q = softmax(the model's own)

    If logits are cut by vocabulary (`groups["vocab"]`), the maxima of both are reduced, then both
    denominators and the sum of exp(teacher) x (teacher - own), so that every device of the group
    has the full value. The temperature is 1.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """KL(teacher || model) of every token over the whole vocabulary; 0 at negative labels.

        See `Numerics`.
        """
        student, teacher = (
            scaled_logits(at_least_float32(values[0]), place.settings) for values in inputs[:2]
        )
        labels = with_last_dim(inputs[-1][0])
        tops = torch.cat([largest_logits(student), largest_logits(teacher)], dim=-1)
        tops = yield from all_reduce(place, "vocab", tops, purpose="max", reduction=Reduction.MAX)
        top, teacher_top = tops[..., :1], tops[..., 1:]
        weight = (teacher - teacher_top).exp()
        parts = ((student - top).exp(), weight, weight * (teacher - student))
        sums = yield from all_reduce(
            place,
            "vocab",
            torch.cat([part.sum(-1, keepdim=True) for part in parts], dim=-1),
            purpose="sum",
        )
        normal, teacher_normal = top + sums[..., :1].log(), teacher_top + sums[..., 1:2].log()
        value = sums[..., 2:] / sums[..., 1:2] - teacher_normal + normal
        return (torch.where(labels >= 0, value, 0),), SavedTensors(
            inputs=inputs, own=(normal, teacher_normal)
        )

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradient of the model's logits: (model - teacher probabilities) x the loss's gradient.

        See `Numerics`. The teacher's logits have no gradient.
        """
        yield from ()
        student, teacher = (
            scaled_logits(at_least_float32(values[0]), place.settings)
            for values in saved.inputs[:2]
        )
        labels = with_last_dim(saved.inputs[-1][0])
        scale = torch.where(labels >= 0, require_gradient(grads[0]), 0)
        dx = ((student - saved.own[0]).exp() - (teacher - saved.own[1]).exp()) * scale
        return (
            (scaled_logits_grad(dx, student, place.settings).to(saved.inputs[0][0].dtype),),
            None,
            None,
        )
