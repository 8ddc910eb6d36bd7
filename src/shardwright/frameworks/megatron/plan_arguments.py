"""A plan as Megatron-LM's arguments, for its script, Megatron-Bridge and FlagScale."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    PlanToExport,
    Shortfall,
)
from shardwright.frameworks.export.plan_runtime_options_as_flags import (
    flag_pairs,
    option_flags_of_plan,
    option_values,
)
from shardwright.frameworks.export.unsupported_plan_features import (
    job_shortfalls,
    universal_shortfalls,
)
from shardwright.frameworks.megatron.settings import ORDERS, SETTINGS
from shardwright.frameworks.megatron.write_model_arguments import (
    Flags,
    model_flags,
    model_shortfalls,
)
from shardwright.frameworks.settings.setting_table import grid_values, written_settings
from shardwright.runtime.parallelism_recompute_precision_from_megatron_arguments import MODULES
from shardwright.strategy.grid.axis_coordinates_of_every_device import same_ranks
from shardwright.strategy.grid.model_and_batch_sizes_for_grid_rules import num_layers
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute

MAPPED: Final = "use-tp-pp-dp-mapping"
SHARDED: Final = (2, 3)
"""Stages of ZeRO under Megatron-FSDP."""
CAPACITY: Final = "moe-expert-capacity-factor"
ASYNC: Final = "no-async-tensor-model-parallel-allreduce"
WITHOUT_ARGUMENT: Final[Mapping[str, tuple[str, str]]] = {
    ASYNC: (
        "tp_overlap=none",
        "the collective of an input gradient beside the weight gradient (dgrad)",
    ),
    "activation-func-fp8-input-store": (
        "gate_dtype=fp8",
        "what activations read is kept in 16 bits",
    ),
}
"""Options without an argument in these versions, each with what Megatron does instead."""


def megatron_shortfalls(export: PlanToExport, *, chunks: bool = True) -> Iterator[Shortfall]:
    """Parts of a plan that Megatron-LM's arguments cannot express; without `chunks`, vpp > 1, too.

    Args:
        chunks: a pipeline rank may have several chunks.
    """
    yield from model_shortfalls(export.problem.model)
    yield from _job_shortfalls(export)
    yield from _grid_shortfalls(export, chunks=chunks)


def _job_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls of the job: optimizer, number formats, frozen parameters."""
    yield from job_shortfalls(export, Dtype.BF16, Dtype.FP16, Dtype.FP8)


def _grid_shortfalls(export: PlanToExport, *, chunks: bool) -> Iterator[Shortfall]:
    """Shortfalls of the grid: schedule, order of ranks, ZeRO and recomputation."""
    grid, schedules = export.grid, ("1f1b", "interleaved-1f1b") if chunks else ("1f1b",)
    if export.table is not None or (grid.pp > 1 and grid.schedule not in schedules):
        name = (
            "an order of its own" if export.table is not None else f"the schedule {grid.schedule}"
        )
        yield Shortfall(what=name, hint=" or ".join(schedules))
    if rank_mapping(grid) is None:
        yield Shortfall(
            what=f"ranks in the order {'-'.join(grid.order)}",
            hint=f"{' or '.join('-'.join(order) for order in ORDERS)}",
        )
    if grid.zero in SHARDED and grid.pp > 1:
        yield Shortfall(
            what=f"zero{grid.zero} with pp {grid.pp}: Megatron-FSDP runs without a pipeline",
            hint="zero1, or pp 1",
        )
    if grid.recompute is Recompute.FULL and any(
        name in MODULES.values() and value == "on" for name, value in grid.options
    ):
        yield Shortfall(
            what="modules that run again beside whole layers that do", instead="whole layers alone"
        )
    yield from universal_shortfalls(grid)


def rank_mapping(grid: Grid) -> str | None:
    """Flag for the grid's order of ranks: empty = Megatron's default, None = unsupported order."""
    return next(
        (flag for order, flag in zip(ORDERS, ("", MAPPED), strict=True) if same_ranks(grid, order)),
        None,
    )


def written_arguments(values: Mapping[str, Any]) -> Flags:
    """(argument, text) of fields' values in the table's order, without None and most defaults."""
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in written_settings(SETTINGS, values)
    ]


def grid_flags(export: PlanToExport, *frameworks: str) -> Flags:
    """Arguments of a plan's strategy; recompute modules only if priced for `frameworks`."""
    grid, model = export.grid, export.problem.model
    sparse = grid.ep * grid.etp > 1 or any(
        name == "num-experts" for name, _ in model_flags(model, length=1)
    )
    values: dict[str, Any] = {
        **grid_values(grid),
        "global_batch": export.problem.job.global_batch,
        "ep": grid.ep if sparse else None,
        "etp": grid.etp if sparse else None,
        "vpp": None,
        "order": ORDERS[rank_mapping(grid) == MAPPED],
        "host": None,
        **(_context_exchange_values(grid) if grid.cp > 1 else {}),
        **(_pipeline_values(export) if grid.pp > 1 else {}),
        **_sharded_state_values(grid),
        **_recompute_values(grid, option_values(export, *frameworks)),
    }
    return written_arguments(values)


