"""A plan as Megatron-LM's arguments, for whatever starts Megatron: its script, Megatron-Bridge's
settings, FlagScale's file.

Source of the arguments: Megatron-LM, megatron/training/arguments.py at d98e8a6 (2026-08-22) and of
Megatron-Core 0.19.2; names are in both.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.common_shortfalls import (
    frozen_parameters,
    on_the_host,
    other_optimizers,
    other_products,
    sliced,
)
from shardwright.frameworks.export.exporter import Given, Shortfall
from shardwright.frameworks.export.option_flags import flag_pairs, flags_set, values_set
from shardwright.frameworks.megatron.model_arguments import Flags, model_flags, model_shortfalls
from shardwright.runtime.megatron_arguments import MODULES
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.facts import num_layers
from shardwright.strategy.grid.ranks import same_ranks

ORDERS: Final = (("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))
"""Axes from the innermost: its own order, and that of ``--use-tp-pp-dp-mapping``."""
MAPPED: Final = "use-tp-pp-dp-mapping"
SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP by stage of ZeRO."""
CAPACITY: Final = "moe-expert-capacity-factor"
ASYNC: Final = "no-async-tensor-model-parallel-allreduce"
UNSAID: Final[Mapping[str, tuple[str, str]]] = {
    ASYNC: (
        "tp_overlap=none",
        "the collective of an input gradient beside the weight gradient (dgrad)",
    ),
    "activation-func-fp8-input-store": (
        "gate_dtype=fp8",
        "what activations read is kept in 16 bits",
    ),
}
"""What options set and these versions have no argument for: the option, and what is done instead.
"""


def megatron_shortfalls(given: Given, *, chunks: bool = True) -> Iterator[Shortfall]:
    """What the arguments cannot say of a plan.

    Args:
        chunks: a rank of the pipeline may have several.
    """
    yield from model_shortfalls(given.problem.model)
    yield from _of_the_job(given)
    yield from _of_the_grid(given, chunks=chunks)


def _of_the_job(given: Given) -> Iterator[Shortfall]:
    yield from other_optimizers(given)
    yield from other_products(given, Dtype.BF16, Dtype.FP16, Dtype.FP8)
    yield from frozen_parameters(given)


def _of_the_grid(given: Given, *, chunks: bool) -> Iterator[Shortfall]:
    grid, schedules = given.grid, ("1f1b", "interleaved-1f1b") if chunks else ("1f1b",)
    if given.table is not None or (grid.pp > 1 and grid.schedule not in schedules):
        name = "an order of its own" if given.table is not None else f"the schedule {grid.schedule}"
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
    yield from on_the_host(grid)
    yield from sliced(grid)


def rank_mapping(grid: Grid) -> str | None:
    """The flag of the order of ranks; empty = its own order, None = it has no such order."""
    return next(
        (flag for order, flag in zip(ORDERS, ("", MAPPED), strict=True) if same_ranks(grid, order)),
        None,
    )


def grid_flags(given: Given, *frameworks: str) -> Flags:
    """The arguments of the strategy, with the modules that run again under these frameworks."""
    grid, job = given.grid, given.problem.job
    flags: Flags = [
        ("tensor-model-parallel-size", str(grid.tp)),
        ("pipeline-model-parallel-size", str(grid.pp)),
        ("context-parallel-size", str(grid.cp)),
        ("micro-batch-size", str(grid.microbatch)),
        ("global-batch-size", str(job.global_batch)),
    ]
    if grid.sp:
        flags.append(("sequence-parallel", ""))
    if grid.ep * grid.etp > 1 or any(
        name == "num-experts" for name, _ in model_flags(given.problem.model, length=1)
    ):
        flags += [
            ("expert-model-parallel-size", str(grid.ep)),
            ("expert-tensor-parallel-size", str(grid.etp)),
        ]
    if grid.cp > 1:
        flags += _contexts(grid)
    if grid.pp > 1:
        flags += _stages(given)
    if rank_mapping(grid):
        flags.append((MAPPED, ""))
    return [*flags, *_states(grid), *_recomputed(grid, values_set(given, *frameworks))]


def _contexts(grid: Grid) -> Flags:
    ring = "allgather" if grid.gather else "p2p"
    if grid.ulysses == 1:
        return [("cp-comm-type", ring)]
    if grid.ring == 1:
        return [("cp-comm-type", "a2a")]
    return [
        ("cp-comm-type", "a2a+p2p"),
        ("hierarchical-context-parallel-sizes", f"{grid.ulysses} {grid.ring}"),
    ]


