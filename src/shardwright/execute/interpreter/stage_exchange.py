"""Exchange of values between the stages and layouts of a plan, for one device."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

import torch

from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.numerics.base.operator_protocol import Gradients
from shardwright.execute.redistribution.redistribute_one_tensor import move_tensor
from shardwright.execute.redistribution.run_layout_transition import (
    EdgeState,
    receive_edge,
    send_edge,
)
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.layout.tensor_layout import Layout

Layouts = tuple[tuple[Layout, bool], ...]
"""For every extent of an output: its layout, and True if it holds integers, which have no
gradient."""
Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageExchange:
    """Sends, receives and redistributes values of a device, extent by extent.

    Args:
        halfway: state of each exchange that this device has begun as a sender.
    """

    device: int
    store: ParameterStore
    halfway: dict[object, EdgeState | None] = field(default_factory=dict)

    def redistribute(
        self,
        values: Gradients,
        sources: Layouts,
        targets: Layouts,
        key: Key,
        *,
        are_gradients: bool = False,
    ) -> Task[Gradients]:
        """Redistribute every extent of a value to another layout.

        `are_gradients`: the values are gradients, which integers do not have.
        """
        redistributed: list[torch.Tensor | None] = []
        for index, (value, (source, numbers), (target, _)) in enumerate(
            zip(values, sources, targets, strict=True)
        ):
            dtype, on = torch.int64 if numbers else self.store.precision.compute, self.store.on
            if are_gradients and numbers:
                redistributed.append(None)
            else:
                redistributed.append(
                    (
                        yield from move_tensor(
                            value,
                            source,
                            target,
                            device=self.device,
                            key=_move_key(key, index),
                            dtype=dtype,
                            on=on,
                        )
                    )
                )
        return tuple(redistributed)

    def send(
        self,
        values: Gradients,
        sources: Layouts,
        targets: Layouts,
        key: Key,
        *,
        are_gradients: bool = False,
    ) -> Task[None]:
        """Send every extent of a value over an edge, and store the state of each exchange."""
        for index, (value, (source, numbers), (target, _)) in enumerate(
            zip(values, sources, targets, strict=True)
        ):
            if any(h.device == self.device for h in source) and not (are_gradients and numbers):
                local_parts, move_key = (value,) if value is not None else (), _move_key(key, index)
                self.halfway[move_key] = yield from send_edge(
                    local_parts, source, target, device=self.device, key=move_key
                )

    def receive(
        self, sources: Layouts, targets: Layouts, key: Key, *, are_gradients: bool = False
    ) -> Task[Gradients]:
        """Receive every extent of a value over an edge; None for extents not on this device."""
        received: list[torch.Tensor | None] = []
        for index, ((source, numbers), (target, _)) in enumerate(
            zip(sources, targets, strict=True)
        ):
            if not any(h.device == self.device for h in target) or (are_gradients and numbers):
                received.append(None)
            else:
                dtype = torch.int64 if numbers else self.store.precision.compute
                received.append(
                    (yield from self._receive_extent(source, target, _move_key(key, index), dtype))
                )
        return tuple(received)

    def _receive_extent(
        self, source: Layout, target: Layout, key: Key, dtype: torch.dtype
    ) -> Task[torch.Tensor | None]:
        """Receive one extent of a value over an edge; None if the device gets no tensor."""
        edge_state, on = self.halfway.pop(key, None), self.store.on
        received = yield from receive_edge(
            edge_state, source, target, device=self.device, key=key, dtype=dtype, on=on
        )
        return received[0] if received else None


def _move_key(key: Key, index: int) -> Key:
    """Message key of one extent of a value: the value's key, and the extent's index unless 0."""
    return (*key, index) if index else key
