"""When sharded parameters are whole, and when gradients are summed: around every layer's work, or once a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from shardwright.execute.interpreter.stage_nodes import Node
from shardwright.execute.shares.flat_buckets import FlatBucket
from shardwright.execute.shares.parameters import ParameterStore, origin
from shardwright.execute.shares.shards import Bucket, gathered, summed
from shardwright.execute.transport.requests import Task
from shardwright.model.gradients import has_backward, runs_backward, without_gradient
from shardwright.model.ir.operator import Operator
from shardwright.program.instances import TaskKind

Views = dict[int, FlatBucket]


class Around:
    """What a device does around a layer's work; this one does nothing."""

    works = False
    """Whether it does anything."""

    def begin(self, node: Node, kind: TaskKind) -> Task[None]:
        """Before a pass of a layer; `kind`: of the action."""
        yield from ()

    def end(self, node: Node, *, weights: bool) -> Task[None]:
        """After it. `weights`: it made weight gradients."""
        yield from ()


NOTHING = Around()


@dataclass(slots=True)
class Cadenced(Around):
    """Parameters are gathered for each pass of a layer and dropped after it; gradients are summed after each microbatch's.

    Only of buckets that all devices of a party work on together; others are gathered and summed once a step. A backward needs the weights
    of what has one (`model.gradients`), and of what is made again for it; weight gradients those of what is trained.

    Args:
        buckets: of the device. pieces: of those whose parameters are sharded. uses, sums: gather at each use; sum after each microbatch.
        total: by bucket, the device's piece of the gradient of the microbatches so far.
    """

    device: int
    store: ParameterStore
    buckets: tuple[Bucket, ...]
    views: Views
    pieces: dict[int, torch.Tensor]
    uses: bool
    sums: bool
    total: dict[int, torch.Tensor] = field(default_factory=dict)
    _known: dict[tuple[int, TaskKind], tuple[Node, tuple[Bucket, ...]]] = field(default_factory=dict)

    @property
    def works(self) -> bool:  # type: ignore[override]
        """Some bucket has another cadence than the step's."""
        return any(self.gathers(b) or self.adds(b) for b in self.buckets)

    def gathers(self, bucket: Bucket) -> bool:
        """Its parameters are gathered at each use."""
        return self.uses and self.device in bucket.together and bucket.number in self.pieces

    def adds(self, bucket: Bucket) -> bool:
        """Its gradients are summed after each microbatch: of several parties by those that keep pieces of them."""
        if not (self.sums and self.device in bucket.together and bucket.trainable):
            return False
        sharers = bucket.sharing(self.device)
        return not sharers.parties or (bucket.in_parties and sharers.party(self.device).degrees[1] > 1)

    def begin(self, node: Node, kind: TaskKind) -> Task[None]:
        """See `Around`."""
        for bucket in filter(self.gathers, self._of(node, kind)):
            yield from filled(self.device, bucket, self.views[bucket.number], self.pieces[bucket.number])

    def end(self, node: Node, *, weights: bool) -> Task[None]:
        """See `Around`."""
        adding = [bucket for bucket in (self._of(node, TaskKind.W) if weights else ()) if self.adds(bucket)]
        for bucket in adding:
            piece = yield from summed(self.device, bucket, self.views[bucket.number], precision=self.store.precision, level=2)
            known = self.total.get(bucket.number)
            self.total[bucket.number] = piece if known is None else known.add_(piece)
        forgotten({b.number for b in adding}, self.views)
        dropped({b.number for b in self._of(node, TaskKind.F) if self.gathers(b)}, self.views)

    def _of(self, node: Node, kind: TaskKind) -> tuple[Bucket, ...]:
        """Buckets on the device of the parameters that a pass of a layer needs."""
        if (id(node), kind) not in self._known:
            run, model = node.segment.run, self.store.model
            keys = {origin(model, run, node.layer, o, p).key for o in needed(node, kind) for p in o.parameters}
            self._known[id(node), kind] = node, tuple(b for b in self.buckets if any(key in keys for key, _ in b.boxes))
        return self._known[id(node), kind][1]


def needed(node: Node, kind: TaskKind) -> tuple[Operator, ...]:
    """Operators of a layer whose parameters a pass of it needs."""
    block = node.segment.block
    if kind is not TaskKind.F and not has_backward(block):
        return ()
    if kind is TaskKind.W:
        return tuple(o for o in block.operators if any(p.trainable for p in o.parameters))
    if kind in (TaskKind.F, TaskKind.R) or node.recomputed or node.again:
        return block.operators
    constant = without_gradient(block)
    return tuple(o for o in block.operators if runs_backward(o, constant))


def filled(device: int, bucket: Bucket, view: FlatBucket, piece: torch.Tensor) -> Task[None]:
    """Gather a sharded parameter for use."""
    view.show((yield from gathered(device, bucket, piece, have=3, want=0, key="use")))


def dropped(numbers: set[int], views: Views) -> None:
    """Drop values of parts all of whose elements are in sharded buckets, of which `numbers` are."""
    keep = _elsewhere(numbers, views)
    for number in numbers:
        views[number].values = None
        for held in (part.held for part in views[number].parts):
            if id(held) not in keep:
                held.value = held.value.new_empty(0)


def forgotten(numbers: set[int], views: Views) -> None:
    """Drop the gradients of buckets that have been summed: a part that lies in other buckets too has zeros in their place."""
    keep = _elsewhere(numbers, views)
    for part in (part for number in numbers for part in views[number].parts):
        if id(part.held) not in keep:
            part.held.gradient = None
        elif part.held.gradient is not None:
            part.held.gradient[part.rows] = 0


def _elsewhere(numbers: set[int], views: Views) -> set[int]:
    """Identities of the parts that lie in other buckets than these."""
    return {id(part.held) for number, view in views.items() if number not in numbers for part in view.parts} if numbers else set()