def _stages(given: Given) -> Flags:
    grid, layers = given.grid, num_layers(given.problem.model)
    if layers % (grid.pp * grid.vpp) == 0 and given.chunks == (layers // (grid.pp * grid.vpp),) * (
        grid.pp * grid.vpp
    ):
        return [("num-virtual-stages-per-pipeline-rank", str(grid.vpp))] if grid.vpp > 1 else []
    stages = ["t" * count for count in given.chunks]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return [("pipeline-model-parallel-layout", "|".join(stages))]


def _states(grid: Grid) -> Flags:
    """Of ZeRO, hybrid sharding and states on the host."""
    flags: Flags = []
    if grid.zero in SHARDED:
        flags += [
            ("use-megatron-fsdp", ""),
            ("data-parallel-sharding-strategy", SHARDED[grid.zero]),
            ("ckpt-format", "fsdp_dtensor"),
        ]
    if grid.zero:
        flags.append(("use-distributed-optimizer", ""))
    if grid.zero and grid.shard and grid.shard < grid.dp * grid.cp:
        flags.append(("num-distributed-optimizer-instances", str(grid.dp * grid.cp // grid.shard)))
    if grid.offload:
        flags += [
            ("optimizer-cpu-offload", ""),
            ("use-precision-aware-optimizer", ""),
            ("optimizer-offload-fraction", f"{grid.offload / 100:g}"),
        ]
    return flags


def _recomputed(grid: Grid, options: Mapping[str, str]) -> Flags:
    modules = [word for word, option in MODULES.items() if options.get(option) == "on"]
    if grid.recompute is Recompute.FULL:
        method = ("block", grid.recompute_layers) if grid.recompute_layers else ("uniform", 1)
        return [
            ("recompute-granularity", "full"),
            ("recompute-method", method[0]),
            ("recompute-num-layers", str(method[1])),
        ]
    if grid.recompute is Recompute.SELECTIVE:
        modules = ["core_attn", *modules]
    return (
        [("recompute-granularity", "selective"), ("recompute-modules", " ".join(modules))]
        if modules
        else []
    )


def option_flags(given: Given, *frameworks: str) -> Flags:
    """The arguments of options, but for modules that run again, where the runtime is one of these
    frameworks; each once.
    """
    # Its arguments are refused where what they overlap is not there.
    apart = [] if given.grid.tp > 1 and given.grid.sp else ["tp_overlap"]
    if not given.grid.zero or _gathers_alone(given, *frameworks):
        apart.append("param_overlap")
    flags = flags_set(given, *frameworks, apart=(*apart, *MODULES.values()))
    found = {name.replace("_", "-"): value for flag in flags for name, value in flag_pairs(flag)}
    if CAPACITY in found:
        found[CAPACITY] = f"{given.problem.job.expert_imbalance:g}"
    return list(found.items())


def _gathers_alone(given: Given, *frameworks: str) -> bool:
    """Parameters are gathered beside compute and gradients are not reduced beside it: Megatron-LM
    refuses the one without the other.
    """
    values = values_set(given, *frameworks)
    return (
        bool(given.grid.zero)
        and values.get("param_overlap") == "on"
        and values.get("grad_overlap") == "off"
    )


def unsaid_options(
    given: Given, *frameworks: str, names: Collection[str] = tuple(UNSAID)
) -> Iterator[Shortfall]:
    """Options whose arguments, among `names`, are none any more, or are refused together."""
    if _gathers_alone(given, *frameworks):
        yield Shortfall(
            what="param_overlap=on with grad_overlap=off",
            instead="parameters are gathered before compute, not beside it",
        )
    for name, _ in option_flags(given, *frameworks):
        if name in names:
            option, instead = UNSAID[name]
            yield Shortfall(what=option, instead=instead)


def arguments(given: Given, *frameworks: str) -> Flags:
    """Every argument, each once, in the order of the page: model, strategy, numbers, options of
    these frameworks.
    """
    half = "fp16" if given.problem.job.compute is Dtype.FP16 else "bf16"
    dropped = (
        []
        if given.problem.job.dropout
        else [("attention-dropout", "0.0"), ("hidden-dropout", "0.0")]
    )
    numbers: Flags = [
        (half, ""),
        *dropped,
        *([("fp8-format", "hybrid")] if given.problem.job.compute is Dtype.FP8 else []),
    ]
    own = model_flags(given.problem.model, length=given.problem.job.sequence_length)
    found = [*own, *grid_flags(given, *frameworks), *numbers, *option_flags(given, *frameworks)]
    return list(dict(found).items())


def of_environment(name: str) -> bool:
    """What an option sets is a variable of the environment, and no argument."""
    return name[0].isupper()
