"""Any rank's operator tasks, lazily: what an executor runs, and what counts of FLOPs and bytes are
checked against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.bounds.longest_path import microbatches_of, order_table
from shardwright.cost.lower_model_blocks_under_structure import programs_of
from shardwright.program.block.block_program import BlockProgram, BlockWork, KernelKind, Move, Phase
from shardwright.program.block.symbolic_sizes import Degrees, evaluate, evaluate_sum
from shardwright.program.stages.blocks_of_pipeline_chunks import Content, chunk_contents
from shardwright.program.training_problem import Problem
from shardwright.schedules.action_order_arrays import KINDS, ActionTable
from shardwright.strategy.grid.parallelism_grid import Grid, Recompute
from tests.program.structures import structure_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask:
    """One kernel or one communication of one rank.

    Args:
        chunk, microbatch: of the action it belongs to;
        action: its letter.
        block: name;
        layer: place in the chunk.
        operator, phase: what runs.
        kernel: family, None for a communication.
        flops: of a GEMM, exact.
        collective, axes, volume: kind, group axes and bytes of the full buffer of a communication.
        recomputed: it runs again for the backward.
    """

    chunk: int
    microbatch: int
    action: str
    block: str
    layer: int
    operator: str
    phase: Phase
    kernel: KernelKind | None = None
    flops: int = 0
    collective: Collective | None = None
    axes: tuple[str, ...] = ()
    volume: int = 0
    recomputed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a grid's ranks run: the columns' blocks under its chunks, in the order of its table."""

    grid: Grid
    blocks: tuple[BlockProgram, ...]
    contents: tuple[Content, ...]
    table: ActionTable


def program_of(problem: Problem, grid: Grid) -> Program:
    """The Program of `grid` in symbolic sizes."""
    return Program(
        grid=grid,
        blocks=programs_of(problem, structure_of(sp=grid.sp, gather=grid.gather, tp=grid.tp)),
        contents=chunk_contents(problem.model, pp=grid.pp, vpp=grid.vpp),
        table=order_table(grid, microbatches=microbatches_of(problem, grid)),
    )


_PHASES = {
    "F": (Phase.F,),
    "I": (Phase.I,),
    "W": (Phase.W,),
    "B": (Phase.I, Phase.W),
    "R": (Phase.F,),
}


def pipeline_rank(program: Program, rank: int) -> int:
    """The pipeline rank of device `rank`."""
    grid = program.grid
    return rank // grid.strides()["pp"] % grid.pp


def unfold(program: Program, rank: int, degrees: Degrees) -> Iterator[OperatorTask]:
    """The operator tasks of device `rank` in the order that its compute stream meets them.

    Args:
        degrees: of the grid, one row (``positions`` included), that sizes are evaluated with.
    """
    table, row = program.table, pipeline_rank(program, rank)
    for at in range(int(table.row_start[row]), int(table.row_start[row + 1])):
        letter = KINDS[int(table.kind[at])]
        chunk, microbatch = int(table.chunk[at]), int(table.microbatch[at])
        layers = [
            (block, place)
            for place, block in enumerate(
                b for b, count in program.contents[chunk] for _ in range(count)
            )
        ]
        for block, place in layers if letter in "FR" else reversed(layers):
            yield from _layer_tasks(program, degrees, (chunk, microbatch, letter), block, place)


def _layer_tasks(
    program: Program, degrees: Degrees, action: tuple[int, int, str], block: int, place: int
) -> Iterator[OperatorTask]:
    chunk, microbatch, letter = action
    lowered = program.blocks[block]
    if letter in "IB" and _is_recomputed(program, lowered, place, chunk):
        yield from _phase_tasks(
            lowered, degrees, (chunk, microbatch, letter), place, Phase.F, recomputed=True
        )
    for phase in _PHASES[letter]:
        yield from _phase_tasks(
            lowered, degrees, (chunk, microbatch, letter), place, phase, recomputed=letter == "R"
        )


def _is_recomputed(program: Program, block: BlockProgram, place: int, chunk: int) -> bool:
    """The block at `place` of `chunk` is recomputed in full: one of the chunk's first layers that
    the grid names."""
    grid = program.grid
    if grid.recompute is not Recompute.FULL or _is_end(block):
        return False
    before = 0
    position = 0
    for index, count in program.contents[chunk]:
        for _ in range(count):
            if position == place:
                return not grid.recompute_layers or before < grid.recompute_layers
            before += not _is_end(program.blocks[index])
            position += 1
    return False


def _is_end(block: BlockProgram) -> bool:
    return any(o.klass.value in ("embed", "head") for o in block.operators)


def _phase_tasks(
    block: BlockProgram,
    degrees: Degrees,
    action: tuple[int, int, str],
    place: int,
    phase: Phase,
    *,
    recomputed: bool,
) -> Iterator[OperatorTask]:
    """Operators in the order of the phase; each with what brings its input, its kernels, and what
    takes its output (mirrored in I)."""
    chunk, microbatch, letter = action
    names = [o.name for o in block.operators]
    for name in names if phase is Phase.F else reversed(names):
        moves = [m for m in block.moves if m.operator == name and m.phase is phase]
        works = [w for w in block.works if w.operator == name and w.phase is phase]
        first = [m for m in moves if m.behind == (phase is Phase.I)]
        items: tuple[BlockWork | Move, ...] = (
            *first,
            *works,
            *(m for m in moves if m not in first),
        )
        for item in items:
            yield OperatorTask(
                chunk=chunk,
                microbatch=microbatch,
                action=letter,
                block=block.block,
                layer=place,
                operator=name,
                phase=phase,
                kernel=None if isinstance(item, Move) else item.kernel,
                flops=0 if isinstance(item, Move) else gemm_flops(item, degrees),
                collective=item.kind if isinstance(item, Move) else None,
                axes=item.axes if isinstance(item, Move) else (),
                volume=move_bytes(item, degrees) if isinstance(item, Move) else 0,
                recomputed=recomputed,
            )


def gemm_flops(work: BlockWork, degrees: Degrees) -> int:
    """Exact FLOPs of a GEMM kernel on one device: 2 m n k (times its groups); 0 for other
    kernels."""
    if work.m is None or work.k is None:
        return 0
    count = (
        2
        * int(evaluate(work.m, degrees)[0])
        * int(evaluate_sum(work.n, degrees)[0])
        * int(evaluate(work.k, degrees)[0])
    )
    return count * int(evaluate(work.groups, degrees)[0]) if work.groups is not None else count


def move_bytes(move: Move, degrees: Degrees) -> int:
    """Bytes of a communication's full buffer on one device, all its hops counted; 0 for groups of
    one."""
    size = 1
    for axis in move.axes:
        size *= int(degrees[axis][0])
    if size == 1:
        return 0
    volume = sum(int(evaluate(part, degrees)[0]) for part in move.volume)
    return volume * (int(degrees[move.hops][0]) - 1) if move.hops else volume
