"""Cross-entropy over logits that may be cut by vocabulary.

Logits that are not cut use PyTorch's fused log-softmax kernels.
"""

from __future__ import annotations

import torch

from shardwright.execute.numerics.base.operator_collectives import all_reduce, group_members
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
class CrossEntropy(WithoutParameters):
    """Cross-entropy -log softmax(logits)[label] of every token, (samples, positions, 1).

    It is not divided by the number of tokens, and zero where the label is negative.

    If logits are cut by vocabulary (`groups["vocab"]`), the maxima, sums and labels' logits are
    reduced, so that every device of the group has the full value.
    """

    def forward(
        self, place: OperatorShare, inputs: tuple[Values, ...], weights: Weights
    ) -> Task[tuple[Values, SavedTensors]]:
        """Loss of every token, 0 at negative labels, and the saved logarithms of the denominators.

        See `Numerics`.
        """
        labels = with_last_dim(inputs[-1][0])
        if is_fused_loss(place, inputs[0][0]):
            value, normal = fused_cross_entropy(inputs[0][0], labels)
            return (value,), SavedTensors(inputs=inputs, own=(normal,))
        logits = scaled_logits(at_least_float32(inputs[0][0]), place.settings)
        top = largest_logits(logits)
        top = yield from all_reduce(place, "vocab", top, purpose="max", reduction=Reduction.MAX)
        rows, inside = _target(place, labels)
        label_logits = torch.where(inside, _label_logits(logits, rows), 0)
        sums = torch.cat([(logits - top).exp_().sum(-1, keepdim=True), label_logits], dim=-1)
        sums = yield from all_reduce(place, "vocab", sums, purpose="sum")
        normal = top + sums[..., :1].log()
        value = torch.where(labels >= 0, normal - sums[..., 1:], 0)
        saved = SavedTensors(inputs=inputs, own=(normal,))
        return (value,), saved

    def input_grad(
        self, place: OperatorShare, saved: SavedTensors, grads: Gradients, weights: Weights
    ) -> Task[tuple[Gradients | None, ...]]:
        """Gradient of the logits: (softmax - one-hot) x the loss's gradient; 0 at negative labels.

        See `Numerics`. Every device of the vocabulary group has the gradient of the full value.
        """
        yield from ()
        labels = with_last_dim(saved.inputs[-1][0])
        scale = torch.where(labels >= 0, require_gradient(grads[0]), 0)
        if is_fused_loss(place, saved.inputs[0][0]):
            return (
                fused_cross_entropy_grad(saved.inputs[0][0], labels, saved.own[0], scale),
            ), None
        logits = scaled_logits(at_least_float32(saved.inputs[0][0]), place.settings)
        dx = (logits - saved.own[0]).exp_().mul_(scale)
        rows, inside = _target(place, labels)
        if logits.shape[-1]:
            dx.scatter_add_(-1, rows, torch.where(inside, -scale, 0))
        return (scaled_logits_grad(dx, logits, place.settings).to(saved.inputs[0][0].dtype),), None


def _target(place: OperatorShare, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(column in the local logits, True if the label is in it); column 0 for labels elsewhere."""
    low, high = place.reads[0]
    inside = (labels >= low) & (labels < high)
    return torch.where(inside, labels - low, 0), inside


def _label_logits(logits: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Logits at `columns`, one a token; zeros on a device without vocabulary."""
    return logits.gather(-1, columns) if logits.shape[-1] else logits.new_zeros(columns.shape)


def is_fused_loss(place: OperatorShare, logits: torch.Tensor) -> bool:
    """True if fused kernels compute the loss: logits uncut, without a factor and without a cap."""
    plain = place.settings.logits_factor == 1.0 and not place.settings.logits_cap
    return bool(logits.numel() and plain and not group_members(place, "vocab"))


def fused_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(-log softmax(logits)[label] or 0 if negative, log denominator), (samples, positions, 1).

    Both are at least float32.

    Args:
        labels: (samples, positions, 1), negative where no token is predicted; the loss is 0 there.
    """
    rows = labels.clamp(min=0)
    log_probability = torch.log_softmax(
        logits, -1, dtype=at_least_float32(logits[:0]).dtype
    ).gather(-1, rows)
    log_denominator = logits.gather(-1, rows).to(log_probability.dtype) - log_probability
    return torch.where(labels >= 0, -log_probability, 0), log_denominator


def fused_cross_entropy_grad(
    logits: torch.Tensor, labels: torch.Tensor, log_denominator: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Gradient of the logits: (softmax - one-hot) x scale, in the logits' format.

    At the label, the difference is taken before rounding.

    Args:
        log_denominator: second result of `fused_cross_entropy`.
        scale: (samples, positions, 1), 0 where no token is predicted.
    """
    rows = labels.clamp(min=0)
    label_grad = (
        logits.gather(-1, rows).to(log_denominator.dtype) - log_denominator
    ).expm1() * scale
    grads = torch.softmax(logits, -1).mul_(scale)
    return grads.scatter_(-1, rows, label_grad.to(grads.dtype))
