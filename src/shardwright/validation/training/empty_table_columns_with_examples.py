"""Columns of the empty table of training runs, with two complete rows."""

from __future__ import annotations

from typing import Final

from shardwright.validation.tables.table_template import (
    CONFIG_COLUMN,
    GPU_MEANING,
    MODEL_MEANING,
    SOURCE_COLUMNS,
    TemplateColumn,
)

COLUMNS: Final[tuple[TemplateColumn, ...]] = (
    *SOURCE_COLUMNS,
    ("model_name", MODEL_MEANING, ("llama-3.1-8b", "mixtral-8x7b")),
    CONFIG_COLUMN,
    (
        "gpu",
        GPU_MEANING,
        ("NVIDIA H100 80GB HBM3", "A100-SXM4-80GB"),
    ),
    ("gpu_count", "devices in all", ("16", "64")),
    (
        "cluster",
        (
            "where devices differ: a cluster expression, or a cluster file's path from the table's"
            " folder"
        ),
        ("", ""),
    ),
    (
        "runtime",
        (
            "of `shardwright catalog runtimes`, with options behind it; empty = the usual one of"
            " the device"
        ),
        ("megatron-core", "nemo"),
    ),
    (
        "options",
        "more options of the runtime, as the launch script set them",
        ("tp_overlap=dgrad", ""),
    ),
    (
        "launch",
        "all arguments of a Megatron launch: they fill what is empty, and set options",
        ("", ""),
    ),
    ("seq_len", "tokens of a sequence", ("8192", "4096")),
    ("global_batch", "sequences a step; or global_batch_tokens", ("128", "512")),
    ("micro_batch", "sequences of a microbatch", ("1", "1")),
    ("precision", "bf16, fp16, fp8 or fp4", ("bf16", "bf16")),
    ("tp", "tensor parallel degree", ("2", "2")),
    ("sp", "sequence parallelism, 1 = on", ("1", "1")),
    ("cp", "context parallel degree; empty = 1", ("", "")),
    ("pp", "pipeline parallel degree", ("1", "4")),
    ("vpp", "chunks of layers a pipeline rank; empty = 1", ("", "2")),
    ("ep", "expert parallel degree; empty = 1", ("", "8")),
    ("etp", "tensor parallel degree of an expert; empty = the framework's default", ("", "1")),
    (
        "zero_stage_or_fsdp",
        "ZeRO-1, ZeRO-3, FSDP, distributed optimizer; empty = none",
        ("ZeRO-1", "ZeRO-1"),
    ),
    ("recompute", "none, selective, full; empty = the runtime's default", ("none", "selective")),
    (
        "measured_iter_time_s",
        "seconds a step; or tokens_per_s_per_gpu, or tokens_per_s or samples_per_s of all devices",
        ("7.9", ""),
    ),
    ("tokens_per_s_per_gpu", "tokens a second and device; or measured_iter_time_s", ("", "1900")),
    ("peak_mem_gb", "GiB, with memory_kind", ("", "61.5")),
    (
        "memory_kind",
        "allocated-first-stage, allocated-last-stage, allocated-worst or reserved-worst",
        ("", "allocated-worst"),
    ),
)