def _context_exchange_values(grid: Grid) -> dict[str, str]:
    """Fields of cp's exchange: p2p, allgather, a2a, or a2a+p2p with sizes ``ulysses ring``."""
    if grid.ulysses == 1:
        return {"exchange": "allgather" if grid.gather else "p2p"}
    if grid.ring == 1:
        return {"exchange": "a2a"}
    return {"exchange": "a2a+p2p", "exchange_sizes": f"{grid.ulysses} {grid.ring}"}


def _pipeline_values(export: PlanToExport) -> dict[str, Any]:
    """Field `vpp` (chunks a rank) if chunks have equal layers, else `layout`, as ``Ett|tttL``."""
    grid, layers = export.grid, num_layers(export.problem.model)
    chunks = grid.pp * grid.vpp
    if layers % chunks == 0 and export.chunks == (layers // chunks,) * chunks:
        return {"vpp": grid.vpp}
    stages = ["t" * count for count in export.chunks]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return {"layout": "|".join(stages)}


def _sharded_state_values(grid: Grid) -> dict[str, Any]:
    """Values of the fields for ZeRO, hybrid sharding and optimizer offload."""
    replicas = grid.dp * grid.cp
    values: dict[str, Any] = {"is_sharded": grid.zero > 0}
    if grid.zero in SHARDED:
        values |= {"has_fsdp": True, "sharded_stage": grid.zero, "checkpoints": "fsdp_dtensor"}
    if grid.zero and grid.shard and grid.shard < replicas:
        values["instances"] = replicas // grid.shard
    if grid.offload:
        values |= {
            "is_offloaded": True,
            "is_precision_aware": True,
            "offload_share": grid.offload,
        }
    return values


def _recompute_values(grid: Grid, options: Mapping[str, str]) -> dict[str, Any]:
    """Field -> value of recompute granularity, method, layers, modules; empty if no recompute."""
    modules = [word for word, option in MODULES.items() if options.get(option) == "on"]
    if grid.recompute is Recompute.FULL:
        method = ("block", grid.recompute_layers) if grid.recompute_layers else ("uniform", 1)
        return {"granularity": "full", "method": method[0], "method_layers": method[1]}
    if grid.recompute is Recompute.SELECTIVE:
        modules = ["core_attn", *modules]
    return {"granularity": "selective", "modules": " ".join(modules)} if modules else {}


def option_arguments(export: PlanToExport, *frameworks: str) -> Flags:
    """(argument, text) of runtime options but recompute modules, if priced for `frameworks`.

    Each argument is listed once.
    """
    # Megatron-LM refuses the arguments of an overlap without the collective.
    apart = [] if export.grid.tp > 1 and export.grid.sp else ["tp_overlap"]
    if not export.grid.zero or _overlaps_only_gathers(export, *frameworks):
        apart.append("param_overlap")
    flags = option_flags_of_plan(export, *frameworks, apart=(*apart, *MODULES.values()))
    arguments_by_name = {
        name.replace("_", "-"): value for flag in flags for name, value in flag_pairs(flag)
    }
    if CAPACITY in arguments_by_name:
        arguments_by_name[CAPACITY] = f"{export.problem.job.expert_imbalance:g}"
    return list(arguments_by_name.items())


def _overlaps_only_gathers(export: PlanToExport, *frameworks: str) -> bool:
    """True if under ZeRO parameter gathers overlap with compute and gradient reductions do not.

    Megatron-LM refuses one without the other.
    """
    values = option_values(export, *frameworks)
    return (
        bool(export.grid.zero)
        and values.get("param_overlap") == "on"
        and values.get("grad_overlap") == "off"
    )


def option_shortfalls(
    export: PlanToExport, *frameworks: str, names: Collection[str] = tuple(WITHOUT_ARGUMENT)
) -> Iterator[Shortfall]:
    """Yield shortfalls of a plan's options in `names`, and of gathers that overlap alone.

    Options that Megatron-LM refuses together are included.
    """
    if _overlaps_only_gathers(export, *frameworks):
        yield Shortfall(
            what="param_overlap=on with grad_overlap=off",
            instead="parameters are gathered before compute, not beside it",
        )
    for name, _ in option_arguments(export, *frameworks):
        if name in names:
            option, instead = WITHOUT_ARGUMENT[name]
            yield Shortfall(what=option, instead=instead)


def arguments(export: PlanToExport, *frameworks: str) -> Flags:
    """All Megatron-LM arguments of a plan: model, strategy, number formats and options.

    Each argument is listed once; options are of `frameworks` only.
    """
    job = export.problem.job
    dropout = None if job.dropout else "0.0"
    numbers = {
        "fp16" if job.compute is Dtype.FP16 else "bf16": True,
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
        "fp8_format": "hybrid" if job.compute is Dtype.FP8 else None,
    }
    model = model_flags(export.problem.model, length=job.sequence_length)
    strategy, options = grid_flags(export, *frameworks), option_arguments(export, *frameworks)
    return list(dict([*model, *strategy, *written_arguments(numbers), *options]).items())


def is_environment_variable(name: str) -> bool:
    """True if an option's flag is an environment variable (upper case) and no argument."""
    return name[0].isupper()
