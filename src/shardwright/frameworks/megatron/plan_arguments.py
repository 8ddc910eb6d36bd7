"""A plan as Megatron-LM's arguments, for whatever starts Megatron: its script, Megatron-Bridge's
settings, FlagScale's file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.common_shortfalls import in_no_target, of_the_job
from shardwright.frameworks.export.exporter import Given, Shortfall
from shardwright.frameworks.export.option_flags import flag_pairs, flags_set, values_set
from shardwright.frameworks.megatron.model_arguments import Flags, model_flags, model_shortfalls
from shardwright.frameworks.megatron.settings import ORDERS, SETTINGS
from shardwright.frameworks.settings.setting_table import grid_values, written_settings
from shardwright.runtime.megatron_arguments import MODULES
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.model_counts import num_layers
from shardwright.strategy.grid.rank_coordinates import same_ranks

MAPPED: Final = "use-tp-pp-dp-mapping"
SHARDED: Final = (2, 3)
"""Stages of ZeRO under Megatron-FSDP."""
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
"""Options without an argument in these versions, each with what Megatron does instead."""


def megatron_shortfalls(given: Given, *, chunks: bool = True) -> Iterator[Shortfall]:
    """The parts of a plan that Megatron-LM's arguments cannot express.

    Args:
        chunks: a rank of the pipeline may have several.
    """
    yield from model_shortfalls(given.problem.model)
    yield from _of_the_job(given)
    yield from _of_the_grid(given, chunks=chunks)


def _of_the_job(given: Given) -> Iterator[Shortfall]:
    yield from of_the_job(given, Dtype.BF16, Dtype.FP16, Dtype.FP8)


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
    yield from in_no_target(grid)


def rank_mapping(grid: Grid) -> str | None:
    """The flag of the order of ranks; empty = its own order, None = it has no such order."""
    return next(
        (flag for order, flag in zip(ORDERS, ("", MAPPED), strict=True) if same_ranks(grid, order)),
        None,
    )


def written_arguments(values: Mapping[str, Any]) -> Flags:
    """Arguments of some values by field, in the order of the table."""
    return [
        (name, f"{value:g}" if isinstance(value, float) else str(value))
        for name, value in written_settings(SETTINGS, values)
    ]


def grid_flags(given: Given, *frameworks: str) -> Flags:
    """The arguments of the strategy, with the modules that run again under these frameworks."""
    grid, model = given.grid, given.problem.model
    sparse = grid.ep * grid.etp > 1 or any(
        name == "num-experts" for name, _ in model_flags(model, length=1)
    )
    values: dict[str, Any] = {
        **grid_values(grid),
        "global_batch": given.problem.job.global_batch,
        "ep": grid.ep if sparse else None,
        "etp": grid.etp if sparse else None,
        "vpp": None,
        "order": ORDERS[rank_mapping(grid) == MAPPED],
        "host": None,
        **(_contexts(grid) if grid.cp > 1 else {}),
        **(_stages(given) if grid.pp > 1 else {}),
        **_states(grid),
        **_recomputed(grid, values_set(given, *frameworks)),
    }
    return written_arguments(values)


def _contexts(grid: Grid) -> dict[str, str]:
    if grid.ulysses == 1:
        return {"exchange": "allgather" if grid.gather else "p2p"}
    if grid.ring == 1:
        return {"exchange": "a2a"}
    return {"exchange": "a2a+p2p", "exchange_sizes": f"{grid.ulysses} {grid.ring}"}


def _stages(given: Given) -> dict[str, Any]:
    """Chunks of a rank where all have as many layers, or the layers of each."""
    grid, layers = given.grid, num_layers(given.problem.model)
    chunks = grid.pp * grid.vpp
    if layers % chunks == 0 and given.chunks == (layers // chunks,) * chunks:
        return {"vpp": grid.vpp}
    stages = ["t" * count for count in given.chunks]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return {"layout": "|".join(stages)}


def _states(grid: Grid) -> dict[str, Any]:
    """Of ZeRO, hybrid sharding and states on the host."""
    replicas = grid.dp * grid.cp
    found: dict[str, Any] = {"is_sharded": grid.zero > 0}
    if grid.zero in SHARDED:
        found |= {"has_fsdp": True, "sharded_stage": grid.zero, "checkpoints": "fsdp_dtensor"}
    if grid.zero and grid.shard and grid.shard < replicas:
        found["instances"] = replicas // grid.shard
    if grid.offload:
        found |= {
            "is_offloaded": True,
            "is_precision_aware": True,
            "offload_share": grid.offload,
        }
    return found


def _recomputed(grid: Grid, options: Mapping[str, str]) -> dict[str, Any]:
    modules = [word for word, option in MODULES.items() if options.get(option) == "on"]
    if grid.recompute is Recompute.FULL:
        method = ("block", grid.recompute_layers) if grid.recompute_layers else ("uniform", 1)
        return {"granularity": "full", "method": method[0], "method_layers": method[1]}
    if grid.recompute is Recompute.SELECTIVE:
        modules = ["core_attn", *modules]
    return {"granularity": "selective", "modules": " ".join(modules)} if modules else {}


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
    job = given.problem.job
    dropout = None if job.dropout else "0.0"
    numbers = {
        "fp16" if job.compute is Dtype.FP16 else "bf16": True,
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
        "fp8_format": "hybrid" if job.compute is Dtype.FP8 else None,
    }
    own = model_flags(given.problem.model, length=job.sequence_length)
    strategy, options = grid_flags(given, *frameworks), option_flags(given, *frameworks)
    return list(dict([*own, *strategy, *written_arguments(numbers), *options]).items())


def of_environment(name: str) -> bool:
    """True if an option sets an environment variable and no argument."""
    return name[0].isupper()
