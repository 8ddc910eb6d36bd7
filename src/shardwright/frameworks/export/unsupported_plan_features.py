"""Shortfalls that many export targets share.

They concern optimizers, number formats, frozen parameters, orders of ranks and tensors in host
memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    PlanToExport,
    Shortfall,
)
from shardwright.job.training_job import OptimizerFamily
from shardwright.strategy.grid.axis_coordinates_of_every_device import same_ranks
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute


def other_framework_shortfalls(export: PlanToExport, *names: str) -> Iterator[Shortfall]:
    """A shortfall if the plan was priced for a framework that is not in `names`.

    The first of `names` is the framework that will run.
    """
    runtime = export.problem.runtime
    if runtime.framework not in names:
        made = f"{runtime.framework} {runtime.version}"
        yield Shortfall(
            what=f"what {made} overlaps and fuses, which the plan was made for",
            instead=f"what {names[0]} does; times differ",
        )


def job_shortfalls(export: PlanToExport, *formats: Dtype) -> Iterator[Shortfall]:
    """Shortfalls of a job: another optimizer than AdamW, other GEMM formats, frozen parameters.

    `formats` are the GEMM formats that the target has.
    """
    yield from optimizer_shortfalls(export)
    yield from gemm_format_shortfalls(export, *formats)
    yield from frozen_parameter_shortfalls(export)


def universal_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """Yield shortfalls that every target has: host activations, and sequence slices."""
    if grid.host:
        yield Shortfall(
            what=f"activations of {grid.host} layers a chunk on the host", hint="host=0"
        )
    if grid.slices > 1:
        yield Shortfall(what=f"{grid.slices} slices of a sequence", hint="whole sequences")


def optimizer_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """A shortfall if the optimizer is not AdamW."""
    family = export.problem.job.optimizer.family
    if family is not OptimizerFamily.ADAMW:
        yield Shortfall(
            what=f"the optimizer {family}", instead="AdamW, which has two states an element"
        )


def gemm_format_shortfalls(export: PlanToExport, *known: Dtype) -> Iterator[Shortfall]:
    """A shortfall if the GEMMs have a number format that is not in `known`."""
    compute = export.problem.job.compute
    if compute not in known:
        yield Shortfall(
            what=f"products in {compute}", instead="products in bf16", hint="--precision bf16"
        )


OF_THE_PROGRAM: Final = ("moments", "linear_loss")
"""Options that a user's own program decides where the target is the configuration of a library: its
optimizer and its loss."""


def program_option_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """Shortfalls for plan options that only the user's training program can set."""
    runtime = export.problem.runtime
    values = {**dict(runtime.options), **dict(export.grid.options)}
    for name in OF_THE_PROGRAM:
        if name in values and (name, values[name]) not in runtime.own:
            yield Shortfall(
                what=f"the option {name}={values[name]}",
                instead="what the program that is started does",
            )


def frozen_parameter_shortfalls(export: PlanToExport) -> Iterator[Shortfall]:
    """A shortfall if the request freezes parameters, adds adapters or has a teacher.

    Parameters that a model itself never trains, such as the correction of a router, are no
    shortfall: the target's own model has them too.
    """
    model = export.problem.model
    if model.base is not None or any(block.is_of_teacher for block in model.blocks):
        yield Shortfall(what="frozen parameters or adapters", hint="train all of the model")


def rank_order_shortfalls(grid: Grid, innermost_first: Sequence[str]) -> Iterator[Shortfall]:
    """Yield a shortfall if the plan numbers ranks in another axis order than the target.

    Without ep in `innermost_first`, ep is inside or outside dp as in the grid.
    """
    target_order = tuple(innermost_first)
    if "ep" not in target_order:
        place = target_order.index("dp") + (grid.order.index("ep") > grid.order.index("dp"))
        target_order = (*target_order[:place], "ep", *target_order[place:])
    if not same_ranks(grid, target_order):
        inner, wanted = (
            "-".join(axis for axis in order if getattr(grid, axis) > 1)
            for order in (grid.order, target_order)
        )
        yield Shortfall(
            what=f"ranks in the order {inner}",
            instead=f"ranks in its own order, {wanted} from the innermost",
            order=target_order,
        )


def single_replica_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """A shortfall if ZeRO shards over the expert copies of a single replica.

    The target shards over replicas only.
    """
    if grid.zero and grid.dp * grid.cp == 1:
        yield Shortfall(
            what=f"zero{grid.zero} of one replica",
            instead="experts' states whole on each of its devices",
        )


def sequence_parallel_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """A shortfall if the plan uses sequence parallelism (sp), which the target lacks."""
    if grid.sp and grid.tp > 1:
        yield Shortfall(
            what="sp",
            instead=f"norms and residuals of all tokens on each of the {grid.tp} members of tp",
        )


def selective_recompute_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """A shortfall if only the attention core is recomputed."""
    if grid.recompute is Recompute.SELECTIVE:
        yield Shortfall(
            what="recompute of attention's core alone",
            instead="recompute of all layers",
            hint="recompute=full or none",
        )


def partial_recompute_shortfalls(grid: Grid) -> Iterator[Shortfall]:
    """A shortfall if only some layers of a chunk are recomputed."""
    if grid.recompute_layers:
        yield Shortfall(
            what=f"recompute of {grid.recompute_layers} layers a chunk",
            instead="recompute of all layers",
        )
