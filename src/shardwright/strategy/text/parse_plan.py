"""Parser of the general plan notation.

docs/notation.md has the grammar; `print_plan` prints it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final

from shardwright.errors import StrategyError, nearest
from shardwright.model.ir.model_graph import Model
from shardwright.runtime.framework_description import Options
from shardwright.runtime.option_vocabulary import BY_NAME, in_vocabulary_order
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.operator_split_tree import Exchange
from shardwright.strategy.plan.pipeline_order import NamedOrder, Table
from shardwright.strategy.plan.plan import ALL, Cadence, Plan, Shards, ShardUnit, State
from shardwright.strategy.plan.stage_splits_and_policies import (
    ActivationPolicy,
    Item,
    Keep,
    Placement,
    Selector,
    Stage,
)
from shardwright.strategy.text.grid_notation import parse_grid
from shardwright.strategy.text.parse_order import read_order
from shardwright.strategy.text.plan_text_line_cursor import (
    PlanLineReader,
    enum_member,
    read_all,
    read_count,
    read_lane_names,
    read_names,
)
from shardwright.strategy.text.print_plan import DOTTED, NAME, keeps_of_chunk, num_blocks
from shardwright.strategy.text.split_tree_notation import Cursor, read_split
from shardwright.strategy.text.stage_first_device_notation import MAX_STAGES, read_bases

MAX_TEXT: Final = 16 * 2**20

_NAME = NAME.pattern
_DOTTED = DOTTED.pattern
_HEADER: Final = re.compile(rf"plan ({_NAME}) devices (\d+)", re.ASCII)
_GRID: Final = re.compile(r"grid samples (\d+) (.+)", re.ASCII)
_ZERO: Final = re.compile(r"zero ([^:]+): *([^ /]+)/([^ /]+)/([^ /]+)((?: [^ ]+)*)", re.ASCII)
_OPTIONS: Final = re.compile(r"options (.+)", re.ASCII)
_LANE: Final = re.compile(
    rf"lane ({_NAME}) samples (\d+) in (\d+)(?: slices (\d+(?::\d+)*))?(?: role ([a-z]+))?",
    re.ASCII,
)
_STAGES: Final = re.compile(r"stages (.+?) on (.+?)(?: every (\d+))?", re.ASCII)
_CHUNK: Final = re.compile(r"(.+?)(?: ?\* ?(\d+))?", re.ASCII)
_ITEM: Final = re.compile(rf"(\d+)|({_DOTTED})(?::(\d+))?", re.ASCII)
_TREE: Final = re.compile(r"([^=\[\] ]+)(?:\[(\d+)-(\d+)\])? ?= ?(.+)", re.ASCII)
_KEEP: Final = re.compile(
    r"(recompute|host|nvme) (\d+)-(\d*)(?:/(\d+))?(?: (\d+)%)?: ?(.+)", re.ASCII
)
_SHARD_CHOICES: Final[dict[str, type[StrEnum]]] = {
    "gather": Cadence,
    "reduce": Cadence,
    "unit": ShardUnit,
}
_PLACES: Final = {
    "plan": "it is the first line",
    "grid": "it stands alone after the line of the plan",
    "options": "it stands once, directly after the line of the plan",
    "zero": "these lines stand before the first lane",
    "lane": "lanes stand before the first order",
    "stages": "these lines stand after the line of their lane",
    "recompute": "these lines stand after the splits of their stages",
    "host": "these lines stand after the splits of their stages",
    "nvme": "these lines stand after the splits of their stages",
    "order": "orders stand after the last lane",
}
"""Place of each kind of line, by its first word."""
_BEFORE_LANES: Final = ("plan", "grid", "options", "zero")
_NO_SPLITS: Final = ("", "grid", "options", "zero", "lane", "stages", "order")
"""First words with which no split begins, though there may be a = in the line."""
_SHARD_WORDS: Final = ("lanes", *_SHARD_CHOICES, "host", "by-memory")


def parse_plan(text: str, *, model: Model | None = None) -> Plan:
    """Parse a plan from the general notation; `#` starts a comment, indentation has no meaning.

    Args:
        model: needed for texts with a ``grid`` line, which give a plan only together with a model.

    Raises:
        StrategyError: the text is no plan; the message names the line.
            `check_structural_plan_rules.verify` checks that the plan is legal.
    """
    if len(text) > MAX_TEXT:
        raise StrategyError(f"a plan of {len(text)} characters", hint=f"at most {MAX_TEXT}")
    stripped = (
        (i, " ".join(line.partition("#")[0].split())) for i, line in enumerate(text.split("\n"), 1)
    )
    reader = PlanLineReader(lines=[(i, line) for i, line in stripped if line])
    header = reader.next(_HEADER, first="plan ")
    if header is None:
        raise reader.error(
            "a plan begins with its name and devices", hint="such as 'plan mine devices 64'"
        )
    devices = read_count(reader, header[2], smallest=1)
    grid = reader.next(_GRID, first="grid ")
    if grid is not None:
        return _from_grid(reader, grid, devices=devices, model=model)
    options = _read_options(reader)
    shards = read_all(reader, _read_shards)
    lanes = read_all(reader, _read_lane)
    names = tuple(lane.name for lane in lanes)
    orders: list[NamedOrder | Table] = []
    while (order := read_order(reader, all_lanes=names)) is not None:
        orders.append(order)
    if reader.place < len(reader.lines):
        raise _misplaced(reader)
    return Plan(devices=devices, lanes=lanes, orders=tuple(orders), shards=shards, options=options)


def _misplaced(reader: PlanLineReader) -> StrategyError:
    """Error of the next line, which is of no known kind or in the wrong place."""
    text, word = reader.lines[reader.place][1], _first_word(reader)[:40]
    if word in _PLACES:
        return reader.error(f"a line of {word!r} is in the wrong place", hint=_PLACES[word])
    if _TREE.fullmatch(text):
        return reader.error(
            f"the split {text[:40]!r} is in the wrong place",
            hint="splits stand directly after the line of their stages",
        )
    return reader.error(f"unexpected {word!r}", hint=nearest(word, _PLACES))


def _first_word(reader: PlanLineReader) -> str:
    """First word of the next line; empty at the end of the text."""
    return reader.lines[reader.place][1].split()[0] if reader.place < len(reader.lines) else ""


def _from_grid(
    reader: PlanLineReader, grid: re.Match[str], *, devices: int, model: Model | None
) -> Plan:
    """Plan of a line ``grid samples 64 tp8 ..`` for the model; StrategyError without a model."""
    if model is None:
        raise StrategyError(
            "a plan by its grid needs the model it is for",
            hint="give the model, or print the plan in its general form",
        )
    plan = plan_of(
        parse_grid(grid[2], devices=devices),
        model=model,
        global_batch=read_count(reader, grid[1], smallest=1),
    )
    if plan.devices != devices:
        raise StrategyError(
            f"the grid has {plan.devices} devices, the first line says {devices}",
            rule="grid.devices",
        )
    if reader.place < len(reader.lines):
        raise reader.error("nothing may follow a grid", hint="a grid says the whole plan")
    return plan


def _read_shards(reader: PlanLineReader) -> Shards | None:
    """Parse ``zero all: 8/1/1 host=opt:50``, degrees optimizer/gradient/parameter; None for others.

    None for other lines.
    """
    line = reader.next(_ZERO, first="zero ")
    if line is None:
        return None
    degrees = [ALL if d == "all" else _degree(reader, d) for d in line.groups()[1:4]]
    fields: dict[str, Any] = {}
    for word in line[5].split():
        key, _, text = word.partition("=")
        if key in _SHARD_CHOICES:
            fields[key] = enum_member(reader, _SHARD_CHOICES[key], text)
        elif key == "host":
            fields[key] = tuple(_share(reader, share) for share in text.split(","))
        elif key == "lanes":
            fields[key] = read_lane_names(reader, tuple(text.split(",")))
        elif word == "by-memory":
            fields["by_memory"] = True
        else:
            raise reader.error(f"unknown word {word[:40]!r}", hint=nearest(key[:40], _SHARD_WORDS))
    return Shards(
        parameters=read_names(reader, line[1]),
        optimizer=degrees[0],
        gradient=degrees[1],
        parameter=degrees[2],
        **fields,
    )


def _degree(reader: PlanLineReader, text: str) -> int:
    """Convert the digits of a shard degree to a number."""
    if not (text.isascii() and text.isdigit()):
        raise reader.error(f"{text[:20]!r} is not a degree", hint="a count, or all")
    return read_count(reader, text, smallest=1)


def _share(reader: PlanLineReader, text: str) -> tuple[State, int]:
    """Parse ``opt:50`` as a state and its percent on the host; ``opt`` alone is 100 percent."""
    state, colon, percent = text.partition(":")
    if colon and not (percent.isascii() and percent.isdigit()):
        raise reader.error(f"{percent[:20]!r} is not a percentage")
    return enum_member(reader, State, state), read_count(
        reader, percent, largest=100
    ) if colon else 100


def _read_options(reader: PlanLineReader) -> Options:
    """Parse a line ``options graphs=iteration loss=te`` as runtime options; () for other lines."""
    line = reader.next(_OPTIONS, first="options ")
    if line is None:
        return ()
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in line[1].split())]
    for name, value in pairs:
        if name not in BY_NAME:
            raise reader.error(f"{name[:40]!r} is no option", hint=nearest(name, BY_NAME))
        if value not in BY_NAME[name].values:
            raise reader.error(
                f"{name}={value[:40]} is not known",
                hint=f"{name} is {' or '.join(BY_NAME[name].values)}",
            )
    if len(dict(pairs)) < len(pairs):
        raise reader.error("an option is said twice", hint="keep one of them")
    return in_vocabulary_order(pairs)


def _read_lane(reader: PlanLineReader) -> Lane | None:
    """Parse ``lane main samples 64 in 8`` (8 microbatches) and its stage lines; else None."""
    line = reader.next(_LANE, first="lane ")
    if line is None:
        return None
    samples, microbatches = read_count(reader, line[2]), read_count(reader, line[3])
    slices = (
        tuple(read_count(reader, part, smallest=1) for part in line[4].split(":"))
        if line[4]
        else ()
    )
    role = enum_member(reader, Role, line[5]) if line[5] else Role.TRAIN
    stages: list[Stage] = []
    while (run := _read_stages(reader)) is not None:
        stages += run
        if len(stages) > MAX_STAGES:
            raise reader.error(f"more than {MAX_STAGES} stages")
    if not stages and _first_word(reader) in _BEFORE_LANES:
        raise _misplaced(reader)
    if not stages:
        raise reader.error(
            f"lane {line[1]} has no stages", hint="such as 'stages embed+32+head on 0'"
        )
    return Lane(
        name=line[1],
        samples=samples,
        microbatches=microbatches,
        stages=tuple(stages),
        slices=slices,
        role=role,
    )


def _read_stages(reader: PlanLineReader) -> list[Stage] | None:
    """Parse chunks on first devices, ``stages embed+8, 8*2 on 0..16/8``, with tree, keep lines."""
    line = reader.next(_STAGES, first="stages ")
    if line is None:
        return None
    reader.place -= 1  # errors below are about this line
    chunks = _chunks(reader, line[1])
    cursor = Cursor(text=line[2], where=reader.where)
    bases = read_bases(cursor)
    if cursor.peek():
        raise cursor.error("expected the end of the list of devices")
    if len(bases) != len(chunks):
        raise reader.error(
            f"{len(chunks)} chunks on {len(bases)} first devices", hint="one device for each chunk"
        )
    every = read_count(reader, line[3], smallest=1) if line[3] else 1
    reader.place += 1
    placements = read_all(reader, _read_placement)
    placements = reader.placements.setdefault(placements, placements)
    pattern = read_all(reader, _read_keep)
    return [
        Stage(
            items=items,
            base=base,
            placements=placements,
            keeps=keeps_of_chunk(pattern, blocks=num_blocks(items)),
            every=every,
        )
        for items, base in zip(chunks, bases, strict=True)
    ]


def _chunks(reader: PlanLineReader, text: str) -> list[tuple[Item, ...]]:
    """Parse chunks: ``embed+8, 8*2`` is one of embed and 8 layers, then two of 8 layers each."""
    chunks: list[tuple[Item, ...]] = []
    for chunk in text.split(","):
        match = _CHUNK.fullmatch(chunk.strip())
        if match is None:
            raise reader.error("an empty chunk", hint="such as embed+8, 8*2")
        items = tuple(_item(reader, item.strip()) for item in match[1].split("+"))
        count = read_count(reader, match[2], smallest=1, largest=MAX_STAGES) if match[2] else 1
        if len(chunks) + count > MAX_STAGES:
            raise reader.error(f"more than {MAX_STAGES} stages")
        chunks += [items] * count
    return chunks


def _item(reader: PlanLineReader, text: str) -> Item:
    """Parse one part of a chunk: a block's name, a count of blocks, or run:count."""
    match = _ITEM.fullmatch(text)
    if match is None:
        raise reader.error(
            f"{text[:40]!r} is no part of a chunk",
            hint="a block's name, a count of blocks, or run:count",
        )
    if match[1]:
        return Item(count=read_count(reader, match[1]))
    return Item(name=match[2], count=read_count(reader, match[3], smallest=1) if match[3] else 0)


