"""Megatron-LM: its command-line arguments, with a script that starts them.

Source of the arguments: Megatron-LM, megatron/training/arguments.py at d98e8a6 (2026-08-22) and of Megatron-Core 0.19.2; names are in both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from shardwright.dtype import Dtype
from shardwright.export.exporter import ExportFile, Given, Shortfall
from shardwright.export.lacking import (
    another_framework,
    frozen_parameters,
    on_the_host,
    other_optimizers,
    other_products,
    sliced,
)
from shardwright.export.megatron_model import Flags, model_flags, model_shortfalls
from shardwright.export.options import flags_set, values_set
from shardwright.export.start import start_script, torchrun
from shardwright.runtime.arguments import ON, parse_arguments
from shardwright.runtime.megatron_arguments import MODULES
from shardwright.strategy.grid.axes import Grid, Recompute
from shardwright.strategy.grid.facts import num_layers
from shardwright.strategy.grid.ranks import same_ranks

SCRIPT: Final = "pretrain.sh"
ORDERS: Final = (("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))
"""Axes from the innermost: its own order, and that of ``--use-tp-pp-dp-mapping``."""
MAPPED: Final = "use-tp-pp-dp-mapping"
SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP by stage of ZeRO."""


@dataclass(frozen=True, slots=True)
class Megatron:
    """The exporter."""

    name: str = "megatron"
    version: str = "core 0.19.2"
    summary: str = "arguments of pretrain_gpt.py, in a script that starts it"

    def shortfalls(self, given: Given) -> Iterator[Shortfall]:
        """See `Exporter`."""
        yield from model_shortfalls(given.problem.model)
        yield from _of_the_job(given)
        yield from _of_the_grid(given)
        yield from another_framework(given, "Megatron-Core")

    def files(self, given: Given) -> tuple[ExportFile, ...]:
        """See `Exporter`."""
        return (_script(given),)


MEGATRON: Final = Megatron()


def _of_the_job(given: Given) -> Iterator[Shortfall]:
    yield from other_optimizers(given)
    yield from other_products(given, Dtype.BF16, Dtype.FP8)
    yield from frozen_parameters(given, apart=("route",))


def _of_the_grid(given: Given) -> Iterator[Shortfall]:
    grid = given.grid
    if given.table is not None or (grid.pp > 1 and grid.schedule not in ("1f1b", "interleaved-1f1b")):
        name = "an order of its own" if given.table is not None else f"the schedule {grid.schedule}"
        yield Shortfall(what=name, hint="1f1b or interleaved-1f1b")
    if _mapping(grid) is None:
        yield Shortfall(what=f"ranks in the order {'-'.join(grid.order)}", hint=f"{' or '.join('-'.join(order) for order in ORDERS)}")
    if grid.zero in SHARDED and grid.pp > 1:
        yield Shortfall(what=f"zero{grid.zero} with pp {grid.pp}: Megatron-FSDP runs without a pipeline", hint="zero1, or pp 1")
    if grid.recompute is Recompute.FULL and any(name in MODULES.values() and value == "on" for name, value in grid.options):
        yield Shortfall(what="modules that run again beside whole layers that do", instead="whole layers alone")
    yield from on_the_host(grid)
    yield from sliced(grid)


def _mapping(grid: Grid) -> str | None:
    """The flag of the order of ranks; empty = its own order, None = it has no such order."""
    return next((flag for order, flag in zip(ORDERS, ("", MAPPED), strict=True) if same_ranks(grid, order)), None)


def grid_flags(given: Given) -> Flags:
    """The arguments of the strategy."""
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
    if grid.ep * grid.etp > 1 or any(name == "num-experts" for name, _ in model_flags(given.problem.model, length=1)):
        flags += [("expert-model-parallel-size", str(grid.ep)), ("expert-tensor-parallel-size", str(grid.etp))]
    if grid.cp > 1:
        flags += _contexts(grid)
    if grid.pp > 1:
        flags += _stages(given)
    if _mapping(grid):
        flags.append((MAPPED, ""))
    return [*flags, *_states(grid), *_recomputed(grid, values_set(given, "Megatron-Core"))]


def _contexts(grid: Grid) -> Flags:
    ring = "allgather" if grid.gather else "p2p"
    if grid.ulysses == 1:
        return [("cp-comm-type", ring)]
    if grid.ring == 1:
        return [("cp-comm-type", "a2a")]
    return [("cp-comm-type", "a2a+p2p"), ("hierarchical-context-parallel-sizes", f"{grid.ulysses} {grid.ring}")]


def _stages(given: Given) -> Flags:
    grid, layers = given.grid, num_layers(given.problem.model)
    if layers % (grid.pp * grid.vpp) == 0 and given.chunks == (layers // (grid.pp * grid.vpp),) * (grid.pp * grid.vpp):
        return [("num-virtual-stages-per-pipeline-rank", str(grid.vpp))] if grid.vpp > 1 else []
    stages = ["t" * count for count in given.chunks]
    stages[0], stages[-1] = f"E{stages[0]}", f"{stages[-1]}L"
    return [("pipeline-model-parallel-layout", "|".join(stages))]


def _states(grid: Grid) -> Flags:
    """Of ZeRO, hybrid sharding and states on the host."""
    flags: Flags = []
    if grid.zero in SHARDED:
        flags += [("use-megatron-fsdp", ""), ("data-parallel-sharding-strategy", SHARDED[grid.zero]), ("ckpt-format", "fsdp_dtensor")]
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
        return [("recompute-granularity", "full"), ("recompute-method", method[0]), ("recompute-num-layers", str(method[1]))]
    if grid.recompute is Recompute.SELECTIVE:
        modules = ["core_attn", *modules]
    return [("recompute-granularity", "selective"), ("recompute-modules", " ".join(modules))] if modules else []


def option_flags(given: Given) -> Flags:
    """The arguments of the options of a strategy but for modules that run again, where the runtime is a Megatron."""
    # Its arguments are refused where what they overlap is not there.
    apart = () if given.grid.tp > 1 and given.grid.sp else ("tp_overlap",)
    set_by = [parse_arguments(flag) for flag in flags_set(given, "Megatron-Core", apart=(*apart, *MODULES.values()))]
    return [(name, "" if value == ON else value) for flags in set_by for name, value in flags.items()]


def arguments(given: Given) -> Flags:
    """Every argument, each once, in the order of the page: model, strategy, numbers, options."""
    dropped = [] if given.problem.job.dropout else [("attention-dropout", "0.0"), ("hidden-dropout", "0.0")]
    numbers: Flags = [("bf16", ""), *dropped, *([("fp8-format", "hybrid")] if given.problem.job.compute is Dtype.FP8 else [])]
    own = model_flags(given.problem.model, length=given.problem.job.sequence_length)
    found = [*own, *grid_flags(given), *numbers, *option_flags(given)]
    return list(dict(found).items())


def _script(given: Given) -> ExportFile:
    lines = [f"    --{name} {' '.join(map(shlex.quote, value.split()))}".rstrip() for name, value in arguments(given)]
    # Before Blackwell its overlaps need one hardware queue; Megatron-FSDP's need several.
    queues = [] if given.grid.zero in SHARDED else ["export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}"]
    return start_script(
        given,
        name=SCRIPT,
        made_for=f"Megatron-LM ({MEGATRON.version})",
        before=[*queues, "ARGUMENTS=(", *lines, ")"],
        runs=torchrun("pretrain_gpt.py", '"${ARGUMENTS[@]}"'),
    )
