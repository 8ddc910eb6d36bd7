"""The Program of a general plan: its stages, action rows, device classes and tasks."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import Int32Array, distinct
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.device_classes_with_equal_actions import DeviceClass, Posts
from shardwright.program.orders.plan_action_rows import ActionRows
from shardwright.program.stages.stage_messages import LaneEdge, Messages
from shardwright.program.stages.stage_segments import StageParts
from shardwright.program.task_kind_stream_and_dependency_arrays import Instances, Templates
from shardwright.strategy.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A lowered general plan: its stages, rows, device classes and tasks."""

    plan: Plan
    stages: tuple[tuple[StageParts, ...], ...]
    rows: ActionRows
    classes: tuple[DeviceClass, ...]
    edges: tuple[LaneEdge, ...]
    posts: Posts
    templates: Templates
    instances: Instances


def receiving_classes(messages: Messages, class_of: Int32Array) -> dict[int, tuple[int, ...]]:
    """For each sending class, the classes that its devices send messages to."""
    ends = class_of[messages.sends[:, :2] + messages.base].astype(np.int64)
    count = int(class_of.max(initial=0)) + 1
    classes_reached: dict[int, tuple[int, ...]] = {}
    for code in distinct(ends[:, 0] * count + ends[:, 1]).tolist():
        source, target = divmod(code, count)
        classes_reached[source] = (*classes_reached.get(source, ()), target)
    return classes_reached
