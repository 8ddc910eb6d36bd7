"""Bytes of logits and of their copies at the peak of the loss: the one place for columns of degrees
and for devices of a plan.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.runtime.runtime import ElementKernels, LinearLoss, Runtime

BESIDE_TEACHER: Final = 2 * (2 + 4 + 4) + 3 * 4
"""Bytes an element where the loss is the divergence from a teacher: of both models the logits in 16
bits, in fp32 over the temperature, and their log-softmax; of the divergence exp(target), target -
input and the product: 32.

Source: ModelOpt, torch/distill/plugins/megatron.py at 3093b8a57f42 (`LogitsKLLoss.forward`: nothing
is freed before it returns), read; PyTorch, aten/src/ATen/native/Loss.cpp (`kl_div`), from memory.
"""
SPLIT_BESIDE_TEACHER: Final = 4
"""More where the vocabulary is split: exp of the model's own logits, which autograd keeps for the
sum over devices."""


PARTS: Final = 8
"""Parts of a microbatch's tokens in a loss with as many as its framework has by default
(`LinearLoss.PARTS`)."""
_OF_THEIR_OWN: Final = frozenset({LinearLoss.LIGER, LinearLoss.CUT, LinearLoss.CHUNKED})
"""Losses whose bytes a logit are not the runtime's."""
KEPT_EIGHTHS: Final = {True: 4 * 8 + 10, False: 2 * 8 + 2}
"""Eighths of bytes an element of a loss in eight parts under autograd (`LinearLoss.CHUNKED`), eager
and else: what all parts keep, and what the backward of one makes."""


def loss_of(model: Model) -> Operator | None:
    """The loss of a model; None if it has none."""
    return next((o for b in model.blocks for o in b.operators if o.kind is OperatorKind.LOSS), None)


def liger_tokens(tokens: IntArray, *, width: IntArray, hidden: int) -> IntArray:
    """(n,) tokens whose logits Liger's loss has at a time: the next power of two of tokens /
    ceil(width / hidden), at most all.
    """
    each = -(-tokens // -(-width // hidden))
    # The exponent of a whole number n is its length in bits: 2 to that of n - 1 is the next power
    # of two.
    powers = np.left_shift(np.int64(1), np.frexp((each - 1).astype(np.float64))[1].astype(np.int64))
    return np.minimum(powers, tokens)


def logits_bytes(
    loss: Operator,
    runtime: Runtime,
    *,
    tokens: IntArray,
    width: IntArray,
    split: BoolArray,
    hidden: int,
) -> tuple[IntArray, IntArray]:
    """(n,) bytes at the peak of `loss`, and of the allocator's blocks for them.

        bytes an element x ceil(tokens / parts) x width

    Bytes and parts are the runtime's, or those of its loss that takes the head's product with it
    (`Runtime.linear_loss`). Beside a teacher's logits they are those of an eager divergence, in one
    part, whatever the runtime's own loss.

    Args:
        tokens: of the device, (n,).
        width: words of its part of the vocabulary, (n,).
        split: others have other parts, (n,).
        hidden: width of what the head's product reads.
    """
    if loss.is_taught:
        found = tokens * width * (BESIDE_TEACHER + SPLIT_BESIDE_TEACHER * split)
        return found, found
    if runtime.linear_loss in _OF_THEIR_OWN:
        found = _linear_loss_bytes(runtime, tokens=tokens, width=width, hidden=hidden)
        return found, found
    parts = PARTS if runtime.linear_loss is LinearLoss.PARTS else max(runtime.logits_parts, 1)
    elements = -(-tokens // parts) * width
    more = runtime.split_logits_bytes * split
    return elements * (runtime.logits_bytes + more), elements * (
        (runtime.logits_blocks_bytes or runtime.logits_bytes) + more
    )


def _linear_loss_bytes(
    runtime: Runtime, *, tokens: IntArray, width: IntArray, hidden: int
) -> IntArray:
    if runtime.linear_loss is LinearLoss.CUT:
        return np.zeros_like(tokens * width)
    if runtime.linear_loss is LinearLoss.LIGER:
        return 2 * liger_tokens(tokens, width=width, hidden=hidden) * width
    return -(-tokens * width * KEPT_EIGHTHS[runtime.element_kernels is ElementKernels.EAGER] // 8)
