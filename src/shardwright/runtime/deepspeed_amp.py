"""Megatron-LM 1.1.5 under DeepSpeed's pipeline as in AMP's repository (arXiv 2210.07297): no fused kernels, fp32 all-reduce."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import deepspeed_2022
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import ElementKernels

_TREE: Final = (
    "https://github.com/DachengLi1/AMP/blob/505f804a2d9198713a301279a66dbc6d819ff931/DeepSpeed/DeepSpeedExamples/"
    "Megatron-LM-v1.1.5-3D_parallelism"
)

RUNTIME: Final = derive(
    deepspeed_2022.RUNTIME,
    name="deepspeed-2022-eager",
    element_kernels=ElementKernels.EAGER,
    facts=(
        *cite(
            f"{_TREE}/examples/ds_pretrain_gpt2_pipe.sh",
            "element_kernels",
            checked=True,
            note="none of the flags for fused softmax, bias-gelu and bias-dropout, which this version has off by default",
        ),
    ),
)
