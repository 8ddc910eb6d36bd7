"""A device's one tensor of a layout, moved to another; and requests with the keys of what they are
for.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch

from shardwright.execute.redistribution.redistribute import redistribute
from shardwright.execute.transport.requests import Answer, Begin, End, T, Task
from shardwright.program.layout.tensor_layout import Layout


def moved(
    value: torch.Tensor | None,
    source: Layout,
    wanted: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype,
    on: torch.device | str,
    across: bool = False,
) -> Task[torch.Tensor | None]:
    """The device's tensor in `wanted`; None for a device that neither layout, or only `source`,
    has.

    Args:
        dtype, on: of the tensor, and where it is, for a device that `source` has not.
    """
    if source == wanted or not any(h.device == device for h in (*source, *wanted)):
        return value
    given = (value,) if value is not None and any(h.device == device for h in source) else ()
    found = yield from redistribute(
        given, source, wanted, device=device, key=key, dtype=dtype, on=on, across=across
    )
    return found[0] if found else None


def scoped(task: Task[T], key: Hashable) -> Task[T]:
    """`task` with `key` before the keys of all that it asks."""
    answer: Answer = None
    while True:
        try:
            request = task.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        assert not isinstance(request, Begin | End), "nothing is begun inside of a move"
        answer = yield replace(request, key=(key, request.key))
