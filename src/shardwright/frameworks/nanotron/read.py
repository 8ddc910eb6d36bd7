"""Reader of nanotron's YAML."""

from __future__ import annotations

from typing import Final

from shardwright.errors import ShardwrightError
from shardwright.frameworks.launch.build_launch import launch_of, replicas
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import (
    TRANSFORMERS,
    compared_sizes,
)
from shardwright.frameworks.launch.framework_detection import FileKind, NamedFile, Signature
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.nanotron.settings import SETTINGS
from shardwright.frameworks.nanotron.write import stage_layers_by_cost
from shardwright.frameworks.settings.refuse_unpriced_settings import refuse
from shardwright.frameworks.settings.setting_table import only_of_grid, values_of
from shardwright.frameworks.settings.spaced_name_lists_and_wildcard_key_tables import name_set
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.parallelism_grid import Grid

_SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.YAML, FileKind.COMMAND}),
    programs=frozenset({"run_train.py"}),
    files=(NamedFile(setting="config-file", holds="the strategy"),),
    own=name_set(
        "parallelism.tp parallelism.pp parallelism.dp parallelism.pp-engine"
        " parallelism.tp-mode tokens.micro-batch-size tokens.batch-accumulation-per-replica"
        " tokens.sequence-length"
    ),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert nanotron's settings to a launch: strategy, batch, and a verdict on each setting."""
    arguments = file_settings.arguments
    refuse(arguments, SETTINGS.refused)
    values = values_of(SETTINGS, arguments)
    pp = values["pp"]
    dp = replicas(devices, tp=values["tp"], pp=pp, cp=values["cp"])
    strategy = {
        **values,
        "dp": dp,
        "schedule": values["schedule"] if pp > 1 else "1f1b",
        "layers": _stage_layers(model, pp),
    }
    named = arguments.get("parallelism.dp", str(dp))
    return launch_of(
        file_settings,
        Grid(**only_of_grid(strategy)),
        framework="nanotron",
        runtime=runtime,
        model=model,
        seq_len=values["seq_len"],
        global_batch=values["microbatch"] * values["microbatches"] * dp,
        precision=values["precision"],
        table=SETTINGS,
        of_model=tuple(
            compared_sizes(arguments, TRANSFORMERS, model, section="model.model-config.")
        ),
        arguments={
            name.removeprefix("parallelism."): value
            for name, value in arguments.items()
            if value != "false"
        },
        notes=(
            (f"the file's dp is {named}, the cluster has room for {dp}",)
            if named != str(dp)
            else ()
        ),
    )


NANOTRON: Final = LaunchReader(
    name="nanotron",
    runtime="nanotron",
    signature=_SIGNATURE,
    settings=SETTINGS,
    target="nanotron",
    read=_read,
)


def _stage_layers(model: Model, pp: int) -> tuple[int, ...]:
    """Layers of each stage by nanotron's cost rule; empty if pp is 1 or the rule does not fit."""
    try:
        return stage_layers_by_cost(model, pp) if pp > 1 else ()
    except (ShardwrightError, AssertionError):
        return ()