def _read_placement(reader: PlanLineReader) -> Placement | None:
    """Parse ``all[0-11] = b2 t8 +8 via ring``: split of operator classes in blocks; or None."""
    word = _first_word(reader)
    if word in _NO_SPLITS or "=" not in reader.lines[reader.place][1]:
        return None
    line = reader.next(_TREE)
    if line is None:
        raise reader.error(
            f"cannot read {reader.lines[reader.place][1][:80]!r}", hint="such as 'stream = b2 s8'"
        )
    reader.place -= 1
    blocks = (read_count(reader, line[2]), read_count(reader, line[3])) if line[2] else None
    cursor = Cursor(text=line[4], where=reader.where)
    split = read_split(cursor)
    offset = cursor.number() if cursor.take("+") else 0
    exchange_text = line[4][cursor.place :].strip()
    exchange: Exchange | None = None
    if exchange_text:
        word, _, name = exchange_text.partition(" ")
        if word != "via":
            raise cursor.error(
                "expected the end of the split",
                hint="after a split: +offset, via ring or via gather",
            )
        exchange = enum_member(reader, Exchange, name)
    select = Selector(classes=read_names(reader, line[1]), blocks=blocks)
    reader.place += 1
    return Placement(select=select, split=split, offset=offset, exchange=exchange)


def _read_keep(reader: PlanLineReader) -> tuple[Keep, bool] | None:
    """Parse ``recompute 0-4/5: full`` (blocks 0 to 4, units of 5) as (keep, True if open); or None.

    ``0-`` reaches to the last block of each chunk.
    """
    line = reader.next(_KEEP, first=("recompute ", "host ", "nvme "))
    if line is None:
        return None
    keep = Keep(
        blocks=(read_count(reader, line[2]), read_count(reader, line[3]) if line[3] else 0),
        how=ActivationPolicy(line[1]),
        operators=read_names(reader, line[6]),
        unit=read_count(reader, line[4], smallest=1) if line[4] else 1,
        percent=read_count(reader, line[5], largest=100) if line[5] else 100,
    )
    return keep, not line[3]
