"""AdamW on flat pieces of parameters, and the gradient's global norm."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.device_state.activation_offload import host_like
from shardwright.execute.numerics.base.run_precision import Precision
from shardwright.execute.training.learning_rate import CONSTANT, RateCurve
from shardwright.job.training_job import Optimizer, OptimizerFamily
from shardwright.lazy_dataclass import dataclass

SMALL = 1e-6
"""Added to a norm before dividing by it."""
BLOCK = 1 << 16
"""Elements whose squares are summed at a time."""
VECTOR = 64
"""Elements of a block that every processor's vectors divide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay, and clipping by the global norm.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- p (1 - rate decay) - rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        rate: learning rate at its peak;
        curve: what a step has of it.
        betas: of the moments.
        decay: of every parameter, but for those
        that are `spared` (words of `training.spared`).
        clip: largest norm of the whole gradient; 0 = no limit.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization (2019), algorithm 2.
    """

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    curve: RateCurve = CONSTANT
    spared: tuple[str, ...] = ()

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, 1 for the first."""
        return self.rate * self.curve.share(step)


@dataclass(slots=True)
class Moments:
    """States of a piece: first and second moment; the master copy, if there is one."""

    first: torch.Tensor
    second: torch.Tensor
    master: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """By name."""
        return {
            "first": self.first,
            "second": self.second,
            **({} if self.master is None else {"master": self.master}),
        }

    def part(self, elements: slice) -> Moments:
        """Of some elements: views."""
        return Moments(
            first=self.first[elements],
            second=self.second[elements],
            master=None if self.master is None else self.master[elements],
        )


def moments(piece: torch.Tensor, *, precision: Precision, host: bool = False) -> Moments:
    """States before the first step: where the piece lies, or in host memory."""

    def like(dtype: torch.dtype) -> torch.Tensor:
        return host_like(piece, dtype=dtype) if host else torch.empty_like(piece, dtype=dtype)

    first, second = (like(dtype).zero_() for dtype in precision.states)
    return Moments(
        first=first,
        second=second,
        master=None if precision.master is None else like(precision.master).copy_(piece),
    )


def require_adamw(optimizer: Optimizer) -> None:
    """Refuse a job whose optimizer is not executed.

    Raises:
        StrategyError: run.optimizer for another family than AdamW.
    """
    if optimizer.family is not OptimizerFamily.ADAMW:
        raise StrategyError(
            f"optimizer {optimizer.family} is not executed", hint="use adamw", rule="run.optimizer"
        )


def clip_factor(norm: torch.Tensor, rule: AdamW) -> torch.Tensor:
    """Factor of every gradient: min(1, clip / (norm + SMALL))."""
    if not rule.clip:
        return torch.ones_like(norm)
    return torch.clamp(rule.clip / (norm + SMALL), max=1.0)


def update(
    piece: torch.Tensor,
    gradient: torch.Tensor,
    states: Moments,
    *,
    step: int,
    rule: AdamW,
    factor: torch.Tensor,
) -> None:
    """Update a piece and its states in place.

    Args:
        piece, gradient: flat, of equal shape, on any device; the gradient is used up.
        step: 1 for the first.
        factor: of the gradient.

    The update is made where the states lie, in the finest of the formats, by PyTorch's fused
    kernel: in one pass over all four.
    """
    there = states.first.device
    gradient, factor = gradient.to(there), factor.to(there)
    values = piece.to(there) if states.master is None else states.master
    fine = max((gradient.dtype, values.dtype, states.first.dtype), key=lambda dtype: dtype.itemsize)
    g = gradient.to(fine).mul_(factor.to(fine))
    new, m, v = values.to(fine), states.first.to(fine), states.second.to(fine)
    _adamw((new, g, m, v), step=step, rule=rule)
    for kept, value in ((states.first, m), (states.second, v), (states.master, new), (piece, new)):
        if kept is not None and kept is not value:
            kept.copy_(value)


def _adamw(tensors: tuple[torch.Tensor, ...], *, step: int, rule: AdamW) -> None:
    """PyTorch's fused kernel on values, gradients, first and second moments, which change in place.

    The kernel rounds a tensor's last elements, too few for a vector of the processor, in another
    way than the others. They are made a whole block, so that an element's numbers are the same
    wherever its piece is cut.
    """
    whole = tensors[0].numel() // VECTOR * VECTOR
    rest = [
        functional.pad(t[whole:], (0, VECTOR - t.numel() + whole))
        for t in tensors
        if t.numel() > whole
    ]
    counted = torch.full((), float(step), dtype=torch.float32, device=tensors[0].device)
    first, second = rule.betas
    torch._fused_adamw_(
        *([t[:whole], *rest[i : i + 1]] for i, t in enumerate(tensors)),
        [],
        [counted] * (1 + bool(rest)),
        lr=rule.rate_at(step),
        beta1=first,
        beta2=second,
        weight_decay=rule.decay,
        eps=rule.eps,
        amsgrad=False,
        maximize=False,
    )
    for t, padded in zip(tensors, rest, strict=False):
        t[whole:] = padded[: t.numel() - whole]


def square_sum(flat: torch.Tensor) -> torch.Tensor:
    """The sum of the squares of a flat tensor, in float64: on an accelerator in one pass; on a
    processor of a few elements at a time, which stay in its cache.
    """
    if flat.device.type != "cpu":
        return torch.linalg.vector_norm(flat, dtype=torch.float64).square()
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    for some in flat.split(BLOCK):
        fine = some.double()
        total += fine @ fine
    return total
