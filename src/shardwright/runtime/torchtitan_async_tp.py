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
        "https://github.com/pytorch/pytorch/blob/v2.6.0/torch/distributed/_symmetric_memory/__init__.py",
        "tp_overlap",
        note="collectives are decomposed into pieces that run beside the GEMM's pieces; fused_matmul_reduce_scatter stacks the members' "
        "partial products and sums them in one reduction kernel; a reduce_scatter is joined with the one product that makes its input "
        "(torch/_inductor/fx_passes/micro_pipeline_tp.py: _find_producer_matmul), so not behind a sum over several projections",
    ),
    aliases=("torchtitan-async-tp",),
)
