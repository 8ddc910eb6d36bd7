"""Hooks around each layer that gather sharded parameters before use and sum gradients after it.

Both run at the same time as the work of the neighbouring layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from shardwright.execute.device_state.exchange_with_optimizer_shard_owners import owned_gradient
from shardwright.execute.device_state.parameter_views_of_flat_buckets import FlatBucket
from shardwright.execute.device_state.stored_parameter_parts import ParameterStore, origin
from shardwright.execute.device_state.zero_bucket_collectives import (
    Bucket,
    all_gather_bucket,
    reduce_scatter_bucket,
)
from shardwright.execute.interpreter.stage_layers import StageNode
from shardwright.execute.numerics.base.run_precision import RunPrecision
from shardwright.execute.transport.communication_requests import (
    SideTask,
    Task,
    begin_side_task,
    end_side_task,
)
from shardwright.model.ir.operator import Operator
from shardwright.model.tensors_without_gradient import has_backward, runs_backward, without_gradient
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind

Views = dict[int, FlatBucket]


class LayerHooks:
    """Hooks that a device runs around a layer's work; the methods of this class do nothing."""

    works = False
    """True if the hooks do anything."""

    def begin(
        self, node: StageNode, kind: TaskKind, *, next_node: StageNode | None = None
    ) -> Task[None]:
        """Hook before a layer's pass, such as an all-gather; nothing in this base class.

        `kind`: the kind of the action; `next_node`: the layer whose pass is next in the action.
        """
        yield from ()

    def end(self, node: StageNode, *, weights: bool) -> Task[None]:
        """Hook after a layer's pass, such as a reduce-scatter; nothing in this base class.

        `weights`: the pass computed weight gradients.
        """
        yield from ()


NO_HOOKS = LayerHooks()


