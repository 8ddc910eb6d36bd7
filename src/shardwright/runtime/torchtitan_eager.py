"""torchtitan 0.2 without torch.compile."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import torchtitan_0_2
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import ElementKernels

RUNTIME: Final = derive(
    torchtitan_0_2.RUNTIME,
    name="torchtitan-0.2-eager",
    element_kernels=ElementKernels.EAGER,
    facts=cite("https://github.com/pytorch/torchtitan/blob/v0.2.0/torchtitan/config/job_config.py", "element_kernels", note="compile off"),
    aliases=("torchtitan-eager",),
)
