"""AdamW on flat pieces of parameters, and the gradient's global norm."""

from __future__ import annotations

import torch
from torch.nn import functional

from shardwright.errors import StrategyError
from shardwright.execute.device_state.offload_and_restore_part_of_tensor import host_like
from shardwright.execute.numerics.base.run_precision import RunPrecision
from shardwright.execute.training.learning_rate import CONSTANT, RateCurve
from shardwright.job.training_job import Optimizer, OptimizerFamily
from shardwright.lazily_compiled_dataclass import dataclass

SMALL = 1e-6
"""Added to a norm before dividing by it."""
BLOCK = 1 << 16
"""Number of elements whose squares are summed at a time."""
VECTOR = 64
"""Number of elements that every processor's vector width divides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """AdamW settings: Adam with decoupled weight decay, and clipping by the global norm.

    m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;
    p <- p (1 - rate decay) - rate m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)

    Args:
        rate: peak learning rate.
        curve: share of the peak at each step.
        betas: decay rates of both moments.
        decay: weight decay of every parameter that is not exempt.
        no_decay: classes of exempt parameters (`training.weight_decay_exemptions`).
        clip: maximum global gradient norm; 0 = no limit.

    Source: Loshchilov and Hutter, Decoupled weight decay regularization (2019), algorithm 2.
    """

    rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    decay: float = 0.1
    clip: float = 1.0
    curve: RateCurve = CONSTANT
    no_decay: tuple[str, ...] = ()

    def rate_at(self, step: int) -> float:
        """Learning rate of step `step`, counted from 1: the peak rate times the curve's share."""
        return self.rate * self.curve.share(step)


@dataclass(slots=True)
class Moments:
    """AdamW states of a piece: first and second moments, and the master copy if there is one."""

    first: torch.Tensor
    second: torch.Tensor
    master: torch.Tensor | None = None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """AdamW's state tensors by name: first and second moment, and master copy if kept."""
        return {
            "first": self.first,
            "second": self.second,
            **({} if self.master is None else {"master": self.master}),
        }

    def part(self, elements: slice) -> Moments:
        """Views of the moments and master copy of some `elements` of a flat piece."""
        return Moments(
            first=self.first[elements],
            second=self.second[elements],
            master=None if self.master is None else self.master[elements],
        )


def moments(piece: torch.Tensor, *, precision: RunPrecision, host: bool = False) -> Moments:
    """Create zero AdamW moments of a flat piece, with any master copy; in CPU memory if `host`."""

    def empty_like(dtype: torch.dtype) -> torch.Tensor:
        """Empty tensor of the piece's shape in `dtype`, in host or device memory."""
        return host_like(piece, dtype=dtype) if host else torch.empty_like(piece, dtype=dtype)

    first, second = (empty_like(dtype).zero_() for dtype in precision.states)
    return Moments(
        first=first,
        second=second,
        master=None if precision.master is None else empty_like(precision.master).copy_(piece),
    )


def require_adamw(optimizer: Optimizer) -> None:
    """Raise `StrategyError` unless the job's optimizer is AdamW.

    Raises:
        StrategyError: run.optimizer for another family than AdamW.
    """
    if optimizer.family is not OptimizerFamily.ADAMW:
        raise StrategyError(
            f"optimizer {optimizer.family} is not executed", hint="use adamw", rule="run.optimizer"
        )


def clip_factor(norm: torch.Tensor, rule: AdamW) -> torch.Tensor:
    """Factor min(1, clip / (norm + SMALL)) of gradients; 1 without clipping."""
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
    """Apply an AdamW step to a flat piece and its states in place, which overwrites the gradient.

    Args:
        piece, gradient: flat, of equal shape, on any device; the gradient is overwritten.
        step: 1 for the first.
        factor: clipping factor of the gradient.

    The update runs on the device of the states in the widest of the formats, by PyTorch's fused
    kernel, in one pass over all four tensors.
    """
    states_device = states.first.device
    gradient, factor = gradient.to(states_device), factor.to(states_device)
    values = piece.to(states_device) if states.master is None else states.master
    widest = max(
        (gradient.dtype, values.dtype, states.first.dtype), key=lambda dtype: dtype.itemsize
    )
    g = gradient.to(widest).mul_(factor.to(widest))
    values_wide, m, v = values.to(widest), states.first.to(widest), states.second.to(widest)
    _adamw((values_wide, g, m, v), step=step, rule=rule)
    for stored, value in (
        (states.first, m),
        (states.second, v),
        (states.master, values_wide),
        (piece, values_wide),
    ):
        if stored is not None and stored is not value:
            stored.copy_(value)


def _adamw(tensors: tuple[torch.Tensor, ...], *, step: int, rule: AdamW) -> None:
    """Apply PyTorch's fused AdamW to values, gradients, first and second moments, in place.

    The kernel rounds a tensor's last elements, too few for a vector of the processor, differently
    from the others. They are padded to a whole block, so that an element's result does not depend
    on the place where its piece is cut.
    """
    aligned = tensors[0].numel() // VECTOR * VECTOR
    rest = [
        functional.pad(t[aligned:], (0, VECTOR - t.numel() + aligned))
        for t in tensors
        if t.numel() > aligned
    ]
    step_tensor = torch.full((), float(step), dtype=torch.float32, device=tensors[0].device)
    first, second = rule.betas
    torch._fused_adamw_(
        *([t[:aligned], *rest[i : i + 1]] for i, t in enumerate(tensors)),
        [],
        [step_tensor] * (1 + bool(rest)),
        lr=rule.rate_at(step),
        beta1=first,
        beta2=second,
        weight_decay=rule.decay,
        eps=rule.eps,
        amsgrad=False,
        maximize=False,
    )
    for t, padded in zip(tensors, rest, strict=False):
        t[aligned:] = padded[: t.numel() - aligned]


def square_sum(flat: torch.Tensor) -> torch.Tensor:
    """Sum of squares of a flat tensor, in float64.

    An accelerator computes it in one pass; a CPU takes a few elements at a time, which stay in its
    cache.
    """
    if flat.device.type != "cpu":
        return torch.linalg.vector_norm(flat, dtype=torch.float64).square()
    total = torch.zeros((), dtype=torch.float64, device=flat.device)
    for chunk in flat.split(BLOCK):
        chunk_float64 = chunk.double()
        total += chunk_float64 @ chunk_float64
    return total
