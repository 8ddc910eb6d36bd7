"""Training under a plan: each device's state between steps, and its task of one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.activation_offload import WHOLE_PERCENT
from shardwright.execute.device_state.flat_buckets import FlatBucket
from shardwright.execute.device_state.gradient_buckets import plan_buckets
from shardwright.execute.device_state.gradient_reduction import gradient_groups
from shardwright.execute.device_state.optimizer_owner_exchange import (
    new_values,
    owned_gradient,
    owned_gradient_of_sums,
)
from shardwright.execute.device_state.parameter_store import (
    Key,
    ParameterStore,
    Source,
    parameter_of,
    whole_shape,
)
from shardwright.execute.device_state.zero_shards import (
    Bucket,
    Places,
    bucket_views,
    create_parameter_parts,
)
from shardwright.execute.interpreter.device_actions import weight_passes
from shardwright.execute.interpreter.device_step import Batch, PreparedStep, device_task
from shardwright.execute.interpreter.expert_token_counts import ExpertLoads, first_holders
from shardwright.execute.interpreter.gather_and_reduce_hooks import (
    BucketHooks,
    bucket_gradients,
    drop_values,
    gather_sharded,
)
from shardwright.execute.interpreter.step_recorder import STEP_LEVEL, Recorder, ignore_event
from shardwright.execute.numerics.base.run_precision import RunPrecision, uniform_precision
from shardwright.execute.training.optimizer import (
    AdamW,
    Moments,
    clip_factor,
    moments,
    require_adamw,
    square_sum,
    update,
)
from shardwright.execute.training.router_bias_updates import update_router_biases
from shardwright.execute.training.router_checks import require_biases, require_trainable
from shardwright.execute.training.step_on_virtual_devices import prepare_step
from shardwright.execute.training.weight_decay_exemptions import is_exempt
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import (
    Reduce,
    SideTask,
    Task,
    begin_side_task,
    end_side_task,
)
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.hardware.network_level_units import Units
from shardwright.job.training_job import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.balanced_routers import selection_biases
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.numerical_constants import Settings
from shardwright.model.ir.operator import OperatorKind
from shardwright.program.stages.parameter_places import parameter_places
from shardwright.program.task_arrays import TaskKind
from shardwright.program.zero_sharding import ShardRule, ShardRules, shard_rules
from shardwright.strategy.plan.plan import Cadence, Plan, State

Batches = Callable[[int], Batch]
"""Gives the batch of a step, counted from 0."""


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
    def biases(self) -> tuple[Key, ...]:
        """The router choice biases that checkpoints keep, updated by steps or not."""
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
        """Iterate over (first element, end, states) of the device's piece of a bucket, in order."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Results of a training step, equal on all ranks.

    Number (1 for the first), mean loss before the update, gradient norm before clipping, and
    whether to stop.
    """

    step: int
    loss: float
    norm: float
    stopped: bool = False


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
    """Prepare a training run: its plan, buckets, precision and settings.

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
    """Raise if a plan keeps anything but optimizer states on the host."""
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
        for device in first_holders(segment, operator, length=length, base=stage.base)
    )


def create_device_state(device: int, training: PreparedTraining, *, source: Source) -> DeviceState:
    """Create a device's state before its first step."""
    biases = frozenset(training.biases)
    store = ParameterStore(
        model=training.work.model,
        source=source,
        settings=training.settings,
        precision=training.precision,
        on=training.on,
        in_statistics_format=biases,
    )
    bucketed = (key for bucket in _buckets_of_device(training, device) for key, _ in bucket.boxes)
    create_parameter_parts(
        device, training.places, (*bucketed, *training.biases), length=training.length, store=store
    )
    state = DeviceState(
        device=device, store=store, views=bucket_views(device, training.buckets, store)
    )
    for bucket in _buckets_of_device(training, device):
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
        bucket_hooks(
            state, tuple(_buckets_of_device(training, device)), training.shards.of(device)
        ),
    )
    state.passes = hooks.weight_passes_by_bucket(
        weight_passes(device, work.rows, work.stages, work.model)
    )
    return state


