"""Shortfalls that many targets share: optimizers, number formats, frozen parameters, orders of
ranks, tensors in host memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shardwright.dtype import Dtype
from shardwright.frameworks.export.exporter import Given, Shortfall
from shardwright.job.training_job import OptimizerFamily
from shardwright.strategy.grid.grid import Grid, Recompute
from shardwright.strategy.grid.rank_coordinates import same_ranks


def another_framework(given: Given, *names: str) -> Iterator[Shortfall]:
    """A shortfall if a plan was made for a framework that is not in `names`; the first of these is
    the one that will run.
    """
    runtime = given.problem.runtime
    if runtime.framework not in names:
        made = f"{runtime.framework} {runtime.version}"
        yield Shortfall(
            what=f"what {made} overlaps and fuses, which the plan was made for",
            instead=f"what {names[0]} does; times differ",
        )


def of_the_job(given: Given, *formats: Dtype) -> Iterator[Shortfall]:
    """Shortfalls of a job's settings that few targets have: optimizers other than AdamW, GEMM
    formats other than `formats`, and frozen parameters.
    """
    yield from other_optimizers(given)
    yield from other_products(given, *formats)
    yield from frozen_parameters(given)


def in_no_target(grid: Grid) -> Iterator[Shortfall]:
    """Shortfalls of a grid's settings that no target has: activations in host memory, and sequence
    slices.
    """
    if grid.host:
        yield Shortfall(
            what=f"activations of {grid.host} layers a chunk on the host", hint="host=0"
        )
    if grid.slices > 1:
        yield Shortfall(what=f"{grid.slices} slices of a sequence", hint="whole sequences")


def other_optimizers(given: Given) -> Iterator[Shortfall]:
    """Any optimizer but AdamW."""
    family = given.problem.job.optimizer.family
    if family is not OptimizerFamily.ADAMW:
        yield Shortfall(
            what=f"the optimizer {family}", instead="AdamW, which has two states an element"
        )


def other_products(given: Given, *known: Dtype) -> Iterator[Shortfall]:
    """Products in another format than those `known`."""
    compute = given.problem.job.compute
    if compute not in known:
        yield Shortfall(
            what=f"products in {compute}", instead="products in bf16", hint="--precision bf16"
        )


OF_THE_PROGRAM: Final = ("moments", "linear_loss")
"""Options that a user's own program decides where the target is the configuration of a library: its
optimizer and its loss."""


def of_the_program(given: Given) -> Iterator[Shortfall]:
    """Options that the program decides which a configuration starts."""
    runtime = given.problem.runtime
    values = {**dict(runtime.options), **dict(given.grid.options)}
    for name in OF_THE_PROGRAM:
        if name in values and (name, values[name]) not in runtime.own:
            yield Shortfall(
                what=f"the option {name}={values[name]}",
                instead="what the program that is started does",
            )


def frozen_parameters(given: Given) -> Iterator[Shortfall]:
    """Parameters that the request freezes, adapters and a teacher. What a model itself never
    trains, such as the correction of a router, is no loss: the target's own model has it too.
    """
    model = given.problem.model
    if model.base is not None or any(block.is_of_teacher for block in model.blocks):
        yield Shortfall(what="frozen parameters or adapters", hint="train all of the model")


def other_orders(grid: Grid, innermost_first: Sequence[str]) -> Iterator[Shortfall]:
    """Ranks in another order than a target's own; without ep in it, experts are dealt inside or
    outside replicas as the grid has them.
    """
    own = tuple(innermost_first)
    if "ep" not in own:
        place = own.index("dp") + (grid.order.index("ep") > grid.order.index("dp"))
        own = (*own[:place], "ep", *own[place:])
    if not same_ranks(grid, own):
        inner, wanted = (
            "-".join(axis for axis in order if getattr(grid, axis) > 1)
            for order in (grid.order, own)
        )
        yield Shortfall(
            what=f"ranks in the order {inner}",
            instead=f"ranks in its own order, {wanted} from the innermost",
            order=own,
        )


def of_one_replica(grid: Grid) -> Iterator[Shortfall]:
    """States of experts that are cut over their copies in one replica, where a target cuts over
    replicas alone.
    """
    if grid.zero and grid.dp * grid.cp == 1:
        yield Shortfall(
            what=f"zero{grid.zero} of one replica",
            instead="experts' states whole on each of its devices",
        )


def not_split_beside_tp(grid: Grid) -> Iterator[Shortfall]:
    """Norms and residuals that are cut over tp, where a target has them whole on each of its
    members.
    """
    if grid.sp and grid.tp > 1:
        yield Shortfall(
            what="sp",
            instead=f"norms and residuals of all tokens on each of the {grid.tp} members of tp",
        )


def core_recomputed(grid: Grid) -> Iterator[Shortfall]:
    """Recompute of attention's core alone, where a target has none."""
    if grid.recompute is Recompute.SELECTIVE:
        yield Shortfall(
            what="recompute of attention's core alone",
            instead="recompute of all layers",
            hint="recompute=full or none",
        )


def some_recomputed(grid: Grid) -> Iterator[Shortfall]:
    """Recompute of some layers of a chunk, where a target recomputes all or none."""
    if grid.recompute_layers:
        yield Shortfall(
            what=f"recompute of {grid.recompute_layers} layers a chunk",
            instead="recompute of all layers",
        )
