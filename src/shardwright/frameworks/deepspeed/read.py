"""Reader of DeepSpeed's JSON configuration."""

from __future__ import annotations

from typing import Any, Final

from shardwright.errors import DataError
from shardwright.frameworks.deepspeed.settings import SETTINGS
from shardwright.frameworks.launch.build_launch import launch_of, replicas
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
from shardwright.frameworks.settings.refuse_unpriced_settings import refuse
from shardwright.frameworks.settings.setting_table import only_of_grid, values_of
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

_SIGNATURE: Final = Signature(
    kinds=CONFIGURATIONS | {FileKind.COMMAND},
    own=frozenset(
        {"train-micro-batch-size-per-gpu", "zero-optimization.*", "tensor-parallel.autotp-size"}
    ),
    shared=frozenset(
        {"gradient-accumulation-steps", "train-batch-size", "bf16.enabled", "fp16.enabled"}
    ),
    launchers=frozenset({"deepspeed"}),
    files=tuple(
        NamedFile(setting=name, holds="the stage of ZeRO and the number format")
        for name in ("deepspeed-config", "deepspeed")
    ),
)
_OVERLAP: Final = "zero-optimization.overlap-comm"


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert DeepSpeed's settings to a launch: strategy, batch, and a verdict on each setting."""
    # The training program fills in the value "auto".
    arguments = {name: value for name, value in file_settings.arguments.items() if value != "auto"}
    refuse(arguments, SETTINGS.refused)
    values = values_of(SETTINGS, arguments)
    zero, cp = values["zero"], values["cp"]
    if zero > 3:
        raise DataError(f"zero_optimization.stage {zero}", hint="0 to 3")
    dp = replicas(devices, tp=values["tp"], cp=cp)
    steps = values["microbatches"] or 1
    batch = values["global_batch"] or 0
    microbatch = values["microbatch"] or max(batch // (dp * steps), 1)
    checkpointed = any(name.startswith("activation-checkpointing.") for name in arguments)
    strategy = {
        **values,
        "ulysses": cp,
        "dp": dp,
        "microbatch": microbatch,
        "recompute": Recompute.FULL if checkpointed else Recompute.NONE,
        "offload": _offloaded_percent(values),
    }
    # Its collectives overlap by default with ZeRO-3 alone.
    options = {_OVERLAP: str(zero == 3).lower(), **arguments}
    return launch_of(
        file_settings,
        Grid(**only_of_grid(strategy)),
        framework="deepspeed",
        runtime=runtime,
        model=model,
        seq_len=0,
        global_batch=batch or microbatch * steps * dp,
        precision=_gemm_format(file_settings, values),
        table=SETTINGS,
        arguments={name: value for name, value in options.items() if value != "false"},
    )


def _gemm_format(file_settings: FileSettings, values: dict[str, Any]) -> str:
    """Number format of the GEMMs: fp16, bf16 or fp32; empty if the program decides (``auto``)."""
    for name in ("fp16", "bf16"):
        if values[name]:
            return name
    by_program = any(
        file_settings.arguments.get(f"{name}.enabled") == "auto" for name in ("fp16", "bf16")
    )
    return "" if by_program else "fp32"


def _offloaded_percent(values: dict[str, Any]) -> int:
    """Percent of states on the host: the ratio if offload is on, 100 by old cpu_offload, else 0."""
    whole = 100 if values["is_offloaded_whole"] else 0
    return int(values["offload_ratio"] if values["is_offloaded"] else whole)


DEEPSPEED: Final = LaunchReader(
    name="deepspeed",
    runtime="deepspeed-0.16",
    signature=_SIGNATURE,
    settings=SETTINGS,
    target="deepspeed",
    read=_read,
)
