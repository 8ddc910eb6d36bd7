"""Table of Accelerate's YAML settings.

Source of names and defaults: Accelerate 1.15.0, commands/config/config_args.py (`ClusterConfig`),
commands/launch.py and utils/launch.py, whose arguments the nested sections are, and
parallelism_config.py (`ParallelismConfig`).
"""

from __future__ import annotations

from typing import Final

from shardwright.frameworks.deepspeed.settings import SETTINGS as DEEPSPEED
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
    WHOLE,
    ValueForm,
    choice,
)
from shardwright.frameworks.settings.setting_verdicts import Verdict

_ALWAYS, _NEVER = WhenWritten.ALWAYS, WhenWritten.NEVER
_STARTS, _SHARDS, _UNIT, _SAVES = (
    "how it starts",
    "how it shards",
    "a layer is a unit",
    "checkpoints",
)


def _written_only_setting(
    name: str, reason: str, field: str, form: ValueForm = TEXT
) -> KnownSetting:
    """Setting that the exporter writes from the plan and the reader ignores, for `reason`."""
    return KnownSetting(name, reason, field, form, verdict=Verdict.IGNORED)


SETTINGS: Final[SettingTable] = setting_table(
    _written_only_setting("compute_environment", _STARTS, "environment"),
    KnownSetting("distributed_type", "FSDP, DeepSpeed or replicas", "kind", TEXT, ""),
    KnownSetting(
        "mixed_precision",
        "number format",
        "precision",
        choice({"bf16": "bf16", "no": "fp32", "fp16": "fp16", "fp8": "fp8"}, otherwise="bf16"),
        "bf16",
        _ALWAYS,
    ),
    _written_only_setting("num_machines", _STARTS, "nodes", WHOLE),
    KnownSetting("num_processes", "devices", "devices"),
    _written_only_setting("machine_rank", _STARTS, "machine_rank", WHOLE),
    _written_only_setting("rdzv_backend", _STARTS, "rendezvous"),
    _written_only_setting("deepspeed_config.deepspeed_config_file", _STARTS, "deepspeed_file"),
    _written_only_setting("deepspeed_config.deepspeed_multinode_launcher", _STARTS, "launcher"),
    _written_only_setting("deepspeed_config.zero3_init_flag", _STARTS, "is_made_sharded", SWITCH),
    *of_section(
        "fsdp_config.fsdp_",
        _written_only_setting("version", _SHARDS, "fsdp_version", WHOLE),
        KnownSetting("reshard_after_forward", "stage of ZeRO", "reshards", SWITCH),
        KnownSetting("sharding_strategy", "stage of ZeRO", "strategy", TEXT, when=_NEVER),
        _written_only_setting("auto_wrap_policy", _UNIT, "wrap_policy"),
        KnownSetting("offload_params", "states in host memory", "is_offloaded", SWITCH),
        KnownSetting("activation_checkpointing", "recompute", "is_recomputed", SWITCH),
        _written_only_setting("state_dict_type", _SAVES, "state_dict_type"),
        _written_only_setting("cpu_ram_efficient_loading", _SAVES, "loads_on_one_rank", SWITCH),
    ),
    *of_section(
        "parallelism_config.parallelism_config_",
        KnownSetting(
            "dp_replicate_size", "replicas of shards", "replicate", absent=1, when=_ALWAYS
        ),
        KnownSetting("dp_shard_size", "members of a sharding group", "shards"),
        degree("tp_size", "tp"),
        degree("cp_size", "cp"),
        _written_only_setting("cp_backend", _STARTS, "cp_backend"),
        KnownSetting(
            "cp_comm_strategy",
            "ring or gather of cp",
            "gather",
            choice({"allgather": True, "alltoall": False}, otherwise=False),
            True,
            _ALWAYS,
        ),
        KnownSetting("sp_size", "cp, by trading heads", "ulysses"),
        _written_only_setting("sp_backend", _STARTS, "sp_backend"),
        _written_only_setting("sp_seq_length", _STARTS, "seq_len", WHOLE),
        _written_only_setting("sp_seq_length_is_variable", _STARTS, "length_varies", SWITCH),
    ),
    KnownSetting(
        "dynamo_config.dynamo_backend",
        "sets kernels",
        "is_compiled",
        ValueForm(
            read=lambda _, text: text.upper() not in ("NO", "EAGER"),
            write=lambda value: "INDUCTOR" if value else "NO",
        ),
        False,
    ),
    _written_only_setting(
        "dynamo_config.dynamo_use_regional_compilation", _STARTS, "compiles_each_layer", SWITCH
    ),
    KnownSetting(
        "gradient_accumulation_steps",
        "microbatches of a step",
        "microbatches",
        absent=1,
        when=_NEVER,
    ),
    KnownSetting("deepspeed_config.zero_stage", "stage of ZeRO"),
    KnownSetting("deepspeed_config.gradient_accumulation_steps", "microbatches of a step"),
    KnownSetting("deepspeed_config.offload_optimizer_device", "optimizer states in host memory"),
    KnownSetting(
        "per_device_train_batch_size",
        "samples of a microbatch",
        "microbatch",
        absent=1,
        when=_NEVER,
    ),
    KnownSetting("max_seq_length", "tokens of a sample", "length", absent=0, when=_NEVER),
    KnownSetting("gradient_checkpointing", "recompute=full", "by_program", SWITCH, False, _NEVER),
    version="1.15.0",
    ignored={
        _STARTS: (
            "debug downcast-bf16 main-training-function same-network use-cpu tpu-* main-process-*"
            " enable-cpu-affinity gpu-ids dynamo-config.* deepspeed-config.*"
            " parallelism-config.parallelism-config-*"
        ),
        _SHARDS: "fsdp-config.fsdp-use-orig-params fsdp-config.fsdp-sync-module-states",
        _UNIT: "fsdp-config.fsdp-transformer-layer-cls-to-wrap",
    },
    unmodelled={
        "when parameters are gathered ahead": (
            "fsdp-config.fsdp-backward-prefetch fsdp-config.fsdp-backward-prefetch-policy"
            " fsdp-config.fsdp-forward-prefetch"
        )
    },
)
IGNORED: Final = {**DEEPSPEED.ignored, **SETTINGS.ignored}
"""Settings that change nothing in a launch, whose DeepSpeed file may be part of it."""
