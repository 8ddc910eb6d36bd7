"""Compute replaced by waits: a walker that takes and posts what a plan's device does, and sleeps
where it would compute."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar, cast

import torch

from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.chunk_passes import _Flow as Flow
from shardwright.execute.interpreter.prepared_step import Batch, PreparedStep
from shardwright.execute.interpreter.stage_layers import StageNode, stage_nodes
from shardwright.execute.transport.communication_requests import Answer, Task
from shardwright.program.layout.tensor_layout import Layout, count
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind

T = TypeVar("T")
Seconds = Mapping[tuple[int, int, int, int], float]
"""By (lane, chunk, kind, slice)."""

_SPIN_S: Final = 60e-6
_AT_ONCE_S: Final = 5e-4
"""An answer that comes later was waited for."""


def run_promptly() -> None:
    """Let sleeps of this thread and of those that it starts end within microseconds.

    Linux: prctl PR_SET_TIMERSLACK. Not by a real-time scheduler: packets that the kernel leaves to
    ksoftirqd would then wait for the ranks, 50 to 100 ms at the end of a step even on an idle
    machine.
    """
    ctypes.CDLL(None).prctl(29, 1000, 0, 0, 0)


def wait_until(end: float) -> None:
    """Sleep until `time.perf_counter()` is `end`, the last microseconds awake."""
    left = end - time.perf_counter() - _SPIN_S
    if left > 0:
        time.sleep(left)
    while time.perf_counter() < end:
        pass


class Waiting(Walker):
    """Walks the same row, takes and posts tensors of the same layouts as `Walker`; nodes make
    zeros, actions take `seconds`.

    A whole backward is one action, as in the Program: its cotangents leave when it is over.
    """

    def __init__(
        self,
        device: int,
        work: PreparedStep,
        batch: Batch,
        store: ParameterStore,
        *,
        seconds: Seconds,
    ) -> None:
        super().__init__(device, work, batch, store)
        self.seconds = seconds
        self.back = TaskKind.I
        self.free, self.waited = 0.0, True

    def _compute(self, kind: TaskKind, lane: int, chunk: int, part: int) -> None:
        # Work is queued on an accelerator: what waits for no message begins when the action before
        # it ended, not when the host gets there.
        begins = time.perf_counter() if self.waited else self.free
        self.free, self.waited = begins + self.seconds[lane, chunk, int(kind), part], False
        wait_until(self.free)

    def _take_one(
        self, source: Layout, wanted: Layout, key: Any, dtype: torch.dtype
    ) -> Task[torch.Tensor | None]:
        return (yield from self._timed(super()._take_one(source, wanted, key, dtype)))

    def _timed(self, task: Task[T]) -> Task[T]:
        """The same task; notes whether an answer let the device wait."""
        answer: Answer = None
        while True:
            try:
                request = task.send(answer)
            except StopIteration as end:
                return cast(T, end.value)
            asked = time.perf_counter()
            answer = yield request
            self.waited |= time.perf_counter() - asked > _AT_ONCE_S

    def _node_forward(
        self, node: StageNode, place: tuple[int, int, int, int], flow: Flow
    ) -> Task[None]:
        lane, chunk, _, part = place
        stage = self.work.stages[lane][chunk]
        layouts = self._output_layouts(node.makes, node.segment, stage, part=part)
        boxes = [
            next((h.box for h in layout if h.device == self.device), None) for layout, _ in layouts
        ]
        flow.values[node.number] = tuple(
            torch.zeros([count(i) for i in own], dtype=self.store.precision.compute)
            if own
            else None
            for own in boxes
        )
        flow.layouts[node.number] = layouts
        flow.outputs[node.makes] = node.number
        if node.number == len(stage_nodes(stage, self.work.model)) - 1:
            self._compute(TaskKind.F, lane, chunk, part)
        return
        yield

    def recompute_forward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Recompute is part of the backward's seconds."""
        return
        yield

    def _restore_node(
        self, node: StageNode, place: tuple[int, int, int, int], flow: Flow
    ) -> Task[None]:
        return
        yield

    def _node_backward(
        self, node: StageNode, place: tuple[int, int, int, int], flow: Flow
    ) -> Task[None]:
        if node.number == 0:
            self._compute(self.back, place[0], place[1], place[3])
        return
        yield

    def weight_backward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """Weight gradients; the microbatch is then forgotten."""
        self.flows.pop((lane, chunk, microbatch, part))
        self._compute(TaskKind.W, lane, chunk, part)
        return
        yield

    def full_backward(self, lane: int, chunk: int, microbatch: int, part: int) -> Task[None]:
        """A whole backward."""
        self.back = TaskKind.B
        yield from self.backward(lane, chunk, microbatch, part)
        self.back = TaskKind.I
        self.flows.pop((lane, chunk, microbatch, part))
