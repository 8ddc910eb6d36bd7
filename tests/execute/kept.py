"""What a device keeps between forward and backward, as bytes of distinct storages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from shardwright.execute.device import Walker
from shardwright.execute.layer_state import LayerState
from shardwright.execute.requests import Task
from tests.execute.small_plans import Small


def tensors_of(state: LayerState) -> Iterator[torch.Tensor]:
    """All that a layer's state refers to."""
    for ran in state.ran.values():
        yield from (t for values in (*ran.saved.inputs, ran.saved.own, *ran.inputs) for t in values)
    yield from (t for t in (state.stream, state.memory) if t is not None)


def storages(tensors: Iterator[torch.Tensor]) -> dict[int, int]:
    """Bytes by storage; integers (ids, routes) and stand-ins of one element left out."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.is_floating_point() and any(t.stride())}


class Watched(Walker):
    """Notes the bytes that it keeps of a microbatch after its forward, and the most when a layer of it goes back."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.after: list[int] = []
        self.most = 0

    def kept(self) -> int:
        return sum(storages(t for flow in self.flows.values() for s in flow.states.values() for t in tensors_of(s)).values())

    def forward(self, *place: int) -> Task[None]:
        before = self.kept()
        yield from super().forward(*place)
        self.after.append(self.kept() - before)

    def _node_backward(self, *given: Any) -> Task[None]:
        self.most = max(self.most, self.kept())
        yield from super()._node_backward(*given)


def with_lines(small: Small, *lines: str) -> Small:
    """The plan with lines more in each stage."""
    added = "".join(f"    {line}\n" for line in lines)
    return Small(
        body=small.body.replace("order ", f"{added}order ", 1), devices=small.devices, batch=small.batch, whole=small.whole, zero=small.zero
    )
