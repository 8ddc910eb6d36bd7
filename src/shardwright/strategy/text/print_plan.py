"""Printer of the general plan notation.

docs/notation.md has the grammar; `parse_plan` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, TypeAlias

from shardwright.errors import StrategyError
from shardwright.model.ir.model_graph import Model
from shardwright.strategy.grid.plan_to_grid import grid_of
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.pipeline_order import Action, Entry, NamedOrder, Table
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, ShardUnit
from shardwright.strategy.plan.stage_splits_and_policies import (
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)
from shardwright.strategy.text.grid_notation import print_grid
from shardwright.strategy.text.split_tree_notation import print_split
from shardwright.strategy.text.stage_first_device_notation import print_bases

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
Pattern: TypeAlias = tuple[tuple[Keep, bool], ...]
DOTTED: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}", re.ASCII)


def print_plan(plan: Plan, *, name: str = "plan", model: Model | None = None) -> str:
    """Print a plan as text that parses to it; with a `model`, as a grid line if a grid gives it.

    Args:
        name: the plan's name in the first line.
        model: given one, a plan that equals a grid's plan for this model is printed as the grid's
            line.

    Raises:
        StrategyError: a name in the plan cannot be written (spaces, say).
    """
    lines = [f"plan {_legal_name(name)} devices {plan.devices}"]
    grid = grid_of(plan, model=model) if model is not None else None
    if grid is not None:
        lines.append(f"grid samples {sum(lane.samples for lane in plan.lanes)} {print_grid(grid)}")
    else:
        lines += (
            ["options " + " ".join(f"{name}={value}" for name, value in plan.options)]
            if plan.options
            else []
        )
        lines += [_zero_line(rule) for rule in plan.shards]
        for lane in plan.lanes:
            lines += _lane_lines(lane)
        for order in plan.orders:
            lines += _order_lines(order)
    return "\n".join(lines) + "\n"


def _legal_name(name: str, *, pattern: re.Pattern[str] = NAME) -> str:
    """Return a name that the notation can write; StrategyError for other names."""
    if not pattern.fullmatch(name):
        raise StrategyError(
            f"the name {name[:60]!r} cannot be written",
            hint="letters, digits, '_' and '-'",
            rule="notation.name",
        )
    return name


def _class_names(names: Sequence[str]) -> str:
    """Print class names separated by commas; ``all`` for none."""
    if "all" in names:
        raise StrategyError(
            "a class cannot be named all", hint="no class means all", rule="notation.name"
        )
    return ",".join(_legal_name(name, pattern=DOTTED) for name in names) or "all"


def _zero_line(rule: Shards) -> str:
    """Print a ZeRO rule as a line ``zero all: all/1/1 gather=use``."""
    degrees = "/".join(
        "all" if d == ALL else str(d) for d in (rule.optimizer, rule.gradient, rule.parameter)
    )
    words = [f"zero {_class_names(rule.parameters)}: {degrees}"]
    if rule.lanes:
        words.append("lanes=" + ",".join(map(_legal_name, rule.lanes)))
    if rule.gather is not Cadence.STEP:
        words.append(f"gather={rule.gather.value}")
    if rule.reduce is not Cadence.STEP:
        words.append(f"reduce={rule.reduce.value}")
    if rule.unit is not ShardUnit.FLAT:
        words.append(f"unit={rule.unit.value}")
    if rule.host:
        words.append("host=" + ",".join(f"{state.value}:{percent}" for state, percent in rule.host))
    if rule.by_memory:
        words.append("by-memory")
    return " ".join(words)


def _lane_lines(lane: Lane) -> list[str]:
    """Print a lane as its own line and the lines of its stages."""
    slices = f" slices {':'.join(map(str, lane.slices))}" if lane.slices else ""
    role = f" role {lane.role.value}" if lane.role is not Role.TRAIN else ""
    lines = [
        f"lane {_legal_name(lane.name)} samples {lane.samples} in {lane.microbatches}{slices}{role}"
    ]
    for stages, pattern in _stage_groups(lane.stages):
        every = f" every {stages[0].every}" if stages[0].every != 1 else ""
        lines.append(
            f"  stages {_chunks(stages)} on {print_bases([s.base for s in stages])}{every}"
        )
        lines += [f"    {_placement_line(p)}" for p in stages[0].placements]
        lines += [f"    {_keep_line(keep, is_open=is_open)}" for keep, is_open in pattern]
    return lines


def num_blocks(items: Sequence[Item]) -> int:
    """Blocks of a chunk that block ranges count: sum of item counts; a name alone adds none."""
    return sum(item.count for item in items)


def keeps_of_chunk(pattern: Pattern, *, blocks: int) -> tuple[Keep, ...]:
    """Expand shared keep lines for a chunk of `blocks` blocks: open ranges end there or drop out.

    An open range ends at the chunk's last block and is dropped where it would be empty.
    """
    return tuple(
        replace(keep, blocks=(keep.blocks[0], blocks - 1)) if is_open else keep
        for keep, is_open in pattern
        if not is_open or keep.blocks[0] < blocks
    )


def _keep_line_forms(stage: Stage) -> list[Pattern]:
    """Forms of a stage's keep lines: ranges to the last block open, and if unlike, all closed."""
    last_block = num_blocks(stage.items) - 1
    open_ranges = tuple(
        (keep, keep.blocks[1] == last_block and 0 <= keep.blocks[0] <= last_block)
        for keep in stage.keeps
    )
    closed_ranges = tuple((keep, False) for keep in stage.keeps)
    return [open_ranges] if open_ranges == closed_ranges else [open_ranges, closed_ranges]


