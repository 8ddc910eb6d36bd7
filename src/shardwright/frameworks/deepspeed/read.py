"""DeepSpeed's configuration as a launch."""

from __future__ import annotations

from typing import Any, Final

from shardwright.errors import DataError
from shardwright.frameworks.deepspeed.settings import SETTINGS
from shardwright.frameworks.launch.framework_claims import (
    CONFIGURATIONS,
    FileKind,
    NamedFile,
    Signature,
)
from shardwright.frameworks.launch.launch import Launch, LaunchReader, Written
from shardwright.frameworks.launch.launch_degrees import launch_of, replicas
from shardwright.frameworks.settings.setting_table import only_of_grid, values_of
from shardwright.frameworks.settings.unpriced_settings import refuse
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.grid import Grid, Recompute

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


def _read(written: Written, *, model: Model, devices: int, runtime: str) -> Launch:
    """The launch that a configuration is."""
    # A value "auto" is the program's.
    said = {name: value for name, value in written.arguments.items() if value != "auto"}
    refuse(said, SETTINGS.refused)
    values = values_of(SETTINGS, said)
    zero, cp = values["zero"], values["cp"]
    if zero > 3:
        raise DataError(f"zero_optimization.stage {zero}", hint="0 to 3")
    dp = replicas(devices, tp=values["tp"], cp=cp)
    steps = values["microbatches"] or 1
    batch = values["global_batch"] or 0
    microbatch = values["microbatch"] or max(batch // (dp * steps), 1)
    checkpointed = any(name.startswith("activation-checkpointing.") for name in said)
    strategy = {
        **values,
        "ulysses": cp,
        "dp": dp,
        "microbatch": microbatch,
        "recompute": Recompute.FULL if checkpointed else Recompute.NONE,
        "offload": _offload(values),
    }
    # Its collectives overlap by default with ZeRO-3 alone.
    options = {_OVERLAP: str(zero == 3).lower(), **said}
    return launch_of(
        written,
        Grid(**only_of_grid(strategy)),
        framework="deepspeed",
        runtime=runtime,
        model=model,
        seq_len=0,
        global_batch=batch or microbatch * steps * dp,
        precision=_precision(written, values),
        table=SETTINGS,
        arguments={name: value for name, value in options.items() if value != "false"},
    )


def _precision(written: Written, values: dict[str, Any]) -> str:
    """Number format; empty where the program has it."""
    for name in ("fp16", "bf16"):
        if values[name]:
            return name
    by_program = any(
        written.arguments.get(f"{name}.enabled") == "auto" for name in ("fp16", "bf16")
    )
    return "" if by_program else "fp32"


def _offload(values: dict[str, Any]) -> int:
    """Percent of the optimizer's states on the host."""
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
