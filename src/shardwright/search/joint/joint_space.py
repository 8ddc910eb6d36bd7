"""The joint space as data: pipelines, and the splits that each rank may have.

A pipeline holds the choices that all ranks share.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.compiled_bound_array_records import Costs
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.search.grid.bounds.bound_kernel_inputs import costs_of
from shardwright.search.grid.bounds.member_price_tables import Prepared, prepare
from shardwright.search.grid.members.default_runtime_and_recompute_options import LADDER, NOTHING
from shardwright.search.grid.members.enumerate_members import Members, enumerate_members
from shardwright.search.grid.members.grid_search_space import (
    AXES,
    Space,
    Value,
    where_options_differ,
)
from shardwright.strategy.grid.grid_rules import GridFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineShape:
    """Choices that all ranks of a joint plan share, and the splits that each rank may have.

    Args:
        outers: splits that each rank may have, as rows of `Members.outers`.
        ranks: number of pipeline ranks.
        chunks: number of chunks of a rank.
        microbatches: number of microbatches of a step.
        zero: ZeRO stage.
        any_order: the order is any static order, not the named schedule.
        folded: of two chunks, the second one runs over the ranks backwards (V).
    """

    outers: tuple[int, ...]
    ranks: int
    chunks: int
    microbatches: int
    zero: int
    any_order: bool = False
    folded: bool = False

    @property
    def is_general(self) -> bool:
        """True if all members are priced as general plans: any order, or several splits."""
        return self.any_order or len(self.outers) > 1

    @property
    def schedule(self) -> str:
        """Registry name of the pipeline's named schedule."""
        return "1f1b" if self.chunks == 1 else "interleaved-1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class JointSpace:
    """Search space of pipelines whose ranks may differ in layers, split and recomputation.

    The space includes every member of a grid space.
    """

    grids: Space
    base: Space
    chunks: tuple[int, ...]
    zeros: tuple[int, ...]
    any_order: bool = False

    @property
    def fixed(self) -> tuple[tuple[str, str], ...]:
        """(axis, value) of axes and options with one value in pipelines and several in grids."""
        if not self.base.of("pp"):
            return ()
        values = {"shard": (0,), "offload": (0,), "zero": self.zeros}
        axes = [
            (axis, ",".join(map(str, kept)))
            for axis, kept in values.items()
            if set(self.grids.of(axis)) - set(kept)
        ]
        several = [name for name in LADDER if len(self.grids.option_values(name)) > 1]
        return (*axes, *((name, self.base.option_values(name)[0]) for name in several))

    def with_options(self, part: Space, *, zero_stages: tuple[int, ...]) -> JointSpace:
        """The space with the options of `part` and the ZeRO stages that the runtime then has."""
        zeros = tuple(zero for zero in self.zeros if zero in zero_stages)
        # Members of the base stand for pipelines of each stage.
        values = tuple(
            (axis, zeros[:1] or had if axis == "zero" else had) for axis, had in self.base.values
        )
        return replace(
            self, base=replace(self.base, options=part.options, values=values), zeros=zeros
        )

    def text(self) -> str:
        """Description of the space for a reader and for its digest."""
        any_order = (
            "one chunk a rank also in any static order of forwards, input and weight gradients,"
            " where a rank that recomputes has whole backwards; 2, 4 or 8 chunks a rank, or 2 on a"
            " V, of those cuts, without recompute, in any such order; "
            if self.any_order
            else ""
        )
        chunks, zeros = ", ".join(map(str, self.chunks)), ", ".join(map(str, self.zeros))
        fixed = ", ".join(f"{name} {value}" for name, value in self.fixed)
        held = f"pipelines have {fixed}; " if fixed else ""
        return (
            f"joint over {self.base.text()}; chunks a rank {{{chunks}}}; zero {{{zeros}}}; one"
            " chunk: any cut into ranks of at least one layer, splits of ranks may differ where"
            " each rank's devices are consecutive, each rank recomputes any number of its first"
            " layers in full and of the next ones selectively; several chunks: any first and last"
            " chunk up to twice the mean, the others equal up to one, or ranks of equal chunks"
            " with any first and last rank, and each rank recomputes any number of the first"
            f" layers of its chunks in full; {any_order}{held}and every member of"
            f" {self.grids.text()}"
        )

    def digest(self, problem: str) -> str:
        """SHA-256, in hexadecimal, of the space's text and of the problem's text `problem`."""
        return hashlib.sha256(f"{self.text()}\n{problem}".encode()).hexdigest()


