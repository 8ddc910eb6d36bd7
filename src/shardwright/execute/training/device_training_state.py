"""State of each device between training steps, and the prepared plan that all devices share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.offload_and_restore_part_of_tensor import WHOLE_PERCENT
from shardwright.execute.device_state.parameter_views_of_flat_buckets import FlatBucket
from shardwright.execute.device_state.plan_parameter_buckets import plan_buckets
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    ParameterStore,
    Source,
)
from shardwright.execute.device_state.sum_each_parameter_gradient_over_devices import (
    gradient_groups,
)
from shardwright.execute.device_state.zero_bucket_collectives import (
    Bucket,
    Places,
    bucket_views,
    create_parameter_parts,
)
from shardwright.execute.interpreter.count_tokens_per_expert_for_bias import first_holders
from shardwright.execute.interpreter.gather_and_reduce_hooks import (
    BucketHooks,
    drop_values,
)
from shardwright.execute.interpreter.iterate_device_passes_in_order import weight_passes
from shardwright.execute.interpreter.prepared_step import PreparedStep
from shardwright.execute.numerics.base.run_precision import RunPrecision, uniform_precision
from shardwright.execute.training.adamw_optimizer import (
    AdamW,
    Moments,
    moments,
    require_adamw,
)
from shardwright.execute.training.prepare_work_shared_by_devices import prepare_step
from shardwright.execute.training.unsupported_router_settings import (
    require_biases,
    require_trainable,
)
from shardwright.hardware.device_partition_by_network_level import Units
from shardwright.job.training_job import TrainingJob
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.model.find_routers_with_balancing_loss_or_biases import selection_biases
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.stages.uses_of_each_parameter import parameter_places
from shardwright.program.zero_sharding import ShardRule, ShardRules, shard_rules
from shardwright.strategy.plan.plan import Cadence, Plan, State


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTraining:
    """A prepared training run: its plan, parameter buckets and settings, shared by all devices.

    Args:
        places: uses of every parameter.
        counts: (lane, device) whose losses are counted; other devices have copies.
        precision: formats of all tensors.
        on: torch device of this process.
        shards: ZeRO rules of each lane.
        bias_rate: rate of a step's router bias update; None: biases are frozen parameters, and no
            checkpoint has them.
    """

    work: PreparedStep
    places: Places
    buckets: tuple[Bucket, ...]
    rule: AdamW
    settings: Settings
    counts: frozenset[tuple[int, int]]
    length: int
    precision: RunPrecision
    shards: ShardRules
    on: torch.device | str = "cpu"
    bias_rate: float | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices that have actions, sorted."""
        return tuple(sorted(d for devices in self.work.rows.devices for d in devices))

    @property
    def trained_keys(self) -> list[Key]:
        """Sorted keys of all trained parameters."""
        return sorted(
            {key for bucket in self.buckets if bucket.trainable for key, _ in bucket.boxes}
        )

    @property
    def biases(self) -> tuple[Key, ...]:
        """Router choice biases that checkpoints keep, updated or not; empty if they are frozen."""
        if self.bias_rate is None:
            return ()
        return tuple(selection_biases(self.work.model))

    def bias_holders(self, key: Key) -> tuple[int, ...]:
        """Devices that have a router bias, each in full, sorted."""
        return tuple(sorted({device for place in self.places[key] for device in place.devices}))


@dataclass(slots=True)
class DeviceState:
    """A device between steps: its parameters, and its pieces and optimizer states by bucket.

    Values that are not sharded are in `views`.

    Args:
        states: optimizer states of its pieces, without elements whose states are in host memory.
        host: optimizer states in host memory, of the first elements of its pieces.
        pieces: values of parameters that are sharded between steps.
        values: values of optimizer pieces that lie outside these, where there is no master copy.
        steps: number of steps done.
        passes: by bucket, number of layer passes in a step that compute gradients of it.
    """

    device: int
    store: ParameterStore
    views: dict[int, FlatBucket]
    states: dict[int, Moments] = field(default_factory=dict)
    pieces: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)
    host: dict[int, Moments] = field(default_factory=dict)
    steps: int = 0
    passes: Mapping[int, int] = field(default_factory=dict)

    def shares(self, bucket: Bucket) -> Iterator[tuple[int, int, Moments]]:
        """Iterate over (first, end, states): ranges of its piece of a bucket, host part first."""
        low, _ = bucket.sharing(self.device).piece(self.device, bucket.elements, 1)
        for states_by_bucket in (self.host, self.states):
            if bucket.number in states_by_bucket:
                states = states_by_bucket[bucket.number]
                yield low, low + states.first.numel(), states
                low += states.first.numel()

    def owned(self, bucket: Bucket) -> torch.Tensor:
        """The values of the device's optimizer piece of a bucket, in the parameters' format."""
        sharers = bucket.sharing(self.device)
        low, high = sharers.piece(self.device, bucket.elements, 1)
        full_values = self.views[bucket.number].values
        if bucket.number not in self.pieces:
            assert full_values is not None, "only what is sharded is dropped"
            return full_values[low:high]
        if bucket.number in self.values:
            return self.values[bucket.number]
        if sharers.is_sharded_in_group(self.device):
            sharded_piece = self.pieces[bucket.number]
            masters = [
                states.master.to(sharded_piece)
                for *_, states in self.shares(bucket)
                if states.master is not None
            ]
            return torch.cat(masters) if masters else sharded_piece[:0]
        outer = sharers.piece(self.device, bucket.elements, 3)[0]
        return self.pieces[bucket.number][low - outer : high - outer]


