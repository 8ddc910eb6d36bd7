"""Bytes of logits and of their copies at the peak of the loss: the one place for columns of degrees and for devices of a plan."""

from __future__ import annotations

from typing import Final

from shardwright.arrays import BoolArray, IntArray
from shardwright.model.ir.graph import Model
from shardwright.model.ir.operator import Operator, OperatorKind
from shardwright.runtime.runtime import Runtime

BESIDE_TEACHER: Final = 2 * (2 + 4 + 4) + 3 * 4
"""Bytes an element where the loss is the divergence from a teacher: of both models the logits in 16 bits, in fp32 over the temperature, and
their log-softmax; of the divergence exp(target), target - input and the product: 32.

Source: ModelOpt, torch/distill/plugins/megatron.py at 3093b8a57f42 (`LogitsKLLoss.forward`: nothing is freed before it returns), read;
PyTorch, aten/src/ATen/native/Loss.cpp (`kl_div`), from memory."""
SPLIT_BESIDE_TEACHER: Final = 4
"""More where the vocabulary is split: exp of the model's own logits, which autograd keeps for the sum over devices."""


def loss_of(model: Model) -> Operator | None:
    """The loss of a model; None if it has none."""
    return next((o for b in model.blocks for o in b.operators if o.kind is OperatorKind.LOSS), None)


def logits_bytes(loss: Operator, runtime: Runtime, *, tokens: IntArray, width: IntArray, split: BoolArray) -> tuple[IntArray, IntArray]:
    """(n,) bytes at the peak of `loss`, and of the allocator's blocks for them.

        bytes an element x ceil(tokens / parts) x width

    Bytes and parts are the runtime's; beside a teacher's logits those of an eager divergence, in one part, whatever the runtime's own loss.

    Args:
        tokens: of the device, (n,). width: words of its part of the vocabulary, (n,). split: others have other parts, (n,).
    """
    if loss.is_taught:
        found = tokens * width * (BESIDE_TEACHER + SPLIT_BESIDE_TEACHER * split)
        return found, found
    elements = -(-tokens // max(runtime.logits_parts, 1)) * width
    more = runtime.split_logits_bytes * split
    return elements * (runtime.logits_bytes + more), elements * ((runtime.logits_blocks_bytes or runtime.logits_bytes) + more)
