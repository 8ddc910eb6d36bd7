"""Peak memory of each class of devices of a general plan, from its row of the order."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.bounds.rank_memory_bound import paired_activations
from shardwright.cost.network.plan_groups import kind_problem
from shardwright.cost.step.grid_bytes import StepBytes, held_bytes
from shardwright.cost.step.grid_seconds import StepCosts
from shardwright.cost.step.stage_costs import StageCosts
from shardwright.program.problem import Problem
from shardwright.program.program import DeviceClass, Program
from shardwright.schedules.table import B, F, R, W
from shardwright.simulator.prediction import StageMemory

_ONCE = ("workspace",)
"""Items that a device has once, however many stages it is in."""


def plan_memory(problem: Problem, program: Program, costs: StageCosts) -> tuple[StageMemory, ...]:
    """Itemised peak of each class of devices, in bytes; `rank` is the class's number.

    Items are those of `simulator.memory.stage_memory`; the largest temporary and the logits of its
    stages count once.
    """
    found = [_class_bytes(program, costs, device_class) for device_class in program.classes]
    # What an allocator holds depends on the runtime alone: on devices of every kind it is the same.
    kept, held = held_bytes(
        problem, _side_by_side(found), np.array([one.allocated for one in found], dtype=np.int64)
    )
    result = []
    for number, (device_class, one) in enumerate(zip(program.classes, found, strict=True)):
        own = kind_problem(problem, device_class.devices.first)
        items = one.items | {"fragmentation": int(kept[number]) - one.allocated} | one.outside
        result.append(
            StageMemory(
                rank=number,
                devices=device_class.devices.size,
                layers=_text(program, device_class),
                items=tuple(items.items()),
                allocated=one.allocated,
                reserved=int(held[number]),
                capacity=own.cluster.node.accelerator.memory_bytes,
            )
        )
    return tuple(result)


class _ClassBytes(NamedTuple):
    """Bytes of a device of one class: items that are allocated, `blocks` of the allocator for what
    stages share, items outside of it.
    """

    items: dict[str, int]
    blocks: int
    outside: dict[str, int]

    @property
    def allocated(self) -> int:
        return sum(self.items.values())


def _class_bytes(program: Program, costs: StageCosts, device_class: DeviceClass) -> _ClassBytes:
    # Stages that are alike share what they cost.
    steps = list(
        {
            id(step): step
            for place in device_class.families
            for step in costs.families[place].slices
        }.values()
    )
    firsts = [costs.families[place].slices[0] for place in device_class.families]
    times = Counter(map(id, firsts))
    items: dict[str, int] = {}
    for key, one in {id(step): step for step in firsts}.items():
        for name, values in one.static_bytes:
            value = int(values[0])
            items[name] = (
                max(items.get(name, 0), value)
                if name in _ONCE
                else items.get(name, 0) + value * times[key]
            )
    # The peak of what forwards keep until the gradients of their microbatch are done.
    items["activations"] = int(
        np.cumsum(kept_changes(program, costs, device_class)).max(initial=0)
    ) + paired_activations(
        np.concatenate([step.saved_bytes for step in steps]),
        np.concatenate([step.paired_bytes for step in steps]),
        pipelined=len(program.rows.row_start) > 2,
    )
    items["logits"] = max([int(s.logits_bytes[0]) for s in steps])
    # The logits are gone when a layer is made again, of whichever stage.
    items["temporary"] = (
        max([int(s.transient_bytes[0] + s.logits_bytes[0]) for s in steps]) - items["logits"]
    )
    # Blocks for logits and for what layers make again serve all of its stages.
    again = max([int(s.again_bytes[0]) for s in steps])
    others = max([int(s.blocks_bytes[0] - s.again_bytes[0]) for s in steps])
    return _ClassBytes(items, others + again, _outside(steps))


def _side_by_side(found: list[_ClassBytes]) -> StepBytes:
    """The classes as the ranks of one step."""
    nothing = np.zeros(0, dtype=np.int64)
    logits, temporary = (
        np.array([one.items[name] for one in found], dtype=np.int64)
        for name in ("logits", "temporary")
    )
    return StepBytes(
        static_bytes=(),
        saved_bytes=nothing,
        paired_bytes=nothing,
        transient_bytes=temporary,
        logits_bytes=logits,
        blocks_bytes=np.array([one.blocks for one in found], dtype=np.int64),
        again_bytes=nothing,
        outside_bytes=(
            ("outside", np.array([sum(one.outside.values()) for one in found], dtype=np.int64)),
        ),
        host_bytes=(),
        host_saved_bytes=nothing,
    )


def _outside(steps: list[StepCosts]) -> dict[str, int]:
    """Bytes outside the allocator, which all stages of a device share."""
    result: dict[str, int] = {}
    for step in steps:
        for name, values in step.outside_bytes:
            result[name] = max(result.get(name, 0), int(values[0]))
    return result


def kept_changes(
    program: Program,
    costs: StageCosts,
    device_class: DeviceClass,
    *,
    kept_by: str = "saved_bytes",
    again_by: str = "restored_bytes",
) -> IntArray:
    """(actions of its row,) bytes of activations that each action keeps from its start on, or gives
    back at its end (negative).

    Args:
        kept_by, again_by: fields of `StepCosts`: what a microbatch keeps, and what of it an early
            recompute makes again (empty = nothing).
    """
    rows = program.rows
    span = slice(int(rows.row_start[device_class.row]), int(rows.row_start[device_class.row + 1]))
    kinds = rows.kind[span]
    sign = np.where(
        (kinds == F) | (kinds == R), 1, np.where((kinds == B) | (kinds == W), -1, 0)
    ).astype(np.int64)
    lane, chunk, part, microbatch = (
        np.asarray(c[span], dtype=np.int64)
        for c in (rows.lane, rows.chunk, rows.slice, rows.microbatch)
    )
    slices = max([len(costs.families[place].slices) for place in device_class.families])
    lanes, chunks, _ = map(max, zip(*device_class.families, strict=True))
    kept = np.zeros((2, lanes + 1, chunks + 1, slices), dtype=np.int64)
    for number, stage, family in device_class.families:
        for cut, step in enumerate(costs.families[number, stage, family].slices):
            kept[:, number, stage, cut] = (
                int(getattr(step, kept_by)[0]),
                int(getattr(step, again_by)[0]) if again_by else 0,
            )
    saved, restored = kept[:, lane, chunk, part]
    changes: IntArray = sign * saved
    if (kinds == R).any():
        # What is made again early lives from there to the last gradient.
        width = int(microbatch.max(initial=0)) + 1
        action = ((lane * kept.shape[2] + chunk) * kept.shape[3] + part) * width + microbatch
        early = np.isin(action, action[kinds == R])
        changes = sign * np.where(
            early & (kinds == R),
            restored,
            saved + restored * (early & ((kinds == B) | (kinds == W))),
        )
    return changes


def _text(program: Program, device_class: DeviceClass) -> str:
    """What the stages of a class run, such as ``embed + 16 layer``: equal blocks are counted
    together.
    """
    counts: dict[str, int] = {}
    for lane, chunk, _ in device_class.families:
        for segment in program.stages[lane][chunk].segments:
            counts[segment.block.name] = counts.get(segment.block.name, 0) + segment.count
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
