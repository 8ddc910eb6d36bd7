"""Functions that readers of several frameworks share: replicas of a launch, options by flag, the
complete launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from shardwright.errors import StrategyError
from shardwright.frameworks.launch.launch import Launch, Written
from shardwright.frameworks.settings.setting_table import SettingTable
from shardwright.frameworks.settings.verdicts import Setting, Verdict, judged
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.launch_arguments import (
    OFF,
    Arguments,
    options_from_arguments,
    parse_arguments,
)
from shardwright.runtime.runtime import Options, Runtime
from shardwright.runtime.runtime_options import OF_EXPERTS, in_vocabulary_order
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.grid_rules import canonical
from shardwright.strategy.grid.model_counts import grid_facts, has_experts

WHOLE_LAYERS: Final = (("recompute_layers", ("0",)),)
"""No setting of the framework says how many layers run again: all of a stage's do, or none."""
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
    """Data parallelism that other degrees leave.

    Raises:
        StrategyError: they do not divide the devices.
    """
    each = 1
    for degree in degrees.values():
        each *= max(degree, 1)
    if devices % each:
        said = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
        raise StrategyError(
            f"{said} does not divide the {devices} devices of the cluster",
            hint="the CLUSTER that the launch is for",
            rule="grid.devices",
        )
    return devices // each


def own_options(runtime: Runtime, arguments: Arguments) -> Options:
    """The options that settings set otherwise than the runtime's own value."""
    found = dict(options_from_arguments(runtime, arguments))
    return in_vocabulary_order(pair for pair in found.items() if pair not in runtime.own)


def idle_options(grid: Grid, model: Model) -> dict[str, str]:
    """Option -> why it does nothing in a strategy: what it overlaps, or what it is of, is not
    there.
    """
    found = {
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
    return {name: why for name, (holds, why) in found.items() if holds}


def telling(options: Options, grid: Grid, model: Model) -> Options:
    """The options that say something of a strategy: of overlaps with what is not there they do not,
    nor of experts of a model without.
    """
    idle = idle_options(grid, model)
    return tuple((name, value) for name, value in options if name not in idle)


def with_idle(settings: Iterable[Setting], idle: Mapping[str, str]) -> Iterator[Setting]:
    """Settings, those that set an option which does nothing with why."""
    for one in settings:
        option = one.means.removeprefix("sets ")
        is_idle = (
            one.verdict is Verdict.UNDERSTOOD
            and option != one.means
            and option in idle
            and one.value.lower() not in OFF
        )
        yield replace(one, verdict=Verdict.IDLE, means=idle[option]) if is_idle else one


def set_by(runtime: Runtime) -> dict[str, str]:
    """Setting -> what it sets: options of the runtime, by the flags of their values."""
    return {
        name: f"sets {offer.option}"
        for offer in runtime.offers
        for name in parse_arguments(offer.flag)
    }


def variables_that_set(runtime: Runtime, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables of the environment that set options of a runtime, such as ``CUDA_LAUNCH_BLOCKING``,
    in the form of arguments.
    """
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
    written: Written,
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
    of_model: Iterable[Setting] = (),
    possible: tuple[tuple[str, tuple[str, ...]], ...] = WHOLE_LAYERS,
) -> Launch:
    """The launch of a strategy that was read, under the options that its settings set.

    Args:
        table: settings of the framework.
        arguments: the settings with defaults, by which options are set; None = as they were
            written.
        of_model: settings of the model, beside MODEL.
        possible: see `Launch`.
    """
    base = load_runtime(runtime)
    facts = grid_facts(
        model,
        devices=grid.devices,
        global_batch=global_batch or grid.dp * grid.microbatch,
        seq_len=seq_len or 1,
    )
    own = own_options(base, written.arguments if arguments is None else arguments)
    # Options say whether ZeRO means anything on one device.
    grid = canonical(replace(grid, options=own), facts=facts)
    options = telling(own, grid, model)
    settings = judged(
        written.arguments,
        understood={**set_by(base), **table.understood},
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
        settings=tuple(with_idle(settings, idle_options(grid, model))),
        notes=(*written.notes, *notes),
        possible=possible,
    )
