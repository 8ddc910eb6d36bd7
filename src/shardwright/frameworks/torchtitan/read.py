"""Reader of torchtitan's configurations: Python (0.3), TOML (earlier) or arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from shardwright.errors import DataError, ShardwrightError
from shardwright.frameworks.launch.build_launch import launch_of, replicas
from shardwright.frameworks.launch.compare_model_sizes_in_settings_with_model import compared_name
from shardwright.frameworks.launch.framework_detection import (
    FileKind,
    NamedFile,
    Signature,
)
from shardwright.frameworks.launch.training_launch_and_reader_types import (
    ORDER,
    FileSettings,
    Launch,
    LaunchReader,
)
from shardwright.frameworks.settings.refuse_unpriced_settings import refuse
from shardwright.frameworks.settings.setting_table import only_of_grid, values_of
from shardwright.frameworks.settings.setting_values_from_and_to_text import count
from shardwright.frameworks.torchtitan.settings import FLAVORS, SCHEDULES, SETTINGS
from shardwright.model.ir.model_graph import Model
from shardwright.program.orders.write_pytorch_schedule_csv import schedule_csv
from shardwright.runtime.parse_launch_arguments import Arguments
from shardwright.strategy.grid.chunk_placement_by_schedule import GRID_SCHEDULES
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid
from shardwright.strategy.plan.pipeline_order import NamedOrder

_SECTIONS: Final = MappingProxyType(
    {
        "parallelismconfig.": "parallelism.",
        "trainingconfig.": "training.",
        "compileconfig.": "compile.",
        "config.activation-checkpoint": "activation-checkpoint.mode",
        "model-registry.converters": "model.converters",
        "training.max-context-length": "training.seq-len",
        "trainingconfig.max-context-length": "training.seq-len",
        "experimental.": "parallelism.",
        "training.batch-size": "training.local-batch-size",
        "training.compile": "compile.enable",
        "training.tensor-parallel-degree": "parallelism.tensor-parallel-degree",
        "training.data-parallel-": "parallelism.data-parallel-",
    }
)
"""Prefix of a section in Python and in older files -> the section's name."""
_P: Final = "parallelism."
_TOKENS: Final = MappingProxyType(
    {
        "training.num-tokens-per-microbatch-per-dp-rank": "training.local-batch-size",
        "training.num-tokens-per-train-step": "training.global-batch-size",
    }
)
"""Setting in tokens (since 0.3) -> setting in samples."""
_NAMES: Final = {name.lower(): ours for ours, name in SCHEDULES.items()}
_SINGLE: Final = ("1f1b", "gpipe")
"""Schedules of one chunk a rank; others have two by default."""


_DEGREES: Final = frozenset(
    f"{_P}{name}-parallel-{what}" for name, what in (("tensor", "degree"), ("pipeline", "degree"))
) | {f"{_P}data-parallel-shard-degree"}
_REGISTRY: Final = frozenset(
    {"config.training", "config.parallelism", "config.model-spec", "trainingconfig.steps"}
)
"""The settings of each function of a registry (config_registry.py of the module)."""
_SIGNATURE: Final = Signature(
    kinds=frozenset({FileKind.TOML, FileKind.PYTHON, FileKind.COMMAND}),
    programs=frozenset({"torchtitan.train", "torchtitan/train.py"}),
    own=frozenset(
        f"{section}{name}"
        for section in (_P, "parallelismconfig.", "experimental.", "training.")
        for name in (
            *(
                "tensor-parallel-degree",
                "data-parallel-shard-degree",
                "data-parallel-replicate-degree",
                "context-parallel-degree",
            ),
            *(
                "pipeline-parallel-degree",
                "expert-parallel-degree",
                "pipeline-parallel-schedule",
                "enable-async-tensor-parallel",
            ),
        )
    )
    | {
        "training.local-batch-size",
        "job.config-file",
        "trainingconfig.local-batch-size",
        "activation-checkpoint.selective-ac-option",
    },
    files=(
        NamedFile(setting="job.config-file", holds="the strategy", instead=_DEGREES),
        NamedFile(
            setting="module", holds="the strategy", instead=_DEGREES | _REGISTRY, ending=".py"
        ),
    ),
    shared=frozenset({"training.seq-len", "activation-checkpoint.mode", "model.flavor"}),
)


