"""Times and bytes of the stages of a general plan, as input of the search of its orders."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import UsageError
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.orders.action_graph import Edges
from shardwright.search.orders.order_problem import whole_numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """Times and bytes of the actions of each stage, for one microbatch (read-only integers).

    For one slice where the lane is cut into slices. Where the whole backward is one action, its
    time is `input` and `weight` is 0.

    Args:
        forward, input, weight: (lanes of the plan, stages) time of F, I and W, in any one unit; 0
            for stages that a shorter lane does not have.
        send_forward, send_backward: (lanes, stages) time from the end of a stage's F (I) to the
            earliest start of that of the next stage (the stage before).
        held: (lanes, stages) bytes kept on each device from F's start to I's end.
        stash: (lanes, stages) the part of `held` that stays until W's end.
        limit: (devices of the plan,) memory of each device, in the unit of `held`; None = no limit.
        edges: pairs of stages with a dependency, by lane; None = each lane is a chain.

    Raises:
        UsageError: invalid shapes or numbers.
    """

    forward: IntArray
    input: IntArray
    weight: IntArray
    send_forward: IntArray
    send_backward: IntArray
    held: IntArray
    stash: IntArray
    limit: IntArray | None = None
    edges: Edges | None = None

    def __post_init__(self) -> None:
        shape = np.shape(self.forward)
        for name in (
            "forward",
            "input",
            "weight",
            "send_forward",
            "send_backward",
            "held",
            "stash",
            "limit",
        ):
            given = getattr(self, name)
            if name == "limit" and given is None:
                continue
            array = whole_numbers(name, given)
            if array.ndim != 1 if name == "limit" else array.shape != shape or len(shape) != 2:
                raise UsageError(
                    f"{name} has shape {array.shape}; times are (lanes, stages), limit is"
                    " (devices,)"
                )
            object.__setattr__(self, name, array)
        if (self.stash > self.held).any():
            raise UsageError(
                "stash is the part of held that stays after I: it must be at most held"
            )
