"""torchtitan 0.2 with asynchronous tensor parallelism (symmetric memory, compiled)."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import torchtitan_0_2
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import TpOverlap

RUNTIME: Final = derive(
    torchtitan_0_2.RUNTIME,
    name="torchtitan-0.2-async-tp",
    tp_overlap=TpOverlap.ASYNC,
    facts=cite(
        "https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487",
        "tp_overlap",
        note="collectives are decomposed into pieces that run beside the GEMM's pieces",
    ),
    aliases=("torchtitan-async-tp",),
)
