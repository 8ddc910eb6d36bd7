"""Table of nanotron's YAML settings.

Source of names and defaults: nanotron's main, src/nanotron/config/config.py at 00708b8,
config/parallelism_config.py at 19f88fb and config/models_config.py at 025f314 (2025-04; the release
0.4 of 2024-03 has no context parallelism).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from shardwright.frameworks.settings.refuse_unpriced_settings import OF_OPTIMIZER, OPTIMIZER
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    degree,
    of_section,
    setting_table,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import SWITCH, choice, switch
from shardwright.strategy.grid.parallelism_grid import Recompute

_ALWAYS: Final = WhenWritten.ALWAYS
SETTINGS: Final[SettingTable] = setting_table(
    *of_section(
        "parallelism.",
        KnownSetting("dp", "dp", "dp"),
        degree("pp", "pp"),
        degree("tp", "tp"),
        KnownSetting(
            "pp_engine",
            "schedule",
            "schedule",
            choice({"1f1b": "1f1b", "afab": "gpipe"}, otherwise="1f1b"),
            "1f1b",
            _ALWAYS,
        ),
        KnownSetting(
            "tp_mode",
            "sp",
            "sp",
            choice({"REDUCE_SCATTER": True, "ALL_REDUCE": False}, otherwise=False),
            False,
            _ALWAYS,
        ),
        KnownSetting("tp_linear_async_communication", "sets tp_overlap", "is_overlapped", SWITCH),
        KnownSetting(
            "recompute_layer",
            "recompute",
            "recompute",
            switch(Recompute.NONE, Recompute.FULL),
            Recompute.NONE,
            _ALWAYS,
        ),
        degree("expert_parallel_size", "ep"),
        degree("context_parallel_size", "cp"),
    ),
    KnownSetting(
        "model.dtype",
        "number format",
        "precision",
        choice({"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}, otherwise="bf16"),
        "bf16",
        _ALWAYS,
    ),
    KnownSetting("tokens.sequence_length", "tokens of a sample", "seq_len", absent=0),
    KnownSetting(
        "tokens.micro_batch_size", "samples of a microbatch", "microbatch", absent=1, when=_ALWAYS
    ),
    KnownSetting(
        "tokens.batch_accumulation_per_replica",
        "microbatches of a step",
        "microbatches",
        absent=1,
        when=_ALWAYS,
    ),
    KnownSetting("optimizer.zero_stage", "stage of ZeRO", "zero", absent=0, when=_ALWAYS),
    KnownSetting("optimizer.optimizer_factory.name", OF_OPTIMIZER),
    version="main of 2025-04",
    ignored={
        "what is kept and logged": (
            "general.* checkpoints.* logging.* lighteval.* profiler.* metrics-logging.*"
        ),
        "data": "data-stages data-stages.* tokenizer.* data.*",
        "how long is trained, and how fast is learnt": "optimizer.* tokens.*",
        "how weights begin": (
            "model.init-method.* model.make-vocab-size-divisible-by model.ddp-bucket-cap-mb"
        ),
        "the model's, which MODEL says": "model.model-config.*",
    },
    refused=MappingProxyType({"optimizer.optimizer-factory.name": OPTIMIZER}),
)
