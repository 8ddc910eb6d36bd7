"""Sum of the load-balancing loss's counts over all routers of a microbatch.

It decides which devices count, which one adds, and which read the sum.

Every device sends the counts of its tokens after the forward pass of a chunk. The root, a device of
the last chunk with routers, receives them before the first backward pass of the microbatch, when
all forward passes are done, and sends their sum to every device whose routers have a gradient.
Sends never wait, and the messages that the root waits for were sent before, so no order of a plan
can lock up.

The loss is of a microbatch (all samples that a lane runs together, whatever devices share them),
and the step's loss is the mean over microbatches, each weighted by its samples. It equals the loss
of the unsplit model with the same microbatches.

Leaves out: routers of prediction modules and teachers. The predicted time leaves out the messages,
which have twice as many elements as there are experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import cast

import torch

from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import Routed, first_holders
from shardwright.execute.interpreter.iterate_device_passes_in_order import Turn
from shardwright.execute.interpreter.stage_layers import StageNode, stage_nodes
from shardwright.execute.numerics.experts.load_balancing_loss import balance_loss, router_counts
from shardwright.execute.transport.communication_requests import Post, Take, Task
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.find_routers_with_balancing_loss_or_biases import (
    balanced_routers,
    router_shapes,
)
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator
from shardwright.model.tensors_without_gradient import (
    computes_input_gradient,
    has_backward,
    without_gradient,
)
from shardwright.program.stages.stage_segments import StageParts
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBalance:
    """Devices of a lane that count tokens of its routers, add the counts and read the sum.

    Args:
        counting: (device, chunk) pairs that have tokens to count.
        reading: (device, chunk) pairs with routers that have a gradient.
        root: the device that adds the counts.
        shape: the experts' shape, the same for every router.
        share: a microbatch's share of the step's samples.
    """

    counting: tuple[tuple[int, int], ...]
    reading: frozenset[tuple[int, int]]
    root: int
    shape: ExpertShape
    share: float

    @property
    def readers(self) -> tuple[int, ...]:
        """Devices, except the root, whose routers need the root's sum of token counts."""
        return tuple(sorted({device for device, _ in self.reading} - {self.root}))


def lane_balances(
    model: Model,
    lanes: Sequence[Lane],
    stages: Sequence[Sequence[StageParts]],
    *,
    length: int,
    samples: int,
) -> tuple[LaneBalance | None, ...]:
    """By lane, devices that count router tokens, add counts and read sums; None without routers.

    `training.unsupported_router_settings` rejects routers of different shapes.

    Args:
        length: number of positions of the text.
        samples: number of samples of a step.
    """
    shapes = router_shapes(model)
    if not shapes:
        return (None,) * len(lanes)
    pairs = zip(lanes, stages, strict=True)
    return tuple(
        _lane_balance(model, lane, parts, shapes[0], length=length, samples=samples)
        for lane, parts in pairs
    )


def _lane_balance(
    model: Model,
    lane: Lane,
    stages: Sequence[StageParts],
    shape: ExpertShape,
    *,
    length: int,
    samples: int,
) -> LaneBalance:
    """Devices that count, add and read token counts of a lane's routers (root: of last chunk)."""
    counting: dict[tuple[int, int], None] = {}
    reading: set[tuple[int, int]] = set()
    for stage in stages:
        for node in stage_nodes(stage, model):
            for operator in balanced_routers(node.block):
                holders = first_holders(
                    node.segment, operator, length=length, first_device=stage.base
                )
                counting |= {(device, stage.chunk): None for device in sorted(holders)}
                if _router_has_gradient(node, operator):
                    reading |= {
                        (device + stage.base, stage.chunk)
                        for device in node.segment.cells.cells.get(operator.klass, {})
                    }
    last = max((chunk for _, chunk in counting), default=-1)
    together = lane.samples // lane.microbatches
    return LaneBalance(
        counting=tuple(counting),
        reading=frozenset(reading),
        root=min((device for device, chunk in counting if chunk == last), default=-1),
        shape=shape,
        share=together / samples,
    )


