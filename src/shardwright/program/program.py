"""A Program: block programs, task templates, and instances on the streams of rank classes. What everything else reads."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.program.block import BlockProgram
from shardwright.program.chunks import Content
from shardwright.program.fold import RankClasses
from shardwright.program.instances import Instances, Template
from shardwright.schedules.table import ActionTable
from shardwright.strategy.grid import Grid


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A lowered strategy.

    Args:
        grid: what it was lowered from. blocks: one program a block of the model. contents: blocks of each chunk.
        templates, instances: tasks. classes: of ranks. table: order of actions.
        digest: of the content, not of the notation: two strategies that mean the same have the same digest.
    """

    grid: Grid
    blocks: tuple[BlockProgram, ...]
    contents: tuple[Content, ...]
    templates: tuple[Template, ...]
    instances: Instances
    classes: RankClasses
    table: ActionTable
    digest: str
