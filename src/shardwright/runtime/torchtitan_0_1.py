"""torchtitan of late 2024 (its paper's runs): compiled layers, but a loss in eager kernels."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import torchtitan_0_2
from shardwright.runtime.facts import cite, derive

_LOSS: Final = "https://github.com/pytorch/pytorch/blob/v2.5.0/torch/distributed/tensor/parallel/loss.py"

RUNTIME: Final = derive(
    torchtitan_0_2.RUNTIME,
    name="torchtitan-0.1",
    version="0.1",
    released="2024-10",
    fused_loss=False,
    logits_bytes=12,
    logits_blocks_bytes=14,
    split_logits_bytes=4,
    facts=(
        *cite(
            "https://github.com/pytorch/torchtitan/blob/v0.1.0/torchtitan/components/loss.py",
            "fused_loss",
            "logits_bytes",
            "logits_blocks_bytes",
            note="cross_entropy(pred.float()), pred deleted before backward: log-softmax, gradient of the loss and of the log-softmax in "
            "fp32; the bf16 logits' block serves none of them",
        ),
        *cite(
            _LOSS,
            "split_logits_bytes",
            checked=True,
            note="loss_parallel: (grad_input + exp(x)) * grad_output makes one fp32 copy more",
        ),
    ),
    aliases=("torchtitan-2024",),
)