@dataclass(slots=True)
class BucketHooks(LayerHooks):
    """Gather parameters before each pass of a layer, and sum gradients after it or once a step.

    Gathered values are dropped after the pass.

    This applies only to buckets that all devices of a reduction group work on together; others are
    gathered and summed once a step. An input-gradient pass needs the weights of operators with a
    backward pass (`model.tensors_without_gradient`) and of recomputed operators; a weight-gradient
    pass needs those of trained operators. While a layer runs, the parameters of the next layer are
    gathered and the gradients of the layer before are summed (`Begin`): at most two layers are
    gathered at a time.

    Args:
        buckets: all parameter buckets of the device.
        pieces: the device's shard, of buckets whose parameters are sharded.
        gathers_at_use: gather parameters at each use.
        sums_at_microbatch: sum gradients after each microbatch.
        passes: by bucket, the number of layer passes in a step that compute gradients of it; its
            sum over devices may begin after the last one.
        gradient_sums: by bucket, the device's piece of the gradient, summed over the microbatches
            so far.
        final_gradients: by bucket, the piece of the step's gradient, where the sum began after the
            last pass.
        next_gathers: running gathers for the next layer.
        running_sums: running gradient sums, by bucket.
    """

    device: int
    store: ParameterStore
    buckets: tuple[Bucket, ...]
    views: Views
    pieces: dict[int, torch.Tensor]
    gathers_at_use: bool
    sums_at_microbatch: bool
    passes: Mapping[int, int] = field(default_factory=dict)
    gradient_sums: dict[int, torch.Tensor] = field(default_factory=dict)
    final_gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    next_gathers: dict[int, SideTask[torch.Tensor]] = field(default_factory=dict)
    running_sums: dict[int, SideTask[torch.Tensor]] = field(default_factory=dict)
    _known: dict[tuple[int, TaskKind], tuple[StageNode, tuple[Bucket, ...]]] = field(
        default_factory=dict
    )
    _done: Counter[int] = field(default_factory=Counter)

    @property
    def works(self) -> bool:  # type: ignore[override]
        """True if some bucket is gathered at each use or summed after each microbatch."""
        return any(self.gathers_each_use(b) or self.sums_each_microbatch(b) for b in self.buckets)

    def gathers_each_use(self, bucket: Bucket) -> bool:
        """True if the bucket's sharded parameters are all-gathered before each pass (ZeRO 3)."""
        return (
            self.gathers_at_use
            and self.device in bucket.in_same_stages
            and bucket.number in self.pieces
        )

    def sums_each_microbatch(self, bucket: Bucket) -> bool:
        """True if the bucket's gradients are reduced after each microbatch, not once a step.

        Of a bucket with several reduction groups, the groups that keep pieces of it do so.
        """
        if not (
            self.sums_at_microbatch and self.device in bucket.in_same_stages and bucket.trainable
        ):
            return False
        sharers = bucket.sharing(self.device)
        return not sharers.reduction_groups or (
            bucket.has_reduction_groups and sharers.reduction_group(self.device).degrees[1] > 1
        )

    def sums_after_last_pass(self, bucket: Bucket) -> bool:
        """True if the bucket's gradients are reduced once a step, right after its last layer pass.

        This needs all devices of the bucket to be at the same layer then.
        """
        in_same_layers = (
            bucket.in_same_stages.issuperset(bucket.devices) and not bucket.has_reduction_groups
        )
        return (
            bucket.trainable
            and not self.sums_each_microbatch(bucket)
            and in_same_layers
            and not bucket.copies
        )

    def begin(
        self, node: StageNode, kind: TaskKind, *, next_node: StageNode | None = None
    ) -> Task[None]:
        """All-gather the parameters that this pass reads, and begin those of the next layer's.

        See `LayerHooks.begin`.
        """
        gathered_now = {
            bucket.number: bucket
            for bucket in self._buckets_of_pass(node, kind)
            if self.gathers_each_use(bucket)
        }
        for number, bucket in gathered_now.items():
            ahead = self.next_gathers.pop(number, None)
            self.views[number].set_values(
                (yield from self._all_gather(bucket) if ahead is None else end_side_task(ahead))
            )
        for bucket in (
            ()
            if next_node is None
            else filter(self.gathers_each_use, self._buckets_of_pass(next_node, kind))
        ):
            # Values that are gathered now are dropped before the next layer.
            if bucket.number not in gathered_now:
                self.next_gathers[bucket.number] = yield from begin_side_task(
                    self._all_gather(bucket), late=True
                )

    def _all_gather(self, bucket: Bucket) -> Task[torch.Tensor]:
        """Task that all-gathers the parameters of a bucket."""
        return all_gather_bucket(
            self.device, bucket, self.pieces[bucket.number], have=3, want=0, key="use"
        )

    def end(self, node: StageNode, *, weights: bool) -> Task[None]:
        """After a pass with `weights`, begin its gradient sums; drop gathered parameters anyway.

        See `LayerHooks.end`.
        """
        adding, closing, precision = [], [], self.store.precision
        for bucket in self._buckets_of_pass(node, TaskKind.W) if weights else ():
            self._done[bucket.number] += 1
            if self.sums_each_microbatch(bucket):
                adding.append(bucket)
            elif self.sums_after_last_pass(bucket) and self._done[bucket.number] == self.passes.get(
                bucket.number
            ):
                closing.append(bucket)
        if adding or closing:
            yield from self.wait_for_sums()
        for bucket in adding:
            task = reduce_scatter_bucket(
                self.device,
                bucket,
                bucket_gradients(self.views[bucket.number], precision),
                precision=precision,
                level=2,
            )
            if bucket.copies:  # who sums sends to duplicates, which is no request of a group
                self._add(bucket, (yield from task))
            else:
                self.running_sums[bucket.number] = yield from begin_side_task(task)
        for bucket in closing:
            self.running_sums[bucket.number] = yield from begin_side_task(
                owned_gradient(
                    self.device,
                    bucket,
                    bucket_gradients(self.views[bucket.number], precision),
                    precision=precision,
                )
            )
        drop_gradients({b.number for b in adding}, self.views)
        drop_values(
            {b.number for b in self._buckets_of_pass(node, TaskKind.F) if self.gathers_each_use(b)},
            self.views,
        )

    def weight_passes_by_bucket(self, nodes: Iterable[StageNode]) -> Counter[int]:
        """Number of passes over `nodes` that compute gradients of each bucket, by its number."""
        return Counter(
            bucket.number for node in nodes for bucket in self._buckets_of_pass(node, TaskKind.W)
        )

    def wait_for_sums(self) -> Task[None]:
        """Wait for begun gradient reductions, and store the device's piece of each sum."""
        for bucket in (b for b in self.buckets if b.number in self.running_sums):
            piece = yield from end_side_task(self.running_sums.pop(bucket.number))
            if self.sums_each_microbatch(bucket):
                self._add(bucket, piece)
            else:
                self.final_gradients[bucket.number] = piece

    def _add(self, bucket: Bucket, piece: torch.Tensor) -> None:
        """Add a reduced piece to the bucket's gradient, over the microbatches so far."""
        sum_so_far = self.gradient_sums.get(bucket.number)
        self.gradient_sums[bucket.number] = piece if sum_so_far is None else sum_so_far.add_(piece)

    def _buckets_of_pass(self, node: StageNode, kind: TaskKind) -> tuple[Bucket, ...]:
        """The device's buckets that hold parameters a pass of a layer needs."""
        if (id(node), kind) not in self._known:
            run, model = node.segment.run, self.store.model
            keys = {
                origin(model, run, node.layer, o, p).key
                for o in operators_of_pass(node, kind)
                for p in o.parameters
            }
            self._known[id(node), kind] = (
                node,
                tuple(b for b in self.buckets if any(key in keys for key, _ in b.boxes)),
            )
        return self._known[id(node), kind][1]