def prepare_training(
    model: Model,
    job: TrainingJob,
    plan: Plan,
    *,
    rule: AdamW | None = None,
    settings: Settings | None = None,
    dtype: torch.dtype = torch.float64,
    precision: RunPrecision | None = None,
    on: torch.device | str = "cpu",
    islands: Units | None = None,
    bias_rate: float | None = None,
) -> PreparedTraining:
    """Prepare a training run, shared by all devices; `bias_rate` None freezes router biases.

    Args:
        dtype: format of all tensors, where no `precision` is given.
        precision: see `precision_of`.
        on: torch device of this process.
        islands: islands of the devices; None: no islands.
        bias_rate: see `PreparedTraining`.

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_adamw(job.optimizer)
    require_trainable(model, settings or model.settings)
    require_biases(model, bias_rate)
    _require_executed_host(plan)
    shards = shard_rules(plan)
    work, groups = prepare_step(model, job, plan, islands=islands)
    frozen = gradient_groups(
        work.stages, model=model, length=job.sequence_length, islands=islands, trainable=False
    )
    if bias_rate is not None:
        # Every holder has its full biases, independent of ZeRO.
        moving = set(selection_biases(model))
        frozen = {key: group for key, group in frozen.items() if key not in moving}
    return PreparedTraining(
        work=work,
        places=parameter_places(work.stages, model=model),
        buckets=plan_buckets(work.stages, {**groups, **frozen}, model=model, rules=shards),
        rule=rule or AdamW(),
        settings=settings or model.settings,
        counts=_devices_with_counted_losses(work, length=job.sequence_length),
        length=job.sequence_length,
        precision=precision or uniform_precision(dtype),
        on=on,
        shards=shards,
        bias_rate=bias_rate,
    )


def _require_executed_host(plan: Plan) -> None:
    """Raise StrategyError if a plan keeps anything but optimizer states on the host."""
    for state in (
        s
        for rule in plan.shards
        for s, percent in rule.host
        if percent and s is not State.OPTIMIZER
    ):
        raise StrategyError(
            f"the host share of {state.value} is not executed",
            hint="keep the optimizer's states there alone",
            rule="execute.host",
        )


def _devices_with_counted_losses(work: PreparedStep, *, length: int) -> frozenset[tuple[int, int]]:
    """(lane, device) pairs whose losses count: the first of the devices with the same tokens."""
    return frozenset(
        (stage.lane, device)
        for lane in work.stages
        for stage in lane
        for segment in stage.segments
        for operator in segment.block.operators
        if operator.kind is OperatorKind.LOSS
        for device in first_holders(segment, operator, length=length, first_device=stage.base)
    )


def create_device_state(device: int, training: PreparedTraining, *, source: Source) -> DeviceState:
    """Create a device's parameters, optimizer states and sharded pieces before its first step."""
    biases = frozenset(training.biases)
    store = ParameterStore(
        model=training.work.model,
        source=source,
        settings=training.settings,
        precision=training.precision,
        on=training.on,
        in_statistics_format=biases,
    )
    bucketed = (key for bucket in buckets_of_device(training, device) for key, _ in bucket.boxes)
    create_parameter_parts(
        device, training.places, (*bucketed, *training.biases), length=training.length, store=store
    )
    state = DeviceState(
        device=device, store=store, views=bucket_views(device, training.buckets, store)
    )
    for bucket in buckets_of_device(training, device):
        view, sharers = state.views[bucket.number], bucket.sharing(device)
        values = view.copy_values()
        view.set_values(values)
        if bucket.trainable:
            low, high = sharers.piece(device, bucket.elements, 1)
            middle = low + (high - low) * training.shards.of(device).offload // WHOLE_PERCENT
            if middle > low:
                state.host[bucket.number] = moments(
                    values[low:middle], precision=training.precision, host=True
                )
            state.states[bucket.number] = moments(values[middle:high], precision=training.precision)
            if sharers.is_sharded_in_group(device) and training.precision.master is None:
                state.values[bucket.number] = values[low:high].clone()
        if sharers.reduction_group(device).degrees[2] > 1:
            low, high = sharers.piece(device, bucket.elements, 3)
            state.pieces[bucket.number] = values[low:high].clone()
    drop_values(set(state.pieces), state.views)
    work, hooks = (
        training.work,
        bucket_hooks(state, tuple(buckets_of_device(training, device)), training.shards.of(device)),
    )
    state.passes = hooks.weight_passes_by_bucket(
        weight_passes(device, work.rows, work.stages, work.model)
    )
    return state


def buckets_of_device(training: PreparedTraining, device: int) -> Iterator[Bucket]:
    """Iterate over the buckets of a device."""
    return (b for b in training.buckets if device in b.devices)


def bucket_hooks(state: DeviceState, buckets: tuple[Bucket, ...], rule: ShardRule) -> BucketHooks:
    """Create the hooks that gather and reduce a device's buckets around each layer."""
    return BucketHooks(
        state.device,
        state.store,
        buckets,
        state.views,
        state.pieces,
        gathers_at_use=rule.gather is not Cadence.STEP,
        sums_at_microbatch=rule.reduce is not Cadence.STEP,
        passes=state.passes,
    )
