"""Table of torchtitan's settings, and its names of schedules and models.

Source of names and defaults: torchtitan 0.3.0, config/configs.py, distributed/parallel_dims.py and
distributed/pipeline_parallel.py; of 0.1 and 0.2 config/job_config.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shardwright.frameworks.launch.fused_losses import OF_LOSS
from shardwright.frameworks.launch.training_launch_and_reader_types import ORDER
from shardwright.frameworks.settings.refuse_unpriced_settings import OF_OPTIMIZER, OPTIMIZER
from shardwright.frameworks.settings.setting_table import (
    KnownSetting,
    SettingTable,
    WhenWritten,
    degree,
    of_section,
    setting_table,
)
from shardwright.frameworks.settings.setting_values_from_and_to_text import (
    SWITCH,
    TEXT,
    ValueForm,
    choice,
    whole_number,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.strategy.grid.parallelism_grid import Recompute

SCHEDULES: Final = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
"""Schedule -> torchtitan's name; any other order is a table. A name also gives the placement of
stages."""
FLAVORS: Final[Mapping[str, tuple[str, str]]] = {
    "llama-3.2-1b": ("llama3", "1B"),
    "llama-3.2-3b": ("llama3", "3B"),
    "llama-3.1-8b": ("llama3", "8B"),
    "llama-3.1-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-0.6b": ("qwen3", "0.6B"),
    "qwen3-1.7b": ("qwen3", "1.7B"),
    "qwen3-4b": ("qwen3", "4B"),
    "qwen3-8b": ("qwen3", "8B"),
    "qwen3-14b": ("qwen3", "14B"),
    "qwen3-32b": ("qwen3", "32B"),
    "qwen3-30b-a3b": ("qwen3", "30B-A3B"),
    "qwen3-235b-a22b": ("qwen3", "235B-A22B"),
    "deepseek-v2-lite": ("deepseek_v3", "16B"),
    "deepseek-v3-no-mtp": ("deepseek_v3", "671B"),
}
"""Models of our catalog that torchtitan's registries have: (module, flavor)."""
_ALWAYS, _NEVER = WhenWritten.ALWAYS, WhenWritten.NEVER
_NUMBER: Final = ValueForm(
    read=lambda name, text: None if text.startswith("-") else whole_number(name, text), write=int
)
"""Form of a whole number; a negative one is None: the framework computes the value."""
_MODULES: Final = ValueForm(read=TEXT.read, write=list)


def _recompute(name: str, value: str) -> Recompute:
    """Recompute mode that an activation checkpointing text names: full, selective, else none."""
    kinds = (Recompute.FULL, Recompute.SELECTIVE)
    return next((kind for kind in kinds if kind.value in value.lower()), Recompute.NONE)


SETTINGS: Final[SettingTable] = setting_table(
    *of_section(
        "parallelism.",
        KnownSetting(
            "data_parallel_replicate_degree",
            "replicas of shards",
            "replicate",
            absent=1,
            when=_ALWAYS,
        ),
        KnownSetting(
            "data_parallel_shard_degree", "members of a sharding group", "shards", _NUMBER
        ),
        KnownSetting(
            "fsdp_reshard_after_forward",
            "zero 2 or 3",
            "sharded_stage",
            choice({"always": 3, "never": 2}),
        ),
        degree("tensor_parallel_degree", "tp"),
        KnownSetting("enable_sequence_parallel", "sp", "sp", SWITCH, True, _ALWAYS),
        degree("context_parallel_degree", "cp"),
        KnownSetting(
            "context_parallel_rotate_method",
            "ring or gather of cp",
            "gather",
            choice({"alltoall": False, "allgather": True}, otherwise=True),
            True,
            _NEVER,
        ),
        degree("expert_parallel_degree", "ep"),
        KnownSetting("pipeline_parallel_degree", "pp", "pp", absent=1),
        KnownSetting("pipeline_parallel_schedule", "schedule", "order_name", TEXT, "1F1B", _ALWAYS),
        KnownSetting(
            "pipeline_parallel_microbatch_size", "samples of a microbatch", "pipeline_samples"
        ),
        KnownSetting("module_fqns_per_model_part", "layers of each chunk", "modules", _MODULES),
        KnownSetting("pipeline_parallel_schedule_csv", "order of the pipeline"),
        KnownSetting(
            "pipeline_parallel_layers_per_stage", "vpp", "stage_layers", absent=0, when=_NEVER
        ),
        *(
            KnownSetting(
                f"pipeline_parallel_{end}_stage_less_layers",
                f"layers of the {end} stage",
                f"{end}_less",
                absent=1,
                when=_NEVER,
            )
            for end in ("first", "last")
        ),
    ),
    KnownSetting("training.seq_len", "tokens of a sample", "seq_len", absent=0),
    KnownSetting("training.global_batch_size", "samples of a step", "global_batch", _NUMBER),
    KnownSetting(
        "training.local_batch_size", "samples of a replica", "local_batch", absent=1, when=_ALWAYS
    ),
    KnownSetting(
        "training.num_tokens_per_microbatch_per_dp_rank", "tokens of a microbatch or of a step"
    ),
    KnownSetting("training.num_tokens_per_train_step", "tokens of a microbatch or of a step"),
    KnownSetting(
        "activation_checkpoint.mode",
        "recompute",
        "recompute",
        ValueForm(read=_recompute, write=str),
        Recompute.SELECTIVE,
        _NEVER,
    ),
    KnownSetting("optimizer.name", OF_OPTIMIZER),
    KnownSetting("config.loss", OF_LOSS),
    KnownSetting("config.num_chunks", OF_LOSS),
    KnownSetting("training.dtype", "number format", "weights", TEXT, "float32", _NEVER),
    KnownSetting(
        "training.mixed_precision_param",
        "",
        "precision",
        choice({"bfloat16": "bf16", "float16": "fp16"}),
        verdict=Verdict.IGNORED,
    ),
    KnownSetting("compile.enable_async_tensor_parallel", "sets tp_overlap"),
    KnownSetting("compile.components", "sets kernels"),
    KnownSetting("model.converters", "products in 8 bits", "converters", TEXT, "", _NEVER),
    KnownSetting(ORDER, "order of the pipeline"),
    version="0.3.0",
    ignored={
        "how fast is learnt": (
            "optimizer.* lr-scheduler.* training.steps training.max-norm default-adamw.*"
        ),
        "what is logged, how it starts": (
            "metrics.* profiling.* profiler.* comm.* debug.* job.* validation.*"
        ),
        "checkpoints": "checkpoint.* checkpointconfig.* fault-tolerance.*",
        "the model's, and data": (
            "model.* config.* tokenizer.* training.dataset* dataloader.* hf-assets-path"
        ),
        "parts that are set as a whole": (
            "compile parallelism training model-spec activation-checkpoint checkpoint"
            " model-registry"
        ),
        "how it runs": (
            "training.seed training.deterministic training.gc-freq training.disable-cuda-graphs"
            " training.enable-cpu-offload activation-checkpoint.* module config memory-estimation.*"
            " quantize.* module.* loss.*"
        ),
        "which products, and when scales are made": (
            "float8.filter-fqns float8.precompute-float8-dynamic-scale-for-fsdp"
        ),
    },
    refused=MappingProxyType({"optimizer.name": OPTIMIZER}),
)
