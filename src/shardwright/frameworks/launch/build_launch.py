"""Functions that readers share: replicas of a launch, options by flag, the complete launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from shardwright.errors import StrategyError
from shardwright.frameworks.launch.training_launch_and_reader_types import FileSettings, Launch
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.setting_verdicts import (
    LaunchSetting,
    Verdict,
    setting_verdicts,
)
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.framework_description import Options, Runtime
from shardwright.runtime.option_vocabulary import OF_EXPERTS, in_vocabulary_order
from shardwright.runtime.parse_launch_arguments import (
    OFF,
    Arguments,
    options_from_arguments,
    parse_arguments,
)
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.canonical_grid import canonical
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import grid_facts, has_experts
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

WHOLE_LAYERS: Final = (("recompute_layers", ("0",)),)
"""Limit for frameworks that recompute all layers of a stage or none."""
NO_PIPELINE: Final = (
    ("pp", ("1",)),
    ("ep", ("1",)),
    ("recompute", ("none", "full")),
    *WHOLE_LAYERS,
)
"""Models that run without pipeline and expert parallelism, and recompute all of their layers or
none."""
OF_TRANSFORMERS: Final = (*NO_PIPELINE, ("sp", ("0",)))
"""Transformers' models: their plans of tensor parallelism cut products alone
(`base_model_tp_plan`), not the stream between them."""


def replicas(devices: int, **degrees: int) -> int:
    """Data parallel degree: devices over the product of `degrees`; StrategyError if not whole.

    Raises:
        StrategyError: the degrees do not divide the devices.
    """
    product = 1
    for degree in degrees.values():
        product *= max(degree, 1)
    if devices % product:
        degree_text = " x ".join(
            f"{name} {degree}" for name, degree in degrees.items() if degree > 1
        )
        raise StrategyError(
            f"{degree_text} does not divide the {devices} devices of the cluster",
            hint="the CLUSTER that the launch is for",
            rule="grid.devices",
        )
    return devices // product


def changed_options(runtime: Runtime, arguments: Arguments) -> Options:
    """Runtime options that a launch sets to other values than the runtime's own."""
    values = dict(options_from_arguments(runtime, arguments))
    return in_vocabulary_order(pair for pair in values.items() if pair not in runtime.own)


def idle_options(grid: Grid, model: Model) -> dict[str, str]:
    """Option -> reason, of options without effect under a grid and model."""
    conditions = {
        "tp_overlap": (
            grid.tp == 1 or not grid.sp,
            "tensor parallelism is 1, or without sequence parallelism",
        ),
        "p2p_overlap": (grid.vpp == 1, "the pipeline has one chunk a rank"),
        "param_overlap": (not grid.zero, "no states are sharded"),
        "cpu_checkpoints": (grid.recompute is Recompute.NONE, "no layers are recomputed"),
        "remat": (grid.recompute is Recompute.FULL, "all of a layer is recomputed"),
        **dict.fromkeys(OF_EXPERTS, (not has_experts(model), "the model has no experts")),
    }
    return {name: why for name, (holds, why) in conditions.items() if holds}


def effective_options(options: Options, grid: Grid, model: Model) -> Options:
    """Options that have an effect under a grid and model, in their order.

    Overlap with an absent collective has none, nor has an expert option of a dense model.
    """
    idle = idle_options(grid, model)
    return tuple((name, value) for name, value in options if name not in idle)


def with_idle_verdicts(
    settings: Iterable[LaunchSetting], idle: Mapping[str, str]
) -> Iterator[LaunchSetting]:
    """Yield all settings; those that turn on an option in `idle` get verdict IDLE and a reason."""
    for setting in settings:
        option = setting.means.removeprefix("sets ")
        is_idle = (
            setting.verdict is Verdict.UNDERSTOOD
            and option != setting.means
            and option in idle
            and setting.value.lower() not in OFF
        )
        yield replace(setting, verdict=Verdict.IDLE, means=idle[option]) if is_idle else setting


def option_notes(runtime: Runtime) -> dict[str, str]:
    """Setting -> note ``sets OPTION``, from the launch flags of all options' values."""
    return {
        name: f"sets {offer.option}"
        for offer in runtime.offers
        for name in parse_arguments(offer.flag)
    }


def option_variables(runtime: Runtime, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that set runtime options, as argument name -> value."""
    flags = {
        name
        for offer in runtime.offers
        if offer.flag.partition("=")[0].isupper()
        for name in parse_arguments(offer.flag)
    }
    named = {
        name.replace("_", "-").lower(): value
        for name, value in environment.items()
        if name.isupper()
    }
    return {name: value for name, value in named.items() if name in flags}


def launch_of(
    file_settings: FileSettings,
    grid: Grid,
    *,
    framework: str,
    runtime: str,
    model: Model,
    seq_len: int,
    global_batch: int,
    precision: str,
    table: SettingTable,
    arguments: Arguments | None = None,
    notes: tuple[str, ...] = (),
    of_model: Iterable[LaunchSetting] = (),
    possible: tuple[tuple[str, tuple[str, ...]], ...] = WHOLE_LAYERS,
) -> Launch:
    """Build a `Launch` from a grid and settings: changed options, and a verdict on each setting.

    Args:
        table: table of the framework's settings.
        arguments: settings with defaults, which set the options; None = only the written ones.
        of_model: settings of the model, compared with MODEL.
        possible: see `Launch`.
    """
    base = load_runtime(runtime)
    facts = grid_facts(
        model,
        devices=grid.devices,
        global_batch=global_batch or grid.dp * grid.microbatch,
        seq_len=seq_len or 1,
    )
    set_options = changed_options(base, file_settings.arguments if arguments is None else arguments)
    # Options say whether ZeRO means anything on one device.
    grid = canonical(replace(grid, options=set_options), facts=facts)
    options = effective_options(set_options, grid, model)
    settings = setting_verdicts(
        file_settings.arguments,
        understood={**option_notes(base), **table.understood},
        model=of_model,
        ignored=table.ignored,
        unmodelled=table.unmodelled,
    )
    return Launch(
        framework=framework,
        runtime=runtime,
        grid=replace(grid, options=options),
        seq_len=seq_len,
        global_batch=global_batch,
        precision=precision,
        dropout=False,
        settings=tuple(with_idle_verdicts(settings, idle_options(grid, model))),
        notes=(*file_settings.notes, *notes),
        possible=possible,
    )
