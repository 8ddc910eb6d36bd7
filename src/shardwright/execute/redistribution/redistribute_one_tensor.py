"""Redistribution of one tensor between layouts, and prefixes of request keys."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import torch

from shardwright.execute.redistribution.run_layout_transition import redistribute
from shardwright.execute.transport.communication_requests import Answer, Begin, End, T, Task
from shardwright.program.layout.tensor_layout import Layout


def move_tensor(
    value: torch.Tensor | None,
    source: Layout,
    target: Layout,
    *,
    device: int,
    key: Hashable,
    dtype: torch.dtype,
    on: torch.device | str,
    across: bool = False,
) -> Task[torch.Tensor | None]:
    """Redistribute a device's tensor from `source` to `target`; None if it has no part of `target`.

    None for a device that is only in `source` or in neither.

    Args:
        dtype, on: format and torch device of the tensor, for a device that is not in `source`.
    """
    if source == target or not any(h.device == device for h in (*source, *target)):
        return value
    local_tensors = (
        (value,) if value is not None and any(h.device == device for h in source) else ()
    )
    moved = yield from redistribute(
        local_tensors, source, target, device=device, key=key, dtype=dtype, on=on, across=across
    )
    return moved[0] if moved else None


def with_key_prefix(task: Task[T], key: Hashable) -> Task[T]:
    """Run a task with `key` put before the keys of all its requests."""
    answer: Answer = None
    while True:
        try:
            request = task.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        assert not isinstance(request, Begin | End), "a move begins no side task"
        answer = yield replace(request, key=(key, request.key))
