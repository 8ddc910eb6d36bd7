"""Plans of the joint space and the costs of their step.

A plan has stages of the layer chain, each with its own layers, split and recomputation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.step.shared_scalar_cost_formulas import temporary_bytes
from shardwright.cost.step.strategy_rank_bytes import again_bytes
from shardwright.cost.step.strategy_task_seconds import RECOMPUTE_PART, StepCosts, step_costs
from shardwright.cost.tables.grid_rows_and_memory_settings import TableRows
from shardwright.cost.tables.pipeline_chunk_layout import (
    ChunkLayout,
    block_facts,
    first_backward_block,
    last_reduced_block,
    sent_stream,
)
from shardwright.kernel_compilation import python_form
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.training_problem import Problem
from shardwright.runtime.option_vocabulary import in_vocabulary_order
from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.search.joint.joint_space import PipelineShape, ShapedSpace
from shardwright.search.joint.label_dynamic_program_inputs import least_border
from shardwright.search.joint.model_as_chain_of_one_layer_positions import Chain, chain_of
from shardwright.search.joint.pipeline_bound_by_dynamic_programming import Cut, RankChoice
from shardwright.strategy.grid.parallelism_grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkChoice:
    """Layers of one pipeline chunk and their recomputation.

    Args:
        layers: number of layers.
        redone: number of first layers that are recomputed in full.
        selective: number of the next layers that are recomputed selectively.
    """

    layers: int
    redone: int = 0
    selective: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """A plan of the joint space.

    Args:
        grids: grid of each rank, as if all ranks were like it (without recomputation and cut).
        outers: (ranks,) split of each rank, as a row of the splits.
        chunks: chunks in order of the chain.
        schedule: registry name.
        table: the action order, where a search found it.
        folded: chunks run over the ranks and back (V).
    """

    grids: tuple[Grid, ...]
    outers: tuple[int, ...]
    chunks: tuple[ChunkChoice, ...]
    schedule: str
    microbatches: int
    table: ActionTable | None = None
    folded: bool = False

    @property
    def owners(self) -> tuple[int, ...]:
        """(chunks,) pipeline rank of each chunk."""
        p = self.ranks
        return tuple(
            p - 1 - c % p if self.folded and c // p % 2 else c % p for c in range(len(self.chunks))
        )

    @property
    def is_general(self) -> bool:
        """True if the plan has a found order or unequal splits, so is priced as a general plan."""
        return self.table is not None or not self.is_uniform

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.grids)

    @property
    def chunks_per_rank(self) -> int:
        """Number of chunks of each rank."""
        return len(self.chunks) // len(self.grids)

    @property
    def is_uniform(self) -> bool:
        """True if all ranks have the same split."""
        return len(set(self.outers)) == 1


def split_grid(shaped: ShapedSpace, outer: int, *, chunks: int, zero: int) -> Grid:
    """The grid whose ranks all have the split in row `outer`; 1F1B, interleaved if `chunks` > 1."""
    c = {name: int(column[outer]) for name, column in shaped.columns.items()}
    return Grid(
        tp=c["tp"],
        sp=bool(c["sp"]),
        cp=c["cp"],
        ulysses=c["ulysses"],
        gather=bool(c["gather"]),
        ep=c["ep"],
        etp=c["etp"],
        dp=c["dp"],
        pp=c["pp"],
        vpp=chunks,
        microbatch=c["mbs"],
        zero=zero,
        schedule="1f1b" if chunks == 1 else "interleaved-1f1b",
        options=in_vocabulary_order(
            (*shaped.members.space.chosen, *shaped.members.space.modules[0])
        ),
        order=tuple(str(shaped.members.space.of("order")[c["order"]]).split("-")),
    )


def plan_of_cut(shaped: ShapedSpace, pipeline: PipelineShape, cut: Cut) -> JointPlan:
    """Joint plan of a layer cut of a pipeline, with one chunk a rank."""
    outers = tuple(pipeline.outers[choice.split] for choice in cut)
    grids = {
        outer: split_grid(shaped, outer, chunks=pipeline.chunks, zero=pipeline.zero)
        for outer in set(outers)
    }
    chunks = tuple(_chunk(choice.layers, choice) for choice in cut)
    return JointPlan(
        grids=tuple(grids[outer] for outer in outers),
        outers=outers,
        chunks=chunks,
        schedule=pipeline.schedule,
        microbatches=pipeline.microbatches,
    )


def plan_of_sizes(
    shaped: ShapedSpace, pipeline: PipelineShape, sizes: IntArray, redone: IntArray | None = None
) -> JointPlan:
    """Joint plan whose chunks have `sizes` layers, the first `redone` of each recomputed fully."""
    first = np.zeros_like(sizes) if redone is None else np.minimum(redone, sizes)
    grid = split_grid(shaped, pipeline.outers[0], chunks=pipeline.chunks, zero=pipeline.zero)
    p = pipeline.ranks
    return JointPlan(
        grids=(grid,) * p,
        outers=(pipeline.outers[0],) * p,
        chunks=tuple(
            ChunkChoice(layers=n, redone=x)
            for n, x in zip(sizes.tolist(), first.tolist(), strict=True)
        ),
        schedule=pipeline.schedule,
        microbatches=pipeline.microbatches,
        folded=pipeline.folded,
    )


def _chunk(layers: int, choice: RankChoice) -> ChunkChoice:
    """The chunk of a rank's choice, with recomputation of at most its layers."""
    redone = min(choice.redone, layers)
    return ChunkChoice(
        layers=layers, redone=redone, selective=min(choice.selective, layers - redone)
    )