def _stage_groups(stages: Sequence[Stage]) -> list[tuple[list[Stage], Pattern]]:
    """Group neighbouring stages of equal placements that share keep lines, with the lines."""
    runs: list[tuple[list[Stage], list[Pattern]]] = []
    for stage in stages:
        fitting = _shared_keep_lines(*runs[-1], stage) if runs else []
        if fitting:
            runs[-1][0].append(stage)
            runs[-1] = (runs[-1][0], fitting)
        else:
            runs.append(([stage], _keep_line_forms(stage)))
    return [(members, patterns[0]) for members, patterns in runs]


def _shared_keep_lines(
    members: Sequence[Stage], patterns: list[Pattern], stage: Stage
) -> list[Pattern]:
    """Forms of keep lines that write the policy of all `members` and of `stage`; empty if none."""
    if members[0].placements != stage.placements or members[0].every != stage.every:
        return []
    shared = [
        p for p in patterns if keeps_of_chunk(p, blocks=num_blocks(stage.items)) == stage.keeps
    ]
    if shared or any(patterns):
        return shared
    # so far nobody kept anything: chunks without blocks may take over the lines of the first that
    # has some
    return [
        p
        for p in _keep_line_forms(stage)
        if all(keeps_of_chunk(p, blocks=num_blocks(m.items)) == m.keeps for m in members)
    ]


def _chunks(stages: Sequence[Stage]) -> str:
    """Print the chunks of neighbouring stages as ``embed+8, 8*2, 8+head``."""
    texts = ["+".join(_item(item) for item in stage.items) for stage in stages]
    if not all(texts):
        raise StrategyError(
            "a stage without items cannot be written", rule="notation.items", hint="drop the stage"
        )
    groups = [(text, sum(1 for _ in group)) for text, group in groupby(texts)]
    return ", ".join(text if count == 1 else f"{text}*{count}" for text, count in groups)


def _item(item: Item) -> str:
    """Print one part of a chunk: a block's name, a count of blocks, or run:count."""
    if not item.name:
        return str(item.count)
    return _legal_name(item.name, pattern=DOTTED) + (f":{item.count}" if item.count else "")


def _selection_text(select: Selector) -> str:
    """Print the operator classes and the block range that a placement selects."""
    blocks = f"[{select.blocks[0]}-{select.blocks[1]}]" if select.blocks else ""
    return _class_names(select.classes) + blocks


def _placement_line(placement: Placement) -> str:
    """Print a placement as ``all[0-11] = b2 t8 +8 via ring``."""
    offset = f" +{placement.offset}" if placement.offset else ""
    exchange = f" via {placement.exchange.value}" if placement.exchange else ""
    return f"{_selection_text(placement.select)} = {print_split(placement.split)}{offset}{exchange}"


def _keep_line(keep: Keep, *, is_open: bool) -> str:
    """Print a keep line as ``recompute 0-4/5: full``; an open range has no last block."""
    last_block = "" if is_open else str(keep.blocks[1])
    unit = f"/{keep.unit}" if keep.unit != 1 else ""
    percent = f" {keep.percent}%" if keep.percent != 100 else ""
    operators = _class_names(keep.operators)
    return f"{keep.how.value} {keep.blocks[0]}-{last_block}{unit}{percent}: {operators}"


def _order_lines(order: NamedOrder | Table) -> list[str]:
    """Print a pipeline order as one line, and a table's rows as further lines."""
    lane_list = f"({', '.join(_legal_name(lane) for lane in order.lanes)})"
    if isinstance(order, NamedOrder):
        if order.schedule == "table":
            raise StrategyError(
                "a schedule cannot be named table",
                rule="notation.name",
                hint="that word begins a table of actions",
            )
        words = [
            f"order {_legal_name(order.schedule)}{lane_list}",
            *(f"{_legal_name(k)}={_parameter_text(v)}" for k, v in order.parameters),
        ]
        return [" ".join(words)]
    lines = [f"order table{lane_list}"]
    for device, entries in order.rows:
        lines.append(
            f"  {device}: " + " ".join(_entry(entry, lanes=order.lanes) for entry in entries)
        )
    return lines


def _parameter_text(value: int | str) -> str:
    """Print a schedule's parameter; StrategyError if the notation cannot write it."""
    if isinstance(value, str):
        return _legal_name(value, pattern=DOTTED)
    if not 0 <= value < 10**18:
        raise StrategyError(
            f"parameter {value} cannot be written", hint="a count", rule="notation.number"
        )
    return str(value)


def _entry(entry: Entry, *, lanes: tuple[str, ...]) -> str:
    """Print one action, or an overlapped pair ``(down/1F0|up/2B0)``."""
    if isinstance(entry, tuple):
        return f"({_action(entry[0], lanes=lanes)}|{_action(entry[1], lanes=lanes)})"
    return _action(entry, lanes=lanes)


def _action(action: Action, *, lanes: tuple[str, ...]) -> str:
    """Print an action such as ``down/0F3``: lane (if several), chunk, kind, microbatch[.slice]."""
    if not 0 <= action.lane < len(lanes):
        raise StrategyError(
            f"action of lane {action.lane}, but the table has {len(lanes)}", rule="order.lanes"
        )
    lane_prefix = f"{lanes[action.lane]}/" if len(lanes) > 1 else ""
    slice_suffix = f".{action.slice}" if action.slice else ""
    return f"{lane_prefix}{action.chunk}{action.kind.value}{action.microbatch}{slice_suffix}"