def _read(file_settings: FileSettings, *, model: Model, devices: int, runtime: str) -> Launch:
    """Convert torchtitan's settings to a launch: strategy, batch, and a verdict on each setting."""
    file_settings = replace(
        file_settings, arguments=dict(_canonical_settings(file_settings.arguments))
    )
    settings = file_settings.arguments
    refuse(settings, SETTINGS.refused)
    values = values_of(SETTINGS, settings)
    tp, pp, cp = values["tp"], values["pp"], values["cp"]
    dp = replicas(devices, tp=tp, pp=pp, cp=cp)
    # Without a shard degree the remaining devices shard; with a degree of 1 they are replicas.
    shards = values["shards"]
    if shards is None:
        shards = dp // max(values["replicate"], 1)
    sharded = shards * cp > 1
    local = values["local_batch"]
    strategy = {
        **values,
        "sp": tp > 1 and values["sp"],
        "gather": cp > 1 and values["gather"],
        "dp": dp,
        "microbatch": (values["pipeline_samples"] or 1) if pp > 1 else local,
        # By default parameters stay gathered under a pipeline.
        "zero": (values["sharded_stage"] or (2 if pp > 1 else 3)) if sharded else 0,
        "shard": shards * cp if shards < dp and sharded else 0,
    }
    grid = Grid(**only_of_grid(strategy))
    samples = local * dp if values["global_batch"] is None else values["global_batch"]
    if pp > 1:
        grid = _grid_with_pipeline(
            values, grid, model=model, table=settings.get(ORDER, ""), batch=samples
        )
    return launch_of(
        file_settings,
        grid,
        framework="torchtitan",
        runtime=runtime,
        model=model,
        seq_len=values["seq_len"],
        global_batch=samples,
        precision=_precision_recipe(values),
        table=SETTINGS,
        of_model=tuple(compared_name(settings, ("model.name", "model.flavor"), FLAVORS, model)),
        arguments=_option_settings(settings),
        notes=_loss_notes(settings),
    )


TORCHTITAN: Final = LaunchReader(
    name="torchtitan",
    runtime="torchtitan-0.2",
    signature=_SIGNATURE,
    settings=SETTINGS,
    target="torchtitan",
    read=_read,
)


