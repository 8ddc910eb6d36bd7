"""Exchange of the load-balancing loss's counts over a microbatch's routers: which devices count,
which add up, and which read the sum.

Every device posts the counts of its tokens behind the forward of a chunk. The root, a device of the
last chunk with routers, takes them before the first backward of the microbatch, when all forwards
are done, and posts their sum to every device whose routers have a gradient. Posts never wait, and
what the root waits for was posted before: no order of a plan can lock up.

The loss is of a microbatch (all samples that a lane runs together, whatever devices share them),
and the step's is the mean over microbatches, each weighed by its samples. It is that of the unsplit
model with the same microbatches.

Leaves out: prediction modules and teachers, whose routers are not counted. The messages, of twice
the number of experts, have no price.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import cast

import torch

from shardwright.execute.interpreter.device_actions import Turn
from shardwright.execute.interpreter.expert_loads import Routed, first_holders
from shardwright.execute.interpreter.stage_nodes import Node, stage_nodes
from shardwright.execute.numerics.experts.load_balancing_loss import balance_loss, router_counts
from shardwright.execute.transport.requests import Post, Take, Task
from shardwright.lazy_dataclass import dataclass
from shardwright.model.backward_reach import computes_input_gradient, has_backward, without_gradient
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import ExpertShape, Operator
from shardwright.model.router_balancing import balanced_routers, router_shapes
from shardwright.program.stages.stage_segments import StageParts
from shardwright.strategy.plan.lane import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBalance:
    """The routers of a lane.

    Args:
        counting: (device, chunk) that have tokens to count.
        reading: devices with routers that have a gradient, by chunk.
        root: adds up.
        shape: of every router.
        share: of the step's samples that a microbatch has.
    """

    counting: tuple[tuple[int, int], ...]
    reading: frozenset[tuple[int, int]]
    root: int
    shape: ExpertShape
    share: float

    @property
    def readers(self) -> tuple[int, ...]:
        """Devices that are told the sum, but for the root."""
        return tuple(sorted({device for device, _ in self.reading} - {self.root}))


def lane_balances(
    model: Model,
    lanes: Sequence[Lane],
    stages: Sequence[Sequence[StageParts]],
    *,
    length: int,
    samples: int,
) -> tuple[LaneBalance | None, ...]:
    """The routers of each lane; None of a model without.

    Args:
        length: positions of the text.
        samples: of a step.

    Routers of unlike shapes are refused where the loss is computed (`training.routers`).
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
    """The routers of one lane."""
    counting: dict[tuple[int, int], None] = {}
    reading: set[tuple[int, int]] = set()
    for stage in stages:
        for node in stage_nodes(stage, model):
            for operator in balanced_routers(node.block):
                holders = first_holders(node.segment, operator, length=length, base=stage.base)
                counting |= {(device, stage.chunk): None for device in sorted(holders)}
                if _asks(node, operator):
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


def _asks(node: Node, operator: Operator) -> bool:
    return has_backward(node.block) and computes_input_gradient(
        operator, without_gradient(node.block)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Inputs of a router's balancing gradient: the counts of all routers of the microbatch, and the
    factor of the loss in the step's loss.
    """

    total: torch.Tensor
    factor: float


@dataclass(slots=True, kw_only=True)
class Balancer:
    """A device's part in the load-balancing loss of a step.

    Args:
        lanes: of the plan.
        coefficient: of the loss.
        length: positions of the text.
        on: where tensors are.
        own: counts by (lane, chunk, microbatch).
        totals: sums by (lane, microbatch) that are known here.
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

    def add(self, place: Turn, node: Node, routed: Routed, *, base: int) -> None:
        """Count what the routers of a layer made of the device's tokens, where no other device
        counts the same ones.
        """
        lane, chunk, microbatch, _ = place
        for operator in (o for o in balanced_routers(node.block) if o.name in routed):
            key = (lane, chunk, node.number, operator.name)
            if key not in self.holders:
                self.holders[key] = self.device in first_holders(
                    node.segment, operator, length=self.length, base=base
                )
            if self.holders[key]:
                assert operator.experts is not None
                counts, known = (
                    router_counts(routed[operator.name][0], shape=operator.experts),
                    self.own.get((lane, chunk, microbatch)),
                )
                self.own[lane, chunk, microbatch] = counts if known is None else known + counts

    def post(self, lane: int, chunk: int, microbatch: int) -> Task[None]:
        """Send the counts of a chunk to the root. All slices of the microbatch have run forward
        there.
        """
        known = self.lanes[lane]
        if (
            known is not None
            and (self.device, chunk) in known.counting
            and self.device != known.root
        ):
            counts = self._own(known, (lane, chunk, microbatch))
            yield Post(to=known.root, tensor=counts, key=("balance", lane, chunk, microbatch))

    def balance(self, lane: int, chunk: int, microbatch: int) -> Task[Balance | None]:
        """The `Balance` that the routers of a chunk need in backward; None where none of them has a
        gradient.
        """
        known = self.lanes[lane]
        if known is None or (self.device, chunk) not in known.reading:
            return None
        total = yield from self._total(known, lane, microbatch)
        return Balance(total=total, factor=self.coefficient * known.share)

    def losses(self, lanes: Sequence[Lane]) -> Task[torch.Tensor]:
        """This device's part of the step's loss: that of every microbatch of the lanes whose root
        it is. Called once, at the end.
        """
        value = torch.zeros((), dtype=torch.float64, device=self.on)
        for number, (known, lane) in enumerate(zip(self.lanes, lanes, strict=True)):
            if known is None or known.root != self.device:
                continue
            for microbatch in range(lane.microbatches):
                total = yield from self._total(known, number, microbatch)
                value = value + self.coefficient * known.share * balance_loss(
                    total, shape=known.shape
                )
        return value

    def _own(self, known: LaneBalance, key: tuple[int, int, int]) -> torch.Tensor:
        """The device's counts of a chunk: zeros where a short slice left it no token."""
        own = self.own.pop(key, None)
        return (
            torch.zeros((2, known.shape.experts), dtype=torch.float64, device=self.on)
            if own is None
            else own
        )

    def _total(self, known: LaneBalance, lane: int, microbatch: int) -> Task[torch.Tensor]:
        """The sum of all counts of a microbatch, added in the order of chunks and devices."""
        if (lane, microbatch) in self.totals:
            return self.totals[lane, microbatch]
        shape, key = (2, known.shape.experts), ("balance", lane, microbatch)
        if self.device != known.root:
            total = cast(
                torch.Tensor,
                (yield Take(source=known.root, shape=shape, key=key, dtype=torch.float64)),
            )
        else:
            total = torch.zeros(shape, dtype=torch.float64, device=self.on)
            for device, chunk in known.counting:
                if device == self.device:
                    total = total + self._own(known, (lane, chunk, microbatch))
                    continue
                own = ("balance", lane, chunk, microbatch)
                total = total + cast(
                    torch.Tensor,
                    (yield Take(source=device, shape=shape, key=own, dtype=torch.float64)),
                )
            for reader in known.readers:
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
    """A device's part in the load-balancing loss; None where none is computed."""
    if not coefficient or not any(lanes):
        return None
    return Balancer(device=device, lanes=lanes, coefficient=coefficient, length=length, on=on)
