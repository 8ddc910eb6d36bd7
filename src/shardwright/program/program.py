"""A Program: block programs, task templates, and instances on the streams of rank classes. What everything else reads."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.program.block import BlockProgram
from shardwright.program.chunks import Content
from shardwright.program.fold import RankClasses
from shardwright.program.instances import Columns, Instances, Template
from shardwright.schedules.table import ActionTable
from shardwright.strategy.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the order of tasks depends on.

    Args:
        schedule, ranks, chunks_per_rank, microbatches: the table. pieces: of each chunk's last backward.
        gathers: parameters are gathered at the start of the step. blocking: sends run on the compute stream.
        reduces_last: a rank reduces its gradients once all of them are there, not chunk by chunk.
    """

    schedule: str
    ranks: int
    chunks_per_rank: int
    microbatches: int
    pieces: tuple[int, ...]
    gathers: bool
    blocking: bool
    reduces_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A lowered strategy.

    Args:
        grid: what it was lowered from. blocks: one program a block of the model. contents: blocks of each chunk.
        shape: what the order depends on. templates (and the same as columns), instances: tasks. classes: of ranks. table: order of actions.
    """

    grid: Grid
    blocks: tuple[BlockProgram, ...]
    contents: tuple[Content, ...]
    shape: Shape
    templates: tuple[Template, ...]
    columns: Columns
    instances: Instances
    classes: RankClasses
    table: ActionTable