def _canonical_settings(arguments: Arguments) -> Iterator[tuple[str, str]]:
    """Yield settings by canonical names; a number of tokens also as samples (tokens / seq-len)."""
    settings = {canonical_name(name): value for name, value in arguments.items()}
    length = count(settings, "training.seq-len", 1) or 1
    for name, value in settings.items():
        yield name, value
        if name in _TOKENS:
            yield (
                _TOKENS[name],
                value if value.startswith("-") else str(max(count(settings, name) // length, 1)),
            )


def canonical_name(name: str) -> str:
    """Canonical name of a setting from a Python file or an older release."""
    before = max(
        (section for section in _SECTIONS if name.startswith(section)), key=len, default=""
    )
    return _SECTIONS.get(before, "") + name.removeprefix(before)


def _precision_recipe(values: Mapping[str, Any]) -> str:
    """bf16-pure if the weights' dtype is bfloat16, else fp8 if there are converters, else bf16.

    Raises:
        DataError: a converter is not priced, such as LoRA or a 4-bit format.
    """
    words = [word.lower() for word in re.findall(r"[A-Za-z0-9_.]+", values["converters"])]
    unknown = [
        word
        for word in words
        if not word.startswith(("float8", "mx", "quantize.linear", "quantize.grouped_mm"))
    ]
    if unknown:
        raise DataError(
            f"the converter {unknown[0][:40]} is not priced here", hint="Float8 or MXFP8"
        )
    if values["weights"] == "bfloat16":
        return "bf16-pure"
    return "fp8" if words else "bf16"


def _option_settings(settings: Arguments) -> Mapping[str, str]:
    """Settings but off ones, by the names of runtime options' flags, with quantization and loss."""
    settings = {
        name: value
        for name, value in settings.items()
        if name != "compile.enable" or "model" in settings.get("compile.components", "model")
    }
    if any(
        word in settings.get("model.converters", "").lower()
        for word in ("mxfp8", "quantize.linear.mx", "mx")
    ):
        settings = {**settings, "mx.recipe-name": "mxfp8"}
    if _has_loss_in_parts(settings) and settings.get("config.num-chunks", "8") == "8":
        settings = {**settings, "linear-loss": "parts"}
    renamed = {"compile.enable-async-tensor-parallel": f"{_P}enable-async-tensor-parallel"}
    return {
        renamed.get(name, name): value
        for name, value in settings.items()
        if value.lower() not in ("false", "none")
    }


def _has_loss_in_parts(settings: Arguments) -> bool:
    """True if the loss is computed in chunks of tokens."""
    return settings.get("config.loss", "").lower().startswith("chunkedlosswrapper")


def _loss_notes(settings: Arguments) -> tuple[str, ...]:
    """Note that a chunked loss in other than 8 chunks is not priced; else empty."""
    chunks = settings.get("config.num-chunks", "8")
    if not _has_loss_in_parts(settings) or chunks == "8":
        return ()
    return (f"not counted: the loss in {chunks[:12]} parts, which takes less memory",)


def _grid_with_pipeline(
    values: Mapping[str, Any], grid: Grid, *, model: Model, table: str, batch: int
) -> Grid:
    """Grid with its pipeline schedule and the layers of each chunk, by torchtitan's rule.

    Args:
        table: rows of the pipeline order table; empty = the schedule has a name.
    """
    name = values["order_name"].lower()
    layers = num_layers(model)
    listed = re.findall(r"\[[^\[\]]*\]", values["modules"] or "")
    if listed:
        chunks = tuple(len(re.findall(r"layers\.\d+", part)) for part in listed)
    else:
        first, last, each = values["first_less"], values["last_less"], values["stage_layers"]
        stages = (
            -(-(layers + first + last) // each) if each else grid.pp * (1 if name in _SINGLE else 2)
        )
        size, more = divmod(layers + first + last, stages)
        sizes = [size + (place < more) for place in range(stages)]
        chunks = (sizes[0] - first, *sizes[1:-1], sizes[-1] - last)
    if sum(chunks) != layers or len(chunks) % grid.pp:
        raise DataError(
            f"stages of {', '.join(map(str, chunks))[:60]} layers, MODEL has {layers} for pp"
            f" {grid.pp}",
            hint="the MODEL of the launch",
        )
    cut = replace(grid, vpp=len(chunks) // grid.pp, layers=chunks)
    if table:
        return _grid_of_order_table(table, cut, model=model, batch=batch)
    if name not in _NAMES:
        raise DataError(
            f"the schedule {name[:40]} is not known here",
            hint=f"{', '.join(SCHEDULES.values())}; or with its table",
        )
    return replace(cut, schedule=_NAMES[name])


def _grid_of_order_table(rows: str, grid: Grid, *, model: Model, batch: int) -> Grid:
    """Grid under the named schedule whose order table equals these rows; DataError if none.

    Raises:
        DataError: no named schedule has this table.
    """
    for name in GRID_SCHEDULES:
        try:
            candidate = replace(grid, schedule=name)
            plan = plan_of(candidate, model=model, global_batch=batch)
            if (
                isinstance(plan.orders[0], NamedOrder)
                and schedule_csv(plan).split() == rows.split()
            ):
                return candidate
        except (ShardwrightError, AssertionError, ValueError):
            continue
    raise DataError(
        "the table of the pipeline's order is of no schedule that has a name here",
        hint="shardwright catalog schedules",
    )