def layout_of_plan(problem: Problem, plan: JointPlan) -> ChunkLayout:
    """Model blocks of every chunk of the plan."""
    chain = chain_of(problem.model)
    contents, at = [], 0
    for c, chunk in enumerate(plan.chunks):
        contents.append(
            chain.content(at, at + chunk.layers, first=c == 0, last=c == len(plan.chunks) - 1)
        )
        at += chunk.layers
    counts = np.zeros((len(contents), len(problem.model.blocks)), dtype=np.int64)
    for c, content in enumerate(contents):
        for block, count in content:
            counts[c, block] += count
    by_rank = np.zeros((plan.ranks, counts.shape[1]), dtype=np.int64)
    np.add.at(by_rank, list(plan.owners), counts)
    of = block_facts(problem.model)
    return ChunkLayout(
        contents=tuple(contents),
        counts=counts,
        layer=of.layer,
        unit=of.unit,
        head=of.head,
        first=np.array([content[0][0] if content else 0 for content in contents], dtype=np.int64),
        turned=first_backward_block(problem.model, contents),
        reduced=last_reduced_block(problem.model, contents),
        sent=sent_stream(problem.model, contents),
        streams=int(of.stream.max()) + 1,
        by_rank=by_rank,
        pp=plan.ranks,
        vpp=plan.chunks_per_rank,
    )


def recomputed_block_counts(chain: Chain, plan: JointPlan) -> tuple[IntArray, IntArray]:
    """(chunks, blocks) numbers of blocks that are recomputed in full, and selectively."""
    full, selective, at = [], [], 0
    for chunk in plan.chunks:
        cut, stop = at + chunk.redone, at + chunk.layers
        behind = min(cut + chunk.selective, stop)
        full.append(chain.redone[at:cut].sum(axis=0))
        selective.append(chain.redone[cut:behind].sum(axis=0))
        at = stop
    return np.array(full), np.array(selective)


def joint_step_costs(problem: Problem, shaped: ShapedSpace, plan: JointPlan) -> StepCosts:
    """Costs of a step of a joint plan, composed from each rank's split and recomputation.

    Each rank's columns come from the step in which all ranks have its split.
    """
    layout = layout_of_plan(problem, plan)
    by_outer = {
        outer: _one_split_costs(problem, shaped, plan, layout, outer)
        for outer in dict.fromkeys(plan.outers)
    }
    if len(by_outer) == 1:
        merged = next(iter(by_outer.values()))
    else:
        merged = _merge_splits(plan, by_outer, least_border(problem, shaped, tuple(by_outer)))
    return _with_recompute(problem, shaped, plan, layout, merged)


def _one_split_costs(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, layout: ChunkLayout, outer_row: int
) -> StepCosts:
    """Step costs, without recomputation, of a plan whose ranks all have the split `outer_row`."""
    prepared = shaped.prepared
    priced = TableRows(
        layers=prepared.layers,
        layer_row=int(prepared.layer_row[outer_row]),
        meshes=prepared.meshes,
        mesh_row=int(prepared.mesh_row[outer_row]),
        layout=layout,
    )
    return step_costs(problem, plan.grids[plan.outers.index(outer_row)], priced)


_OF_CHUNKS = (
    "forward_s",
    "backward_s",
    "weight_s",
    "gather_s",
    "reduce_s",
    "pieces",
    "saved_bytes",
    "restored_bytes",
    "paired_bytes",
)
_OF_RANKS = (
    "optimizer_s",
    "update_s",
    "after_s",
    "transient_bytes",
    "logits_bytes",
    "blocks_bytes",
)