def operators_of_pass(node: StageNode, kind: TaskKind) -> tuple[Operator, ...]:
    """Operators of a layer whose parameters are read by a pass of the kind."""
    block = node.segment.block
    if kind is not TaskKind.F and not has_backward(block):
        return ()
    if kind is TaskKind.W:
        return tuple(o for o in block.operators if any(p.trainable for p in o.parameters))
    if kind in (TaskKind.F, TaskKind.R) or node.recomputed or node.again:
        return block.operators
    constant = without_gradient(block)
    return tuple(o for o in block.operators if runs_backward(o, constant))


def bucket_gradients(view: FlatBucket, precision: RunPrecision) -> torch.Tensor:
    """A device's own gradients of a bucket, in the format in which they are sent.

    See `FlatBucket.own_gradients`.
    """
    return view.own_gradients(precision.gradient).to(precision.wire)


def gather_sharded(
    device: int, bucket: Bucket, view: FlatBucket, piece: torch.Tensor
) -> Task[None]:
    """All-gather the parameters of a sharded bucket into its flat view."""
    view.set_values(
        (yield from all_gather_bucket(device, bucket, piece, have=3, want=0, key="use"))
    )


def drop_values(numbers: set[int], views: Views) -> None:
    """Free the parameters of sharded buckets, but for those that also lie in other buckets."""
    keep = _parameters_of_other_buckets(numbers, views)
    for number in numbers:
        views[number].values = None
        for parameter in (part.held for part in views[number].parts):
            if id(parameter) not in keep:
                parameter.value = parameter.value.new_empty(0)


def drop_gradients(numbers: set[int], views: Views) -> None:
    """Free the local gradients of the buckets `numbers`, which have been reduced.

    A parameter that lies in other buckets too keeps its gradient, with zeros in the summed
    positions.
    """
    keep = _parameters_of_other_buckets(numbers, views)
    for part in (part for number in numbers for part in views[number].parts):
        if id(part.held) not in keep:
            part.held.gradient = None
        elif part.held.gradient is not None:
            part.held.gradient[part.rows] = 0


def _parameters_of_other_buckets(numbers: set[int], views: Views) -> set[int]:
    """Identities (`id`) of the parameters that also lie in buckets other than `numbers`."""
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
