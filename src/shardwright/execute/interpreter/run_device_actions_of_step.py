"""Coroutine that runs one device's actions of a step under any plan.

It yields every communication with other devices to its transport as a request.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from shardwright.execute.device_state.stored_parameter_parts import ParameterStore
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import ExpertLoads
from shardwright.execute.interpreter.gather_and_reduce_hooks import NO_HOOKS, LayerHooks
from shardwright.execute.interpreter.iterate_device_passes_in_order import actions
from shardwright.execute.interpreter.prepared_step import Batch, PreparedStep
from shardwright.execute.interpreter.step_recorder import Tell, ignore_event
from shardwright.execute.transport.communication_requests import Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind


@dataclass(slots=True)
class DeviceOutcome:
    """Results of one device's step.

    Args:
        losses: sum of losses, by (lane, microbatch, token box).
        store: the device's parameters with their gradients.
        balance: the device's part of the step's load-balancing loss; None: no such loss is
            computed.
    """

    losses: dict[object, torch.Tensor]
    store: ParameterStore
    balance: torch.Tensor | None = None


def device_task(
    device: int,
    work: PreparedStep,
    *,
    batch: Batch,
    store: ParameterStore,
    tell: Tell = ignore_event,
    make_walker: WalkerFactory | None = None,
    hooks: LayerHooks = NO_HOOKS,
    loads: ExpertLoads | None = None,
) -> Task[DeviceOutcome]:
    """Run a device's actions of a step in order; return token losses and its unsummed gradients.

    Gradients are the device's own: `execute.device_state.sum_each_parameter_gradient_over_devices`
    sums them over devices.

    Args:
        tell: called with each action when it begins.
        make_walker: makes the object that runs the actions; None = a `Walker`, which computes them.
        hooks: called before and after each layer.
        loads: counts the choices of routers with a bias; None: they are not counted.
    """
    walker = (make_walker or Walker)(device, work, batch, store)
    walker.hooks, walker.loads = hooks, loads
    for kind, place in actions(device, work.rows):
        tell(kind, place)
        if kind is TaskKind.F:
            yield from walker.forward(*place)
        elif kind is TaskKind.R:
            yield from walker.recompute_forward(*place)
        elif kind is TaskKind.I:
            yield from walker.backward(*place)
        elif kind is TaskKind.W:
            yield from walker.weight_backward(*place)
        else:
            yield from walker.full_backward(*place)
    balance = None if walker.balancer is None else (yield from walker.balancer.losses(work.lanes))
    return DeviceOutcome(losses=walker.losses, store=store, balance=balance)


def forward_task(
    device: int,
    work: PreparedStep,
    *,
    batch: Batch,
    store: ParameterStore,
    hooks: LayerHooks = NO_HOOKS,
) -> Task[DeviceOutcome]:
    """Run only the forward actions of a step, in its order, and return the losses of tokens.

    Nothing is stored for a backward pass. A forward pass waits only for forward passes, so the
    order without backward passes cannot lock up.
    """
    walker = Walker(device, work, batch, store)
    walker.hooks, walker.balancer = hooks, None
    for kind, place in actions(device, work.rows):
        if kind is TaskKind.F:
            yield from walker.forward(*place)
            del walker.flows[place]
    return DeviceOutcome(losses=walker.losses, store=store)


WalkerFactory = Callable[[int, PreparedStep, Batch, ParameterStore], Walker]
"""Makes a device's walker of a step: `Walker` itself, or a subclass that replaces computations."""