def _merge_splits(plan: JointPlan, by_outer: dict[int, StepCosts], border_s: float) -> StepCosts:
    """Step costs of ranks with different splits: each rank's own columns, all sends `border_s`."""
    p = plan.ranks
    any_step = by_outer[plan.outers[0]]
    of_chunk = [by_outer[plan.outers[c % p]] for c in range(len(plan.chunks))]
    of_rank = [by_outer[outer] for outer in plan.outers]

    def items(listed: list[tuple[tuple[str, IntArray], ...]]) -> tuple[tuple[str, IntArray], ...]:
        """Named byte columns, with each rank's value from its own split."""
        named = [dict(entry) for entry in listed]
        return tuple(
            (name, np.array([named[r][name][r] for r in range(p)], dtype=np.int64))
            for name in named[0]
        )

    columns: dict[str, Any] = {
        name: np.array([getattr(s, name)[c] for c, s in enumerate(of_chunk)]) for name in _OF_CHUNKS
    }
    columns |= {
        name: np.array([getattr(s, name)[r] for r, s in enumerate(of_rank)]) for name in _OF_RANKS
    }
    return replace(
        any_step,
        **columns,
        tied_s=np.full(len(plan.chunks), 0.0),
        slowdown=min(s.slowdown for s in of_rank),
        shares=np.zeros_like(any_step.shares),
        parts=np.stack([s.parts[:, c] for c, s in enumerate(of_chunk)], axis=1),
        border_s=np.full_like(any_step.border_s, border_s),
        static_bytes=items([s.static_bytes for s in of_rank]),
        outside_bytes=items([s.outside_bytes for s in of_rank]),
    )


def _with_recompute(
    problem: Problem, shaped: ShapedSpace, plan: JointPlan, layout: ChunkLayout, step: StepCosts
) -> StepCosts:
    """Step costs with the recomputation of each chunk: seconds, saved bytes and temporaries."""
    if not any(chunk.redone or chunk.selective for chunk in plan.chunks):
        return step
    full, selective = recomputed_block_counts(chain_of(problem.model), plan)
    layers, p = shaped.prepared.layers, plan.ranks
    parts, saved, host = step.parts.copy(), step.saved_bytes.copy(), step.host_saved_bytes.copy()
    again = np.zeros(p, dtype=np.int64)
    for c, chunk in enumerate(plan.chunks):
        if not (chunk.redone or chunk.selective):
            continue
        rank = plan.owners[c]
        row = int(shaped.prepared.layer_row[plan.outers[rank]])
        seconds, held = layers.seconds[:, 3:5, :, row].sum(axis=2), layers.saved_bytes[:, :, row]
        away = layers.host_bytes[:, :, row]
        parts[1, c, RECOMPUTE_PART] += full[c] @ seconds[:, 1] + selective[c] @ seconds[:, 0]
        saved[c] += full[c] @ (held[:, 2] - held[:, 0]) + selective[c] @ (held[:, 1] - held[:, 0])
        host[c] += full[c] @ away[:, 2] + selective[c] @ away[:, 1]
        for mode, counts in ((2, full[c]), (1, selective[c])):
            made = np.where((counts > 0) & layout.layer, again_bytes(held, mode), 0).max()
            again[rank] = max(again[rank], made)
    return replace(
        with_recompute_temporaries(shaped, plan, layout, step, again),
        parts=parts,
        backward_s=parts[1].sum(axis=1),
        saved_bytes=saved,
        host_saved_bytes=host,
    )


def with_recompute_temporaries(
    shaped: ShapedSpace, plan: JointPlan, layout: ChunkLayout, step: StepCosts, again: IntArray
) -> StepCosts:
    """Step costs with backward temporaries of `again` (ranks,) recomputed bytes."""
    layers = shaped.prepared.layers
    # Without recomputation, the blocks are those of the logits and of the ends' gradients.
    heads = layout.by_rank[:, layout.head].sum(axis=1) > 0
    blocks_of_logits = np.array(
        [
            layers.logits_blocks[int(shaped.prepared.layer_row[o])] if h else 0
            for o, h in zip(plan.outers, heads, strict=True)
        ]
    )
    ends = step.blocks_bytes - blocks_of_logits
    transient = [
        int(python_form(temporary_bytes)(float(a), float(e), float(x)))
        for a, e, x in zip(again, ends, step.logits_bytes, strict=True)
    ]
    return replace(
        step,
        transient_bytes=np.array(transient, dtype=np.int64),
        blocks_bytes=step.blocks_bytes + again,
    )
