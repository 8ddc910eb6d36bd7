"""What a device keeps between forward and backward, as bytes of distinct storages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from shardwright.execute.device_state.saved_layer_state import LayerState
from shardwright.execute.device_state.stored_parameter_parts import Key
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.run_device_actions_of_step import device_task
from shardwright.execute.numerics.base.run_precision import precision_of
from shardwright.execute.training.device_training_state import prepare_training
from shardwright.execute.transport.communication_requests import Task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.simulate_plan import lower
from tests.execute.small_plans import DENSE4, Small


def tensors_of(state: LayerState) -> Iterator[torch.Tensor]:
    """All that a layer's state refers to on the device."""
    yield from (away.rest for away, _ in state.offloaded)
    for ran in state.operator_states.values():
        yield from (t for values in (*ran.saved.inputs, ran.saved.own, *ran.inputs) for t in values)
    yield from (t for values in state.inputs.values() for t in values if t is not None)


def storages(tensors: Iterator[torch.Tensor]) -> dict[int, int]:
    """Bytes by storage; integers (ids, routes) and stand-ins of one element left out."""
    return {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()
        for t in tensors
        if t.is_floating_point() and any(t.stride())
    }


class Watched(Walker):
    """Notes the bytes that it keeps of a microbatch after its forward, and the most when a layer of
    it goes back."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.after: list[int] = []
        self.most = 0

    def kept(self) -> int:
        return sum(
            storages(
                t
                for flow in self.flows.values()
                for s in flow.states.values()
                for t in tensors_of(s)
            ).values()
        )

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
        body=small.body.replace("order ", f"{added}order ", 1),
        devices=small.devices,
        batch=small.batch,
        whole=small.whole,
        zero=small.zero,
    )


ONE = Small(
    body="lane main samples 2 in 1\n  stages embed+4+head on 0\n    all = .\norder 1f1b(main)\n",
    devices=1,
    batch=2,
    whole=DENSE4,
)


@lru_cache(maxsize=4)
def gradients(small: Small) -> tuple[dict[tuple[int, Key, Any], torch.Tensor], dict[int, Watched]]:
    """By device, key and box; and what was watched, in the job's formats."""
    known = prepare_training(small.model, small.job, small.plan, precision=precision_of(small.job))
    members, walkers = small.members(known), {}

    def walking(device: int, *given: Any) -> Watched:
        return walkers.setdefault(device, Watched(device, *given))

    run_in_process(
        {
            d: device_task(
                d, known.work, batch=small.batches(0), store=m.store, make_walker=walking
            )
            for d, m in members.items()
        }
    )
    return {
        (d, key, box): held.gradient
        for d, own in members.items()
        for key, boxes in own.store.held.items()
        for box, held in boxes.items()
        if held.gradient is not None
    }, walkers


def saved_bytes(small: Small, runtime: str) -> int:
    """What lowering says that a microbatch keeps."""
    problem = Problem(
        model=small.model,
        cluster=parse_cluster("h100-sxm:8"),
        job=small.job,
        runtime=load_runtime(runtime),
    )
    _, costs = lower(problem, small.plan, unfolded=True)
    return int(costs.step(0, 0, 0).saved_bytes[0])
