"""Times and bytes of the stages of a general plan for the search of its orders."""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.errors import UsageError
from shardwright.lazy_dataclass import dataclass
from shardwright.program.orders.action_graph import Edges
from shardwright.search.orders.order_problem import whole_numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTimes:
    """Times and bytes of the actions of each stage, for one microbatch, or one slice where the lane
    is cut (read-only integers).

    Where the whole backward is one action, its time is `input` and `weight` is 0.

    Args:
        forward, input, weight: (lanes of the plan, stages) time of F, I and W, in any one unit;
            what a shorter lane does not use is 0.
        send_forward, send_backward: the same, from the end of a stage's F (I) to where that of the
            next stage (the one before) may start.
        held: the same, kept on each device from F's start to I's end.
        stash: of that, what stays until W's end; at most `held`.
        limit: (devices of the plan,) most that each may keep, in the unit of `held`; None = no
            limit.
        edges: stages that feed one another, by lane; None = each lane is a chain.

    Raises:
        UsageError: shapes or numbers make no sense.
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
            raise UsageError("stash is what stays of held: it cannot be more")