def _buckets_of_device(training: PreparedTraining, device: int) -> Iterator[Bucket]:
    """Iterate over the buckets of a device."""
    return (b for b in training.buckets if device in b.devices)


def step_task(
    state: DeviceState,
    training: PreparedTraining,
    *,
    batch: Batch,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Task[StepReport]:
    """One training step of a device: gather, run the actions, reduce, clip, update, gather.

    Args:
        stop: called once; if true on any device, all reports have `stopped`.
        recorder: records the actions that begin.

    `BucketHooks` gather the parameters that the plan gathers at every use, and sum the gradients
    that it sums after every microbatch.
    """
    device = state.device
    local_buckets = list(_buckets_of_device(training, device))
    trained = [bucket for bucket in local_buckets if bucket.trainable]
    tell = recorder.tell(device) if recorder is not None else ignore_event
    if state.pieces:
        tell(TaskKind.GATHER, STEP_LEVEL)
    hooks = bucket_hooks(state, tuple(local_buckets), training.shards.of(device))
    for bucket in local_buckets:
        if bucket.number in state.pieces and not hooks.gathers_each_use(bucket):
            yield from gather_sharded(
                device, bucket, state.views[bucket.number], state.pieces[bucket.number]
            )
    for bucket in trained:
        if not hooks.sums_each_microbatch(bucket):
            state.views[bucket.number].allocate_gradients(training.precision.gradient)
    loads = ExpertLoads(device=device, length=training.length) if training.bias_rate else None
    outcome = yield from device_task(
        device, training.work, batch=batch, store=state.store, tell=tell, hooks=hooks, loads=loads
    )
    tell(TaskKind.REDUCE, STEP_LEVEL)
    yield from hooks.wait_for_sums()
    gradients = {}
    for bucket in trained:
        gradients[bucket.number] = yield from _gradient(
            state, bucket, hooks, precision=training.precision
        )
    tell(TaskKind.STEP, STEP_LEVEL)
    squares = [square_sum(gradients[b.number]) for b in trained if b.counts_piece(device)]
    stop_request = torch.tensor(float(stop is not None and stop()), device=training.on)
    balance = [] if outcome.balance is None else [outcome.balance / training.work.scale]
    losses = device_loss_sum(outcome.losses, device, training) + _sum_of(balance, training)
    sums = torch.stack([losses, _sum_of(squares, training), _sum_of([stop_request], training)])
    if len(training.devices) > 1:
        sums = cast(torch.Tensor, (yield Reduce(group=training.devices, tensor=sums, key="norm")))
    norm = sums[1].sqrt()
    state.steps += 1
    factor = clip_factor(norm, training.rule)
    updates: list[tuple[Bucket, SideTask[torch.Tensor]]] = []
    for bucket in trained:
        piece = _updated_piece(
            state, bucket, gradients.pop(bucket.number), training=training, factor=factor
        )
        updates.append(
            (
                bucket,
                (
                    yield from begin_side_task(
                        new_values(
                            device, bucket, piece, want=3 if bucket.number in state.pieces else 0
                        )
                    )
                ),
            )
        )
        if len(updates) > 1:
            yield from _wait_for_parameter(state, *updates.pop(0))
    for update_in_flight in updates:
        yield from _wait_for_parameter(state, *update_in_flight)
    if loads is not None and training.bias_rate:
        sizes = {key: whole_shape(training.work.model, key)[0] for key in training.biases}
        yield from update_router_biases(
            training.devices, state.store, loads.counts, sizes=sizes, rate=training.bias_rate
        )
    for boxes in state.store.held.values():
        for stored in boxes.values():
            stored.gradient = None
    drop_values(set(state.pieces), state.views)
    tell(None, STEP_LEVEL)
    return StepReport(
        step=state.steps,
        loss=float(sums[0]) * training.work.scale,
        norm=float(norm),
        stopped=bool(sums[2] > 0),
    )


def device_loss_sum(
    losses: Mapping[object, torch.Tensor], device: int, training: PreparedTraining
) -> torch.Tensor:
    """Sum of a device's losses, without losses that another device counts."""
    return _sum_of(
        [
            loss
            for key, loss in losses.items()
            if (cast(tuple[int, int], key)[0], device) in training.counts
        ],
        training,
    )


def _sum_of(terms: Sequence[torch.Tensor], training: PreparedTraining) -> torch.Tensor:
    """Sum of scalar tensors in float64; 0 for none."""
    return torch.stack(
        [torch.zeros((), dtype=torch.float64, device=training.on), *(t.double() for t in terms)]
    ).sum()


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


def _gradient(
    state: DeviceState, bucket: Bucket, hooks: BucketHooks, *, precision: RunPrecision
) -> Task[torch.Tensor]:
    """The step's gradient for the device's optimizer piece of a bucket, reduced if not done yet."""
    if bucket.number in hooks.final_gradients:
        return hooks.final_gradients[bucket.number]
    total = hooks.gradient_sums.get(bucket.number)
    if total is not None:
        return (yield from owned_gradient_of_sums(state.device, bucket, total, precision=precision))
    return (
        yield from owned_gradient(
            state.device,
            bucket,
            bucket_gradients(state.views[bucket.number], precision),
            precision=precision,
        )
    )


def _wait_for_parameter(
    state: DeviceState, bucket: Bucket, side_task: SideTask[torch.Tensor]
) -> Task[None]:
    """Wait for a bucket's new values, and store them in place of the old ones."""
    values = yield from end_side_task(side_task)
    if bucket.number in state.pieces:
        state.pieces[bucket.number] = values
    else:
        state.views[bucket.number].set_values(values)


def _updated_piece(
    state: DeviceState,
    bucket: Bucket,
    gradient: torch.Tensor,
    *,
    training: PreparedTraining,
    factor: torch.Tensor,
) -> torch.Tensor:
    """Apply AdamW to the device's optimizer piece of a bucket, and return its new values."""
    low, _ = bucket.sharing(state.device).piece(state.device, bucket.elements, 1)
    piece = state.owned(bucket)
    for a, b, states in state.shares(bucket):
        for first, end, rule in _rules_by_range(bucket, a, b, training=training):
            in_piece, in_states = slice(first - low, end - low), slice(first - a, end - a)
            update(
                piece[in_piece],
                gradient[in_piece],
                states.part(in_states),
                step=state.steps,
                rule=rule,
                factor=factor,
            )
    return piece


def _rules_by_range(
    bucket: Bucket, low: int, high: int, *, training: PreparedTraining
) -> Iterator[tuple[int, int, AdamW]]:
    """Iterate over (first element, end, AdamW settings) of elements `low` to `high` of a bucket.

    Elements that are exempt from weight decay have settings without it.
    """
    rule, model = training.rule, training.work.model
    if not rule.no_decay or not rule.decay:
        yield low, high, rule
        return
    begin = 0
    for (key, _), size in zip(bucket.boxes, bucket.sizes, strict=True):
        first, end = max(low, begin), min(high, begin + size)
        if first < end:
            yield (
                first,
                end,
                replace(rule, decay=0.0)
                if is_exempt(parameter_of(model, key), rule.no_decay)
                else rule,
            )
        begin += size


def train_rank(
    transport: DistributedTransport,
    members: Mapping[int, DeviceState],
    training: PreparedTraining,
    batches: Iterable[Batch],
    *,
    trace: CommunicationRecord | None = None,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[StepReport]:
    """Train on every batch, over the ranks of a transport, yielding a report after each step.

    `members`: device states of this rank; `recorder` keeps the last step.
    """
    for batch in batches:
        tasks = {
            d: step_task(state, training, batch=batch, stop=stop, recorder=recorder)
            for d, state in members.items()
        }
        reports = transport.run_tasks(
            tasks if recorder is None else recorder.record_tasks(tasks), trace=trace
        )
        yield next(iter(reports.values()))