def joint_space(space: Space, *, devices: int | None = None, any_order: bool = False) -> JointSpace:
    """The joint space over the grids of `space`; pipelines use `devices` (None = all of `space`).

    It has no pipelines where the grids have no 1F1B or no pipeline, or are pinned to a value that
    no pipeline has.

    Args:
        devices: number of devices that its pipelines use; None = all devices of the space.
    """
    schedules = space.of("schedule")
    values: dict[str, tuple[Value, ...]] = dict(space.values)
    values |= {
        "vpp": (1,),
        "schedule": ("1f1b",),
        "shard": (0,),
        "recompute": ("none",),
        "recompute_layers": (0,),
        "offload": (0,),
    }
    # Ranks recompute whole layers, so the modules are those of a set that goes with it.
    modules = [
        chosen
        for chosen, beside in zip(space.modules, space.beside_recompute, strict=True)
        if beside
    ]
    has = "1f1b" in schedules and 0 in space.of("shard") and 0 in space.of("offload") and modules
    values["pp"] = tuple(p for p in space.of("pp") if int(p) > 1) if has else ()
    zeros = tuple(sorted({min(int(z), 1) for z in space.of("zero") if int(z) <= 1}))
    values["zero"] = (0,)
    chunks = tuple(
        sorted(int(v) for v in space.of("vpp") if (int(v) == 1) or "interleaved-1f1b" in schedules)
    )
    base = replace(
        space,
        name="joint",
        values=tuple((axis, values[axis]) for axis in AXES),
        first=0,
        last=0,
        fewest=0,
    )
    base = replace(base, devices=devices or space.devices, modules=tuple(modules[:1]) or NOTHING)
    return JointSpace(grids=space, base=base, chunks=chunks, zeros=zeros, any_order=any_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedSpace:
    """All pipelines of a joint space, with the price tables of their splits.

    Args:
        columns: values of each split, by axis.
    """

    members: Members
    prepared: Prepared
    costs: Costs
    pipelines: tuple[PipelineShape, ...]
    columns: Mapping[str, IntArray]


def shaped_space(
    problem: Problem, space: JointSpace, facts: GridFacts, *, searched_first: Space | None = None
) -> ShapedSpace | None:
    """Price the splits of a joint space and group them into pipelines; None if there are none.

    Args:
        problem: the problem under the options of the space, which has one value of each.
        searched_first: the part of the options that is searched first; pipelines whose splits cost
            the same under both parts are left out.
    """
    if not space.base.of("pp") or not space.zeros:
        return None
    members = enumerate_members(problem, space.base, facts)
    if not len(members.outers):
        return None
    prepared = prepare(problem, members)
    outer, mesh = members.outers.columns, members.meshes.columns
    at = outer["mesh"]
    columns = {name: mesh[name][at] for name in mesh} | dict(outer)
    contiguous = columns["s_pp"] * columns["pp"] == space.base.devices
    told = (
        where_options_differ(columns, space.base, searched_first)
        if searched_first is not None
        else np.ones(len(contiguous), dtype=np.bool_)
    )
    pipelines: list[PipelineShape] = []
    groups: dict[tuple[int, int], list[int]] = {}
    lone: list[tuple[int, int, int]] = []
    for row in range(len(members.outers)):
        p, m = int(columns["pp"][row]), int(columns["microbatches"][row])
        if p > facts.layers:
            continue
        if contiguous[row]:
            groups.setdefault((p, m), []).append(row)
        lone.append((row, p, m))
    for zero in space.zeros:
        for v in space.chunks:
            for row, p, m in lone:
                if v == 1 and contiguous[row]:
                    continue
                if v == 1 or (m % p == 0 and p * v <= facts.layers + 2):
                    pipelines.append(
                        PipelineShape(outers=(row,), ranks=p, chunks=v, microbatches=m, zero=zero)
                    )
            if v == 1:
                pipelines += [
                    PipelineShape(outers=tuple(rows), ranks=p, chunks=1, microbatches=m, zero=zero)
                    for (p, m), rows in groups.items()
                ]
    pipelines = [pipeline for pipeline in pipelines if told[list(pipeline.outers)].any()]
    if not pipelines:
        return None
    return ShapedSpace(
        members=members,
        prepared=prepared,
        costs=costs_of(problem, prepared),
        pipelines=tuple(pipelines),
        columns=columns,
    )
