"""When sharded parameters are whole, and when gradients are summed: beside the work of the layers
before and behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from shardwright.execute.device_state.device_parameters import ParameterStore, origin
from shardwright.execute.device_state.flat_buckets import FlatBucket
from shardwright.execute.device_state.optimizer_shards import Bucket, gathered, summed
from shardwright.execute.device_state.state_owner_exchange import owned
from shardwright.execute.interpreter.stage_nodes import Node
from shardwright.execute.numerics.base.run_precision import Precision
from shardwright.execute.transport.requests import Beside, Task, begun, ended
from shardwright.model.backward_reach import has_backward, runs_backward, without_gradient
from shardwright.model.ir.operator import Operator
from shardwright.program.task_arrays import TaskKind

Views = dict[int, FlatBucket]


class Around:
    """Hooks that a device runs around a layer's work; these do nothing."""

    works = False
    """Whether it does anything."""

    def begin(self, node: Node, kind: TaskKind, *, then: Node | None = None) -> Task[None]:
        """Before a pass of a layer; `kind`: of the action; `then`: the layer whose pass is next in
        it.
        """
        yield from ()

    def end(self, node: Node, *, weights: bool) -> Task[None]:
        """After it. `weights`: it made weight gradients."""
        yield from ()


NOTHING = Around()