def _router_has_gradient(node: StageNode, operator: Operator) -> bool:
    """True if backward computes the gradient of the router's logits."""
    return has_backward(node.block) and computes_input_gradient(
        operator, without_gradient(node.block)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Counts of a microbatch's routers and the loss's factor, for gradients of the balancing loss.

    `total`: counts of all routers of the microbatch; `factor`: the loss's factor in the step's
    loss.
    """

    total: torch.Tensor
    factor: float


@dataclass(slots=True, kw_only=True)
class Balancer:
    """One device's counts, sums and messages for the load-balancing loss of a step.

    Args:
        lanes: the devices that count, add and read, for each lane of the plan.
        coefficient: factor of the load-balancing loss.
        length: positions of the text.
        on: the torch device that holds the tensors.
        own: this device's counts by (lane, chunk, microbatch).
        totals: sums by (lane, microbatch) that this device has computed or received.
        holders: by (lane, chunk, node, operator), whether the device counts its tokens.
    """

    device: int
    lanes: tuple[LaneBalance | None, ...]
    coefficient: float
    length: int
    on: torch.device | str
    own: dict[tuple[int, int, int], torch.Tensor] = field(default_factory=dict)
    totals: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    holders: dict[tuple[int, int, int, str], bool] = field(default_factory=dict)

    def add(self, place: Turn, node: StageNode, routed: Routed, *, first_device: int) -> None:
        """Add a layer's router counts to its microbatch's, if no lower device holds its tokens."""
        lane, chunk, microbatch, _ = place
        for operator in (o for o in balanced_routers(node.block) if o.name in routed):
            key = (lane, chunk, node.number, operator.name)
            if key not in self.holders:
                self.holders[key] = self.device in first_holders(
                    node.segment, operator, length=self.length, first_device=first_device
                )
            if self.holders[key]:
                assert operator.experts is not None
                counts, earlier_counts = (
                    router_counts(routed[operator.name][0], shape=operator.experts),
                    self.own.get((lane, chunk, microbatch)),
                )
                self.own[lane, chunk, microbatch] = (
                    counts if earlier_counts is None else earlier_counts + counts
                )

    def post(self, lane: int, chunk: int, microbatch: int) -> Task[None]:
        """Send a chunk's router counts of a microbatch to the root; nothing if this is the root."""
        lane_balance = self.lanes[lane]
        if (
            lane_balance is not None
            and (self.device, chunk) in lane_balance.counting
            and self.device != lane_balance.root
        ):
            counts = self._pop_counts(lane_balance, (lane, chunk, microbatch))
            yield Post(
                to=lane_balance.root, tensor=counts, key=("balance", lane, chunk, microbatch)
            )

    def balance(self, lane: int, chunk: int, microbatch: int) -> Task[Balance | None]:
        """Sum of a microbatch's router counts, and loss factor; None if the chunk reads no sum."""
        lane_balance = self.lanes[lane]
        if lane_balance is None or (self.device, chunk) not in lane_balance.reading:
            return None
        total = yield from self._total(lane_balance, lane, microbatch)
        return Balance(total=total, factor=self.coefficient * lane_balance.share)

    def losses(self, lanes: Sequence[Lane]) -> Task[torch.Tensor]:
        """Load-balancing loss, weighted, of all microbatches whose counts this device adds; else 0.

        Called once, at the end of the step.
        """
        value = torch.zeros((), dtype=torch.float64, device=self.on)
        for number, (lane_balance, lane) in enumerate(zip(self.lanes, lanes, strict=True)):
            if lane_balance is None or lane_balance.root != self.device:
                continue
            for microbatch in range(lane.microbatches):
                total = yield from self._total(lane_balance, number, microbatch)
                value = value + self.coefficient * lane_balance.share * balance_loss(
                    total, shape=lane_balance.shape
                )
        return value

    def _pop_counts(self, lane_balance: LaneBalance, key: tuple[int, int, int]) -> torch.Tensor:
        """Take a chunk's router counts of a microbatch out of the device's; zeros if none."""
        counts = self.own.pop(key, None)
        return (
            torch.zeros((2, lane_balance.shape.experts), dtype=torch.float64, device=self.on)
            if counts is None
            else counts
        )

    def _total(self, lane_balance: LaneBalance, lane: int, microbatch: int) -> Task[torch.Tensor]:
        """Sum of a microbatch's router counts: added by the root, which sends it to the readers.

        Counts are added in the order of chunks and devices.
        """
        if (lane, microbatch) in self.totals:
            return self.totals[lane, microbatch]
        shape, key = (2, lane_balance.shape.experts), ("balance", lane, microbatch)
        if self.device != lane_balance.root:
            total = cast(
                torch.Tensor,
                (yield Take(source=lane_balance.root, shape=shape, key=key, dtype=torch.float64)),
            )
        else:
            total = torch.zeros(shape, dtype=torch.float64, device=self.on)
            for device, chunk in lane_balance.counting:
                if device == self.device:
                    total = total + self._pop_counts(lane_balance, (lane, chunk, microbatch))
                    continue
                count_key = ("balance", lane, chunk, microbatch)
                total = total + cast(
                    torch.Tensor,
                    (yield Take(source=device, shape=shape, key=count_key, dtype=torch.float64)),
                )
            for reader in lane_balance.readers:
                yield Post(to=reader, tensor=total, key=key)
        self.totals[lane, microbatch] = total
        return total


def balancer(
    device: int,
    lanes: tuple[LaneBalance | None, ...],
    *,
    coefficient: float,
    length: int,
    on: torch.device | str,
) -> Balancer | None:
    """Create a device's `Balancer`; None if the step has no load-balancing loss."""
    if not coefficient or not any(lanes):
        return None
    return Balancer(device=device, lanes=lanes, coefficient=coefficient, length=length, on=on)
