"""Table of DeepSpeed's settings.

Source of names and defaults: DeepSpeed 0.19.8, runtime/config.py, runtime/zero/config.py,
runtime/zero/offload_config.py, runtime/activation_checkpointing/config.py,
runtime/tensor_parallel/config.py, module_inject/auto_ep_config.py and auto_ep_folding.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.refuse_unpriced_settings import OF_OPTIMIZER, OPTIMIZER
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    of_section,
    setting_table,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import (
    PERCENT,
    SWITCH,
    TEXT,
    choice,
    switch,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict

AXES: Final = ("tp", "cp", "ep", "dp", "pp")
DATA_FIRST: Final = ("tp", "cp", "dp", "ep", "pp")
"""Ranks from the innermost axis: members that share a layer's experts side by side, or the copies
of an expert."""
_BUCKETS: Final = "sizes of buckets and of what is kept, as DeepSpeed has them by default"
_START: Final = "how it is started"
_ZERO: Final = "zero_optimization."
_OFFLOAD: Final = "optimizer states in host memory"
_ALWAYS, _NEVER = WhenWritten.ALWAYS, WhenWritten.NEVER


def _bucket_size_setting(name: str) -> KnownSetting:
    """Setting of a ZeRO bucket size: written from the runtime and not used when read."""
    return KnownSetting(_ZERO + name, _BUCKETS, name, verdict=Verdict.UNKNOWN)


SETTINGS: Final[SettingTable] = setting_table(
    KnownSetting("train_batch_size", "samples of a step", "global_batch"),
    KnownSetting("train_micro_batch_size_per_gpu", "samples of a microbatch", "microbatch"),
    KnownSetting("gradient_accumulation_steps", "microbatches of a step", "microbatches"),
    KnownSetting("fp16.enabled", "number format", "fp16", SWITCH, False),
    KnownSetting("bf16.enabled", "number format", "bf16", SWITCH, False),
    KnownSetting(
        "data_types.grad_accum_dtype", "", "gradient_dtype", TEXT, verdict=Verdict.IGNORED
    ),
    *of_section(
        "zero_optimization.",
        KnownSetting("stage", "stage of ZeRO", "zero", absent=0, when=_ALWAYS),
        KnownSetting(
            "offload_optimizer.device",
            _OFFLOAD,
            "is_offloaded",
            choice({"none": False, "cpu": True}, otherwise=False),
            False,
        ),
        KnownSetting(
            "offload_optimizer.ratio",
            "share of the optimizer's states in host memory",
            "offload_ratio",
            PERCENT,
            100,
        ),
        KnownSetting("cpu_offload", _OFFLOAD, "is_offloaded_whole", SWITCH, False, _NEVER),
    ),
    _bucket_size_setting("reduce_bucket_size"),
    _bucket_size_setting("allgather_bucket_size"),
    _bucket_size_setting("stage3_prefetch_bucket_size"),
    _bucket_size_setting("stage3_max_reuse_distance"),
    KnownSetting("tensor_parallel.autotp_size", "tp", "tp", absent=1),
    KnownSetting("sequence_parallel_size", "cp, by trading heads", "cp", absent=1),
    KnownSetting("data_parallel_size", "follows from others", "replicas", verdict=Verdict.IGNORED),
    KnownSetting("expert_parallel.enabled", _START, "has_ep", SWITCH, verdict=Verdict.IGNORED),
    KnownSetting("expert_parallel.autoep_size", "ep", "ep", absent=1),
    KnownSetting("expert_parallel.preset_model", _START, "preset", TEXT, verdict=Verdict.IGNORED),
    KnownSetting(
        "use_data_before_expert_parallelism",
        "order of ranks",
        "order",
        switch(AXES, DATA_FIRST),
        AXES,
    ),
    *(
        KnownSetting(f"activation_checkpointing.{name}", "recompute=full", name, SWITCH)
        for name in ("partition_activations", "cpu_checkpointing")
    ),
    KnownSetting("optimizer.type", OF_OPTIMIZER),
    version="0.19.8",
    ignored={
        "how fast is learnt": (
            "optimizer.* scheduler.* gradient-clipping prescale-gradients fp16.* bf16.*"
        ),
        "what is logged": (
            "steps-per-print wall-clock-breakdown flops-profiler.* comms-logger.* tensorboard.*"
            " wandb.* csv-monitor.* dump-state memory-breakdown"
        ),
        "checkpoints": (
            "checkpoint.* zero-optimization.stage3-gather-16bit-weights-on-model-save"
            " zero-optimization.load-from-fp32-weights zero-optimization.ignore-unused-parameters"
            " zero-optimization.gather-16bit-weights-on-model-save"
        ),
        _START: "deepspeed deepspeed-config",
        "follows from others": "zero-allow-untested-optimizer zero-force-ds-cpu-optimizer",
        "data and formats": (
            "data-efficiency.* curriculum-learning.* data-types.* communication-data-type"
        ),
    },
    unmodelled={
        _BUCKETS: (
            "zero-optimization.reduce-scatter zero-optimization.stage3-param-persistence-threshold"
            " zero-optimization.stage3-max-live-parameters zero-optimization.sub-group-size"
            " zero-optimization.allgather-partitions zero-optimization.round-robin-gradients"
            " zero-optimization.contiguous-gradients zero-optimization.zero-hpz-partition-size"
            " zero-optimization.offload-optimizer.pin-memory"
            " zero-optimization.offload-param.pin-memory"
        ),
        "8-bit collectives (ZeRO++)": (
            "zero-optimization.zero-quantized-weights zero-optimization.zero-quantized-gradients"
        ),
    },
    # Of the optimizers that DeepSpeed has by name, those of one bit keep the error of what they
    # send, and Lion and SGD keep one state or none.
    refused=MappingProxyType({"optimizer.type": OPTIMIZER}),
)
