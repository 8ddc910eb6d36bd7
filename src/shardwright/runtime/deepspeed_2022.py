"""Megatron-DeepSpeed of 2022 (AMP's and BigScience's runs): DeepSpeed's 1F1B pipeline over Megatron layers with unfused attention."""

from __future__ import annotations

from typing import Final

from shardwright.runtime import megatron_2021
from shardwright.runtime.facts import cite, derive
from shardwright.runtime.runtime import TpOverlap

_TREE: Final = "https://github.com/deepspeedai/DeepSpeed/blob/v0.6.0/deepspeed"

RUNTIME: Final = derive(
    megatron_2021.RUNTIME,
    name="deepspeed-2022",
    framework="Megatron-DeepSpeed",
    version="0.6",
    released="2022-03",
    zero_stages=(0, 1, 2, 3),
    zero_with_pipeline=1,
    optimizer_offload=True,
    schedules=("1f1b",),
    tp_overlap=TpOverlap.NONE,
    p2p_scatter_gather=False,
    bucket_bytes=1_000_000_000,
    reduce_every_microbatch=False,
    facts=(
        *cite(f"{_TREE}/runtime/pipe/engine.py", "zero_with_pipeline", "overlap_p2p", "p2p_scatter_gather", "reduce_every_microbatch"),
        *cite(f"{_TREE}/runtime/pipe/schedule.py", "schedules"),
        *cite(f"{_TREE}/runtime/zero/constants.py", "bucket_bytes", note="reduce_bucket_size 5e8 elements of 2 bytes"),
        *cite(f"{_TREE}/runtime/zero/config.py", "zero_stages", "optimizer_offload"),
        *cite("https://github.com/bigscience-workshop/Megatron-DeepSpeed/blob/main/megatron/mpu/layers.py", "tp_overlap"),
    ),
    aliases=("megatron-deepspeed",),
)
