"""Peak memory of each class of devices of a general plan, from its row of the order."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from shardwright.cost.bounds.rank_memory_bound import paired_activations
from shardwright.cost.network.networks_of_plan_devices import kind_problem
from shardwright.cost.step.stage_action_seconds import StageCosts, kept_changes
from shardwright.cost.step.strategy_rank_bytes import StepBytes, held_bytes
from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.program.device_classes_with_equal_actions import DeviceClass
from shardwright.program.lowered_program import Program
from shardwright.program.training_problem import Problem
from shardwright.simulator.prediction import StageMemory

_ONCE_A_DEVICE = ("workspace",)
"""Items that a device has once, for any number of stages."""


def plan_memory(problem: Problem, program: Program, costs: StageCosts) -> tuple[StageMemory, ...]:
    """Itemised peak bytes of each class of devices; `rank` is the class's number.

    Items are those of `StageMemory`; the largest temporary and the logits of a device's stages
    count once.
    """
    bytes_of_classes = [
        _class_bytes(program, costs, device_class) for device_class in program.classes
    ]
    # The bytes that an allocator holds depend on the runtime alone, for every kind of device.
    allocated_and_fragments, reserved = held_bytes(
        problem,
        _classes_as_ranks(bytes_of_classes),
        np.array([class_bytes.allocated for class_bytes in bytes_of_classes], dtype=np.int64),
    )
    memory = []
    for number, (device_class, class_bytes) in enumerate(
        zip(program.classes, bytes_of_classes, strict=True)
    ):
        problem_of_class = kind_problem(problem, device_class.devices.first)
        items = (
            class_bytes.items
            | {"fragmentation": int(allocated_and_fragments[number]) - class_bytes.allocated}
            | class_bytes.outside
        )
        memory.append(
            StageMemory(
                rank=number,
                devices=device_class.devices.size,
                layers=_layers_text(program, device_class),
                items=tuple(items.items()),
                allocated=class_bytes.allocated,
                reserved=int(reserved[number]),
                capacity=problem_of_class.cluster.node.accelerator.memory_bytes,
            )
        )
    return tuple(memory)


class _ClassBytes(NamedTuple):
    """Bytes of a device of one class.

    Args:
        items: allocated bytes by item.
        blocks: bytes of the allocator's blocks that stages share.
        outside: bytes outside the allocator by item.
    """

    items: dict[str, int]
    blocks: int
    outside: dict[str, int]

    @property
    def allocated(self) -> int:
        """Bytes of the allocated items, without fragments, buffers outside and the context."""
        return sum(self.items.values())


def _class_bytes(program: Program, costs: StageCosts, device_class: DeviceClass) -> _ClassBytes:
    """Peak bytes of a device of one class over all its stages: items, shared blocks, outside."""
    # Equal stages share their costs.
    steps = list(
        {
            id(step): step
            for place in device_class.families
            for step in costs.families[place].slices
        }.values()
    )
    first_slices = [costs.families[place].slices[0] for place in device_class.families]
    uses_of_step = Counter(map(id, first_slices))
    items: dict[str, int] = {}
    for key, first_slice in {id(step): step for step in first_slices}.items():
        for name, values in first_slice.static_bytes:
            value = int(values[0])
            items[name] = (
                max(items.get(name, 0), value)
                if name in _ONCE_A_DEVICE
                else items.get(name, 0) + value * uses_of_step[key]
            )
    # Peak of the activations that forwards keep until the gradients of their microbatch are done.
    items["activations"] = int(
        np.cumsum(kept_changes(program, costs, device_class)).max(initial=0)
    ) + paired_activations(
        np.concatenate([step.saved_bytes for step in steps]),
        np.concatenate([step.paired_bytes for step in steps]),
        pipelined=len(program.rows.row_start) > 2,
    )
    items["logits"] = max([int(s.logits_bytes[0]) for s in steps])
    # The logits are free when a layer of any stage is recomputed.
    items["temporary"] = (
        max([int(s.transient_bytes[0] + s.logits_bytes[0]) for s in steps]) - items["logits"]
    )
    # Blocks for logits and for recomputed activations serve all stages of the device.
    recompute_blocks = max([int(s.again_bytes[0]) for s in steps])
    other_blocks = max([int(s.blocks_bytes[0] - s.again_bytes[0]) for s in steps])
    return _ClassBytes(items, other_blocks + recompute_blocks, _bytes_outside_allocator(steps))


def _classes_as_ranks(bytes_of_classes: list[_ClassBytes]) -> StepBytes:
    """Bytes of the classes in the form of one step whose ranks are the classes."""
    no_ranks = np.zeros(0, dtype=np.int64)
    logits, temporary = (
        np.array([class_bytes.items[name] for class_bytes in bytes_of_classes], dtype=np.int64)
        for name in ("logits", "temporary")
    )
    return StepBytes(
        static_bytes=(),
        saved_bytes=no_ranks,
        paired_bytes=no_ranks,
        transient_bytes=temporary,
        logits_bytes=logits,
        blocks_bytes=np.array(
            [class_bytes.blocks for class_bytes in bytes_of_classes], dtype=np.int64
        ),
        again_bytes=no_ranks,
        outside_bytes=(
            (
                "outside",
                np.array(
                    [sum(class_bytes.outside.values()) for class_bytes in bytes_of_classes],
                    dtype=np.int64,
                ),
            ),
        ),
        host_bytes=(),
        host_saved_bytes=no_ranks,
    )


def _bytes_outside_allocator(steps: list[StepCosts]) -> dict[str, int]:
    """Bytes outside the allocator by item, the largest of any stage of a device."""
    bytes_by_item: dict[str, int] = {}
    for step in steps:
        for name, values in step.outside_bytes:
            bytes_by_item[name] = max(bytes_by_item.get(name, 0), int(values[0]))
    return bytes_by_item


def _layers_text(program: Program, device_class: DeviceClass) -> str:
    """Text of a class's layers with counts over its stages, such as ``embed + 16 layer``."""
    counts: dict[str, int] = {}
    for lane, chunk, _ in device_class.families:
        for segment in program.stages[lane][chunk].segments:
            counts[segment.block.name] = counts.get(segment.block.name, 0) + segment.count
    return " + ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items())
