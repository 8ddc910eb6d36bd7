"""Bytes of logits and of their copies at the peak of the loss.

The one place for columns of degrees and for devices of a plan.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from shardwright.arrays import BoolArray, IntArray
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.runtime.framework_description import Runtime
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import ElementKernels, LinearLoss

BESIDE_TEACHER: Final = 2 * (2 + 4 + 4) + 3 * 4
"""Bytes an element where the loss is the divergence from a teacher: of both models the logits in 16
bits, in fp32 over the temperature, and their log-softmax; of the divergence exp(target), target -
input and the product: 32.

Source: ModelOpt, torch/distill/plugins/megatron.py at 3093b8a57f42 (`LogitsKLLoss.forward`: nothing
is freed before it returns), read; PyTorch, aten/src/ATen/native/Loss.cpp (`kl_div`), from memory.
"""
SPLIT_BESIDE_TEACHER: Final = 4
"""Bytes an element more where the vocabulary is split: exp of the model's own logits, which
autograd keeps for the sum over devices."""


PARTS: Final = 8
"""Parts of a microbatch's tokens in a loss with as many as its framework has by default
(`LinearLoss.PARTS`)."""
_LOSSES_WITH_OWN_BYTES: Final = frozenset({LinearLoss.LIGER, LinearLoss.CUT, LinearLoss.CHUNKED})
"""Losses whose bytes a logit are not the runtime's."""
KEPT_EIGHTHS: Final = {True: 4 * 8 + 10, False: 2 * 8 + 2}
"""Eighths of bytes an element of a loss in eight parts under autograd (`LinearLoss.CHUNKED`), eager
and else: what all parts keep, and what the backward of one makes."""


def loss_of(model: Model) -> Operator | None:
    """First operator of kind LOSS in a model's blocks; None if it has none."""
    return next((o for b in model.blocks for o in b.operators if o.kind is OperatorKind.LOSS), None)


def liger_tokens(tokens: IntArray, *, local_vocabulary: IntArray, hidden: int) -> IntArray:
    """(n,) tokens a Liger chunk: power of two from tokens / ceil(vocabulary / hidden); at most all.

    The next power of two of tokens / ceil(local_vocabulary / hidden), at most all.
    """
    tokens_a_chunk = -(-tokens // -(-local_vocabulary // hidden))
    # The exponent of a whole number n is its length in bits: 2 to that of n - 1 is the next power
    # of two.
    powers = np.left_shift(
        np.int64(1), np.frexp((tokens_a_chunk - 1).astype(np.float64))[1].astype(np.int64)
    )
    return np.minimum(powers, tokens)


def logits_bytes(
    loss: Operator,
    runtime: Runtime,
    *,
    tokens: IntArray,
    local_vocabulary: IntArray,
    split: BoolArray,
    hidden: int,
) -> tuple[IntArray, IntArray]:
    """Two (n,) peak bytes of logits and loss on a device: of tensors, of the allocator's blocks.

        bytes an element x ceil(tokens / parts) x local_vocabulary

    Bytes and parts are the runtime's, or those of its loss that is fused with the head's product
    (`Runtime.linear_loss`). Beside a teacher's logits they are those of an eager divergence, in one
    part, whatever the runtime's own loss.

    Args:
        tokens: of the device, (n,).
        local_vocabulary: vocabulary entries of its part, (n,).
        split: the vocabulary is split over devices, (n,).
        hidden: width of the input of the head's product.
    """
    if loss.reads_teacher_logits:
        peak = tokens * local_vocabulary * (BESIDE_TEACHER + SPLIT_BESIDE_TEACHER * split)
        return peak, peak
    if runtime.linear_loss in _LOSSES_WITH_OWN_BYTES:
        peak = _fused_head_loss_bytes(
            runtime, tokens=tokens, local_vocabulary=local_vocabulary, hidden=hidden
        )
        return peak, peak
    parts = PARTS if runtime.linear_loss is LinearLoss.PARTS else max(runtime.logits_parts, 1)
    elements = -(-tokens // parts) * local_vocabulary
    split_bytes = runtime.split_logits_bytes * split
    return elements * (runtime.logits_bytes + split_bytes), elements * (
        (runtime.logits_blocks_bytes or runtime.logits_bytes) + split_bytes
    )


def _fused_head_loss_bytes(
    runtime: Runtime, *, tokens: IntArray, local_vocabulary: IntArray, hidden: int
) -> IntArray:
    """(n,) peak bytes of a fused head and loss: 0 for `LinearLoss.CUT`, else Liger or chunked."""
    if runtime.linear_loss is LinearLoss.CUT:
        return np.zeros_like(tokens * local_vocabulary)
    if runtime.linear_loss is LinearLoss.LIGER:
        return (
            2
            * liger_tokens(tokens, local_vocabulary=local_vocabulary, hidden=hidden)
            * local_vocabulary
        )
    return -(
        -tokens
        * local_vocabulary
        * KEPT_EIGHTHS[runtime.element_kernels is ElementKernels.EAGER]
        // 8
    )
