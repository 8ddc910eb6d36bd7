"""torchtitan without torch.compile, of 0.1 and 0.2 alike."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import torchtitan_0_1, torchtitan_0_2
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import ElementKernels

_LOSS: Final = ("fused_loss", "logits_bytes", "logits_blocks_bytes", "split_logits_bytes")

RUNTIME: Final = derive(
    torchtitan_0_2.RUNTIME,
    name="torchtitan-0.2-eager",
    element_kernels=ElementKernels.EAGER,
    **{name: getattr(torchtitan_0_1.RUNTIME, name) for name in _LOSS},
    facts=(
        *cite("https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan/config/job_config.py", "element_kernels", note="compile off"),
        *(fact for fact in torchtitan_0_1.RUNTIME.facts if fact.field in _LOSS),
    ),
    aliases=("torchtitan-eager",),
)
