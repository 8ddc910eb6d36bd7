"""Reader of Hugging Face Accelerate's YAML and ``accelerate launch`` commands.

Source of names and defaults: Accelerate 1.15.0, commands/config/config_args.py,
utils/dataclasses.py (FullyShardedDataParallelPlugin, DeepSpeedPlugin) and parallelism_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shardwright.errors import DataError
from shardwright.frameworks.accelerate.settings import IGNORED, SETTINGS
from shardwright.frameworks.deepspeed.read import DEEPSPEED
from shardwright.frameworks.launch.build_launch import OF_TRANSFORMERS, launch_of, replicas
from shardwright.frameworks.launch.framework_detection import (
    CONFIGURATIONS,
    FileKind,
    NamedFile,
    Signature,
)
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.pytorch_fsdp.sharding_strategies import Sharding, sharding
from shardwright.frameworks.settings.setting_table import values_of
from shardwright.frameworks.settings.setting_verdicts import Verdict
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

_DEGREES: Final = "parallelism-config.parallelism-config-"
_LAUNCH: Final = "accelerate."
_SWITCHES: Final = {"use-fsdp": "FSDP", "use-deepspeed": "DEEPSPEED", "multi-gpu": "MULTI_GPU"}
"""Flags of ``accelerate launch`` -> ``distributed_type`` of Accelerate's YAML."""
_PROCESSES: Final = frozenset({"num-processes", "num-machines"})
"""Flags with which the command needs no file: one process a device, each with the whole model."""
_TABLE: Final = replace(SETTINGS, ignored=IGNORED)
_SIGNATURE: Final = Signature(
    kinds=frozenset({*CONFIGURATIONS, FileKind.COMMAND}),
    launchers=frozenset({"accelerate"}),
    own=name_set(
        "compute-environment distributed-type fsdp-config.* parallelism-config.* deepspeed-config.*"
    ),
    shared=frozenset({"num-machines", "mixed-precision", "num-processes"}),
    files=(
        NamedFile(setting="accelerate.config-file", holds="how the model is sharded"),
        NamedFile(
            setting="deepspeed-config.deepspeed-config-file",
            holds="the stage of ZeRO",
            instead=frozenset({"zero-optimization.stage"}),
        ),
        NamedFile(setting="accelerate.deepspeed-config-file", holds="the stage of ZeRO"),
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert Accelerate's settings to a launch: FSDP, plain replicas, or DeepSpeed underneath."""
    file_settings = replace(file_settings, arguments=with_launch_flags(file_settings.arguments))
    arguments = file_settings.arguments
    if arguments.get("distributed-type", "").upper() == "DEEPSPEED":
        return _read_under_deepspeed(file_settings, model=model, devices=devices, runtime=runtime)
    values = values_of(SETTINGS, arguments)
    tp, cp = values["tp"], values["cp"]
    dp = replicas(devices, tp=tp, cp=cp)
    sharded = values["kind"].upper() == "FSDP"
    split = Sharding(zero=0)
    if sharded:
        split = sharding(
            _sharding_strategy(arguments),
            replicas=dp * cp,
            replicate=values["replicate"],
            node_devices=file_settings.node_devices,
            shards=(values["shards"] or 0) * cp,
        )
    checkpointed = values["is_recomputed"] or values["by_program"]
    grid = Grid(
        tp=tp,
        cp=cp,
        gather=cp > 1 and values["gather"],
        dp=dp,
        microbatch=values["microbatch"],
        zero=split.zero,
        shard=split.shard,
        recompute=Recompute.FULL if checkpointed else Recompute.NONE,
        offload=100 if sharded and values["is_offloaded"] else 0,
    )
    return launch_of(
        file_settings,
        grid,
        framework="accelerate",
        runtime=runtime,
        model=model,
        seq_len=values["length"],
        global_batch=values["microbatch"] * values["microbatches"] * dp,
        precision=values["precision"],
        table=_TABLE,
        arguments={"compile.enable": "true"} if values["is_compiled"] else {},
        notes=split.notes,
        possible=OF_TRANSFORMERS,
    )


ACCELERATE: Final = LaunchReader(
    name="accelerate",
    runtime="torchtitan-0.2",
    signature=_SIGNATURE,
    settings=SETTINGS,
    includes=frozenset({"deepspeed"}),
    target="accelerate",
    read=_read,
)


def with_launch_flags(arguments: Arguments) -> Arguments:
    """Replace ``accelerate launch`` flags by Accelerate's YAML settings, which they override.

    Flags override the file's settings.

    Raises:
        DataError: the command reads the configuration of the machine that it runs on.
    """
    flags = {
        name.removeprefix(_LAUNCH): value
        for name, value in arguments.items()
        if name.startswith(_LAUNCH)
    }
    arguments = {name: value for name, value in arguments.items() if not name.startswith(_LAUNCH)}
    for name, value in flags.items():
        if name in _SWITCHES:
            arguments["distributed-type"] = _SWITCHES[name]
        elif name not in ("config-file", "deepspeed-config-file", "launch"):
            arguments[_yaml_name_of_flag(name)] = value
    if (
        flags
        and "config-file" not in flags
        and "distributed-type" not in arguments
        and not flags.keys() & _PROCESSES
    ):
        raise DataError(
            "accelerate launch without --config_file reads default_config.yaml of the machine: how"
            " the model is sharded is not known",
            hint="give that file before MODEL, or add --config_file",
        )
    return arguments


def _yaml_name_of_flag(name: str) -> str:
    """Name in Accelerate's YAML (with its section) of a flag of ``accelerate launch``."""
    if name.startswith("fsdp-"):
        return f"fsdp-config.{name}"
    if name.startswith("parallelism-config-"):
        return f"parallelism-config.{name}"
    if name in (
        "zero-stage",
        "offload-optimizer-device",
        "offload-param-device",
        "gradient-accumulation-steps",
    ):
        return f"deepspeed-config.{name}" if name != "gradient-accumulation-steps" else name
    return "dynamo-config.dynamo-backend" if name == "dynamo-backend" else name


def _sharding_strategy(arguments: Arguments) -> str:
    """Text of fsdp_sharding_strategy, else of fsdp_reshard_after_forward, else ``true``."""
    reshard = arguments.get("fsdp-config.fsdp-reshard-after-forward", "true")
    # FSDP 1's files have the sharding strategy under either name.
    return arguments.get("fsdp-config.fsdp-sharding-strategy", reshard)


def _read_under_deepspeed(
    file_settings: FileSettings, *, model: Model, devices: int, runtime: str
) -> Launch:
    """Convert Accelerate's settings to a DeepSpeed launch, keeping verdicts under their names.

    Settings of DeepSpeed's own configuration take precedence over Accelerate's.
    """
    arguments = dict(file_settings.arguments)
    for accelerate_name, deepspeed_name in (
        ("deepspeed-config.zero-stage", "zero-optimization.stage"),
        ("deepspeed-config.gradient-accumulation-steps", "gradient-accumulation-steps"),
        ("deepspeed-config.offload-optimizer-device", "zero-optimization.offload-optimizer.device"),
        (f"{_DEGREES}sp-size", "sequence-parallel-size"),
        (f"{_DEGREES}tp-size", "tensor-parallel.autotp-size"),
        ("per-device-train-batch-size", "train-micro-batch-size-per-gpu"),
    ):
        if accelerate_name in arguments and deepspeed_name not in arguments:
            arguments[deepspeed_name] = arguments[accelerate_name]
    if arguments.get("mixed-precision") in ("bf16", "fp16"):
        arguments.setdefault(f"{arguments['mixed-precision']}.enabled", "true")
    under = DEEPSPEED.runtime if runtime == ACCELERATE.runtime else runtime
    launch = DEEPSPEED.read(
        FileSettings(arguments=arguments, notes=file_settings.notes),
        model=model,
        devices=devices,
        runtime=under,
    )
    accelerate_launch = launch_of(
        file_settings,
        launch.grid,
        framework="accelerate",
        runtime=under,
        model=model,
        seq_len=0,
        global_batch=launch.global_batch,
        precision=launch.precision,
        table=_TABLE,
        possible=OF_TRANSFORMERS,
    )
    deepspeed_settings = {
        setting.name: setting
        for setting in launch.settings
        if setting.name in file_settings.arguments
    }
    settings = tuple(
        deepspeed_settings.get(setting.name, setting)
        if setting.verdict is Verdict.UNKNOWN
        else setting
        for setting in accelerate_launch.settings
    )
    return replace(launch, framework="accelerate", settings=settings)