@dataclass(slots=True)
class Cadenced(Around):
    """Parameters are gathered for each pass of a layer and dropped after it; gradients are summed
    after each microbatch's, or the last.

    Only of buckets that all devices of a party work on together; others are gathered and summed
    once a step. A backward needs the weights of what has one (`model.gradients`), and of what is
    made again for it; weight gradients those of what is trained. While a layer is at work the
    parameters of the next are gathered, and the gradients of the one before are summed (`Begin`):
    no more than these two.

    Args:
        buckets: of the device.
        pieces: of those whose parameters are sharded.
        uses, sums: gather at each use; sum after each microbatch.
        passes: by bucket, how many passes of a layer in a step make gradients of it; its sum over
            devices may begin behind the last.
        total: by bucket, the device's piece of the gradient of the microbatches so far.
        whole: its piece of the step's gradient, where the sum was begun behind the last pass.
        ahead: gathers that were begun for the next layer.
        summing: sums that were begun.
    """

    device: int
    store: ParameterStore
    buckets: tuple[Bucket, ...]
    views: Views
    pieces: dict[int, torch.Tensor]
    uses: bool
    sums: bool
    passes: Mapping[int, int] = field(default_factory=dict)
    total: dict[int, torch.Tensor] = field(default_factory=dict)
    whole: dict[int, torch.Tensor] = field(default_factory=dict)
    ahead: dict[int, Beside[torch.Tensor]] = field(default_factory=dict)
    summing: dict[int, Beside[torch.Tensor]] = field(default_factory=dict)
    _known: dict[tuple[int, TaskKind], tuple[Node, tuple[Bucket, ...]]] = field(
        default_factory=dict
    )
    _done: Counter[int] = field(default_factory=Counter)

    @property
    def works(self) -> bool:  # type: ignore[override]
        """Some bucket has another cadence than the step's."""
        return any(self.gathers(b) or self.adds(b) for b in self.buckets)

    def gathers(self, bucket: Bucket) -> bool:
        """Its parameters are gathered at each use."""
        return self.uses and self.device in bucket.together and bucket.number in self.pieces

    def adds(self, bucket: Bucket) -> bool:
        """Its gradients are summed after each microbatch: of several parties by those that keep
        pieces of them.
        """
        if not (self.sums and self.device in bucket.together and bucket.trainable):
            return False
        sharers = bucket.sharing(self.device)
        return not sharers.parties or (
            bucket.in_parties and sharers.party(self.device).degrees[1] > 1
        )

    def closes(self, bucket: Bucket) -> bool:
        """Its gradients are summed once a step, as soon as all of them are there: by devices that
        are then at the same layer.
        """
        alike = bucket.together.issuperset(bucket.devices) and not bucket.in_parties
        return bucket.trainable and not self.adds(bucket) and alike and not bucket.copies

    def begin(self, node: Node, kind: TaskKind, *, then: Node | None = None) -> Task[None]:
        """See `Around`."""
        now = {bucket.number: bucket for bucket in self._of(node, kind) if self.gathers(bucket)}
        for number, bucket in now.items():
            ahead = self.ahead.pop(number, None)
            self.views[number].show(
                (yield from self._gathered(bucket) if ahead is None else ended(ahead))
            )
        for bucket in () if then is None else filter(self.gathers, self._of(then, kind)):
            # What is whole now is dropped before the next layer.
            if bucket.number not in now:
                self.ahead[bucket.number] = yield from begun(self._gathered(bucket), late=True)

    def _gathered(self, bucket: Bucket) -> Task[torch.Tensor]:
        return gathered(self.device, bucket, self.pieces[bucket.number], have=3, want=0, key="use")

    def end(self, node: Node, *, weights: bool) -> Task[None]:
        """See `Around`."""
        adding, closing, precision = [], [], self.store.precision
        for bucket in self._of(node, TaskKind.W) if weights else ():
            self._done[bucket.number] += 1
            if self.adds(bucket):
                adding.append(bucket)
            elif self.closes(bucket) and self._done[bucket.number] == self.passes.get(
                bucket.number
            ):
                closing.append(bucket)
        if adding or closing:
            yield from self.settled()
        for bucket in adding:
            task = summed(self.device, bucket, self._own(bucket), precision=precision, level=2)
            if bucket.copies:  # who sums sends to duplicates, which is no request of a group
                self._add(bucket, (yield from task))
            else:
                self.summing[bucket.number] = yield from begun(task)
        for bucket in closing:
            self.summing[bucket.number] = yield from begun(
                owned(self.device, bucket, self._own(bucket), precision=precision)
            )
        forgotten({b.number for b in adding}, self.views)
        dropped({b.number for b in self._of(node, TaskKind.F) if self.gathers(b)}, self.views)

    def counted(self, nodes: Iterable[Node]) -> Counter[int]:
        """By bucket, how many of these passes of a layer make gradients of it."""
        return Counter(bucket.number for node in nodes for bucket in self._of(node, TaskKind.W))

    def settled(self) -> Task[None]:
        """Wait for the sums that were begun."""
        for bucket in (b for b in self.buckets if b.number in self.summing):
            piece = yield from ended(self.summing.pop(bucket.number))
            if self.adds(bucket):
                self._add(bucket, piece)
            else:
                self.whole[bucket.number] = piece

    def _add(self, bucket: Bucket, piece: torch.Tensor) -> None:
        known = self.total.get(bucket.number)
        self.total[bucket.number] = piece if known is None else known.add_(piece)

    def _own(self, bucket: Bucket) -> torch.Tensor:
        return own_gradients(self.views[bucket.number], self.store.precision)

    def _of(self, node: Node, kind: TaskKind) -> tuple[Bucket, ...]:
        """Buckets on the device of the parameters that a pass of a layer needs."""
        if (id(node), kind) not in self._known:
            run, model = node.segment.run, self.store.model
            keys = {
                origin(model, run, node.layer, o, p).key
                for o in needed(node, kind)
                for p in o.parameters
            }
            self._known[id(node), kind] = (
                node,
                tuple(b for b in self.buckets if any(key in keys for key, _ in b.boxes)),
            )
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


def own_gradients(view: FlatBucket, precision: Precision) -> torch.Tensor:
    """A device's own gradients of a bucket, as they go to others;
    see `FlatBucket.own_gradients`.
    """
    return view.own_gradients(precision.gradient).to(precision.wire)


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
    """Drop the gradients of buckets that have been summed: a part that lies in other buckets too
    has zeros in their place.
    """
    keep = _elsewhere(numbers, views)
    for part in (part for number in numbers for part in views[number].parts):
        if id(part.held) not in keep:
            part.held.gradient = None
        elif part.held.gradient is not None:
            part.held.gradient[part.rows] = 0


def _elsewhere(numbers: set[int], views: Views) -> set[int]:
    """Identities of the parts that lie in other buckets than these."""
    return (
        {
            id(part.held)
            for number, view in views.items()
            if number not in numbers
            for part in view.parts
        }
        if numbers
        else set()
    )
