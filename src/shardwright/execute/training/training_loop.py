"""Train under a plan: every device keeps its parts and its piece of the optimizer's states between
steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import cast

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.activation_offload import SHARE
from shardwright.execute.device_state.device_parameters import (
    Key,
    ParameterStore,
    Source,
    parameter_of,
    whole_shape,
)
from shardwright.execute.device_state.flat_buckets import FlatBucket
from shardwright.execute.device_state.gradient_buckets import plan_buckets
from shardwright.execute.device_state.gradient_reduction import gradient_groups
from shardwright.execute.device_state.optimizer_shards import (
    Bucket,
    Places,
    bucket_views,
    create_parts,
)
from shardwright.execute.device_state.state_owner_exchange import (
    new_values,
    owned_gradient,
    owned_gradient_of_sums,
)
from shardwright.execute.interpreter.device_actions import weight_passes
from shardwright.execute.interpreter.device_walk import Batch, DeviceWork, device_task
from shardwright.execute.interpreter.expert_loads import ExpertLoads
from shardwright.execute.interpreter.layer_hooks import (
    BucketHooks,
    bucket_gradients,
    drop_values,
    gather_sharded,
)
from shardwright.execute.interpreter.recorder import STEP_LEVEL, Recorder, ignore_event
from shardwright.execute.numerics.base.run_precision import Precision, uniform_precision
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
from shardwright.execute.training.training_step import device_work
from shardwright.execute.training.weight_decay_exemptions import is_exempt
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.requests import (
    Reduce,
    SideTask,
    Task,
    begin_side_task,
    end_side_task,
)
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.hardware.device_topology import Units
from shardwright.job.training_job import TrainingJob
from shardwright.lazy_dataclass import dataclass
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.operator_constants import Settings
from shardwright.model.router_balancing import choice_biases
from shardwright.program.layout.device_cells import token_box
from shardwright.program.stages.held_parameters import parameter_places
from shardwright.program.task_arrays import TaskKind
from shardwright.program.zero_sharding import ShardRule, ShardRules, shard_rules
from shardwright.strategy.plan.plan import Cadence, Plan, State

Batches = Callable[[int], Batch]
"""The batch of a step, counted from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Facts of a run that all devices share.

    Args:
        places: uses of every parameter.
        counts: (lane, device) whose losses are counted; others have copies.
        precision: of all numbers.
        on: where the devices of this process keep and compute them.
        shards: ZeRO of each lane.
        bias_rate: by which a step moves the bias of a router's choice; None: biases are as frozen
            parameters, and no checkpoint has them.
    """

    work: DeviceWork
    places: Places
    buckets: tuple[Bucket, ...]
    rule: AdamW
    settings: Settings
    counts: frozenset[tuple[int, int]]
    length: int
    precision: Precision
    shards: ShardRules
    on: torch.device | str = "cpu"
    bias_rate: float | None = None

    @property
    def devices(self) -> tuple[int, ...]:
        """All devices that do anything."""
        return tuple(sorted(d for devices in self.work.rows.devices for d in devices))

    @property
    def biases(self) -> tuple[Key, ...]:
        """The biases of routers' choices that the run keeps, moved by a step or not."""
        if self.bias_rate is None:
            return ()
        return tuple(choice_biases(self.work.model))

    def bias_holders(self, key: Key) -> tuple[int, ...]:
        """Devices that have the bias, each whole, in order."""
        return tuple(sorted({device for place in self.places[key] for device in place.devices}))


@dataclass(slots=True)
class DeviceState:
    """A device between steps: its parts of parameters, and by bucket its pieces. What is not
    sharded has its values in `bucket_views`.

    Args:
        states: of its pieces; of those whose first elements' states are in host memory, of the
            rest.
        host: of those.
        pieces: of parameters that are sharded between steps.
        values: of the pieces of states whose elements are not among those, where there is no master
            copy.
        steps: done so far.
        passes: by bucket, how many passes of a layer in a step make gradients of it.
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
        """(first element, end, their states) of the device's piece of a bucket, in order."""
        low, _ = bucket.sharing(self.device).piece(self.device, bucket.elements, 1)
        for own in (self.host, self.states):
            if bucket.number in own:
                states = own[bucket.number]
                yield low, low + states.first.numel(), states
                low += states.first.numel()

    def owned(self, bucket: Bucket) -> torch.Tensor:
        """The values of the device's piece of the optimizer's states of a bucket, in the
        parameters' format.
        """
        sharers = bucket.sharing(self.device)
        low, high = sharers.piece(self.device, bucket.elements, 1)
        whole = self.views[bucket.number].values
        if bucket.number not in self.pieces:
            assert whole is not None, "only what is sharded is dropped"
            return whole[low:high]
        if bucket.number in self.values:
            return self.values[bucket.number]
        if sharers.is_apart(self.device):
            like = self.pieces[bucket.number]
            masters = [
                states.master.to(like)
                for *_, states in self.shares(bucket)
                if states.master is not None
            ]
            return torch.cat(masters) if masters else like[:0]
        outer = sharers.piece(self.device, bucket.elements, 3)[0]
        return self.pieces[bucket.number][low - outer : high - outer]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Results of a step: number (1 for the first), mean loss before the update, norm of the
    gradient before clipping; whether to stop.
    """

    step: int
    loss: float
    norm: float
    stopped: bool = False


def training_of_run(
    model: Model,
    job: TrainingJob,
    plan: Plan,
    *,
    rule: AdamW | None = None,
    settings: Settings | None = None,
    dtype: torch.dtype = torch.float64,
    precision: Precision | None = None,
    on: torch.device | str = "cpu",
    islands: Units | None = None,
    bias_rate: float | None = None,
) -> Training:
    """Everything about a run that does not change.

    Args:
        dtype: of everything, where no `precision` is given.
        precision: see `precision_of`.
        on: torch device of this process.
        islands: that devices lie in; None: no islands.
        bias_rate: see `Training`.

    Raises:
        StrategyError: the plan breaks a rule, or holds what is not executed.
    """
    require_adamw(job.optimizer)
    require_trainable(model, settings or model.settings)
    require_biases(model, bias_rate)
    _require_executed_host(plan)
    shards = shard_rules(plan)
    work, groups = device_work(model, job, plan, islands=islands)
    frozen = gradient_groups(
        work.stages, model=model, length=job.sequence_length, islands=islands, trainable=False
    )
    if bias_rate is not None:
        # Every holder has its biases whole, whatever ZeRO shards.
        moving = set(choice_biases(model))
        frozen = {key: group for key, group in frozen.items() if key not in moving}
    return Training(
        work=work,
        places=parameter_places(work.stages, model=model),
        buckets=plan_buckets(work.stages, {**groups, **frozen}, model=model, rules=shards),
        rule=rule or AdamW(),
        settings=settings or model.settings,
        counts=_counted(work, length=job.sequence_length),
        length=job.sequence_length,
        precision=precision or uniform_precision(dtype),
        on=on,
        shards=shards,
        bias_rate=bias_rate,
    )


def _require_executed_host(plan: Plan) -> None:
    """Raise where a plan keeps something else than the optimizer's states on the host."""
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


def _counted(work: DeviceWork, *, length: int) -> frozenset[tuple[int, int]]:
    """(lane, device): the first of the devices that compute the same tokens' losses."""
    found = set()
    for lane in work.stages:
        for stage in lane:
            for segment in stage.segments:
                for operator in (o for o in segment.block.operators if o.kind is OperatorKind.LOSS):
                    first: dict[object, int] = {}
                    for device, cell in segment.cells.cells.get(operator.klass, {}).items():
                        place = token_box(cell, samples=segment.cells.samples, length=length)
                        first[place] = min(first.get(place, device), device)
                    found |= {(stage.lane, device + stage.base) for device in first.values()}
    return frozenset(found)


def device_state(device: int, known: Training, *, source: Source) -> DeviceState:
    """A device before its first step."""
    kept = frozenset(known.biases)
    store = ParameterStore(
        model=known.work.model,
        source=source,
        settings=known.settings,
        precision=known.precision,
        on=known.on,
        fine=kept,
    )
    bucketed = (key for bucket in _own(known, device) for key, _ in bucket.boxes)
    create_parts(device, known.places, (*bucketed, *known.biases), length=known.length, store=store)
    own = DeviceState(device=device, store=store, views=bucket_views(device, known.buckets, store))
    for bucket in _own(known, device):
        view, sharers = own.views[bucket.number], bucket.sharing(device)
        values = view.own_values()
        view.show(values)
        if bucket.trainable:
            low, high = sharers.piece(device, bucket.elements, 1)
            middle = low + (high - low) * known.shards.of(device).offload // SHARE
            if middle > low:
                own.host[bucket.number] = moments(
                    values[low:middle], precision=known.precision, host=True
                )
            own.states[bucket.number] = moments(values[middle:high], precision=known.precision)
            if sharers.is_apart(device) and known.precision.master is None:
                own.values[bucket.number] = values[low:high].clone()
        if sharers.party(device).degrees[2] > 1:
            low, high = sharers.piece(device, bucket.elements, 3)
            own.pieces[bucket.number] = values[low:high].clone()
    drop_values(set(own.pieces), own.views)
    work, around = (
        known.work,
        bucket_hooks(own, tuple(_own(known, device)), known.shards.of(device)),
    )
    own.passes = around.weight_passes_by_bucket(
        weight_passes(device, work.rows, work.stages, work.model)
    )
    return own


def _own(known: Training, device: int) -> Iterator[Bucket]:
    return (b for b in known.buckets if device in b.devices)


def step_task(
    own: DeviceState,
    known: Training,
    *,
    batch: Batch,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Task[StepReport]:
    """One training step of a device: gather, run, sum, clip, update, gather.

    Args:
        stop: asked once; where any device's is true, all reports say so.
        recorder: is told what begins.

    Parameters that the plan gathers at every use, and gradients that it sums after every
    microbatch, are `BucketHooks`.
    """
    device = own.device
    mine = list(_own(known, device))
    trained = [bucket for bucket in mine if bucket.trainable]
    tell = recorder.tell(device) if recorder is not None else ignore_event
    if own.pieces:
        tell(TaskKind.GATHER, STEP_LEVEL)
    around = bucket_hooks(own, tuple(mine), known.shards.of(device))
    for bucket in mine:
        if bucket.number in own.pieces and not around.gathers_each_use(bucket):
            yield from gather_sharded(
                device, bucket, own.views[bucket.number], own.pieces[bucket.number]
            )
    for bucket in trained:
        if not around.sums_each_microbatch(bucket):
            own.views[bucket.number].make_room(known.precision.gradient)
    loads = ExpertLoads(device=device, length=known.length) if known.bias_rate else None
    outcome = yield from device_task(
        device, known.work, batch=batch, store=own.store, tell=tell, hooks=around, loads=loads
    )
    tell(TaskKind.REDUCE, STEP_LEVEL)
    yield from around.wait_for_sums()
    gradients = {}
    for bucket in trained:
        gradients[bucket.number] = yield from _gradient(
            own, bucket, around, precision=known.precision
        )
    tell(TaskKind.STEP, STEP_LEVEL)
    squares = [square_sum(gradients[b.number]) for b in trained if b.answers(device)]
    asked = torch.tensor(float(stop is not None and stop()), device=known.on)
    balance = [] if outcome.balance is None else [outcome.balance / known.work.scale]
    losses = device_loss_sum(outcome.losses, device, known) + _sum_of(balance, known)
    sums = torch.stack([losses, _sum_of(squares, known), _sum_of([asked], known)])
    if len(known.devices) > 1:
        sums = cast(torch.Tensor, (yield Reduce(group=known.devices, tensor=sums, key="norm")))
    norm = sums[1].sqrt()
    own.steps += 1
    factor = clip_factor(norm, known.rule)
    renewing: list[tuple[Bucket, SideTask[torch.Tensor]]] = []
    for bucket in trained:
        piece = _updated_piece(
            own, bucket, gradients.pop(bucket.number), known=known, factor=factor
        )
        renewing.append(
            (
                bucket,
                (
                    yield from begin_side_task(
                        new_values(
                            device, bucket, piece, want=3 if bucket.number in own.pieces else 0
                        )
                    )
                ),
            )
        )
        if len(renewing) > 1:
            yield from _wait_for_parameter(own, *renewing.pop(0))
    for one in renewing:
        yield from _wait_for_parameter(own, *one)
    if loads is not None and known.bias_rate:
        sizes = {key: whole_shape(known.work.model, key)[0] for key in known.biases}
        yield from update_router_biases(
            known.devices, own.store, loads.counts, sizes=sizes, rate=known.bias_rate
        )
    for boxes in own.store.held.values():
        for held in boxes.values():
            held.gradient = None
    drop_values(set(own.pieces), own.views)
    tell(None, STEP_LEVEL)
    return StepReport(
        step=own.steps,
        loss=float(sums[0]) * known.work.scale,
        norm=float(norm),
        stopped=bool(sums[2] > 0),
    )


def device_loss_sum(
    losses: Mapping[object, torch.Tensor], device: int, known: Training
) -> torch.Tensor:
    """The sum of a device's losses, but for those that another device counts."""
    return _sum_of(
        [
            loss
            for key, loss in losses.items()
            if (cast(tuple[int, int], key)[0], device) in known.counts
        ],
        known,
    )


def _sum_of(terms: Sequence[torch.Tensor], known: Training) -> torch.Tensor:
    """In float64; of none it is 0."""
    return torch.stack(
        [torch.zeros((), dtype=torch.float64, device=known.on), *(t.double() for t in terms)]
    ).sum()


def bucket_hooks(own: DeviceState, buckets: tuple[Bucket, ...], rule: ShardRule) -> BucketHooks:
    """Hooks of a device around a layer's work, for its buckets."""
    uses, sums = rule.gather is not Cadence.STEP, rule.reduce is not Cadence.STEP
    return BucketHooks(
        own.device,
        own.store,
        buckets,
        own.views,
        own.pieces,
        uses=uses,
        sums=sums,
        passes=own.passes,
    )


def _gradient(
    own: DeviceState, bucket: Bucket, around: BucketHooks, *, precision: Precision
) -> Task[torch.Tensor]:
    """The step's gradient for the device's piece of the optimizer's states of a bucket, summed
    where that has not been done.
    """
    if bucket.number in around.whole:
        return around.whole[bucket.number]
    total = around.total.get(bucket.number)
    if total is not None:
        return (yield from owned_gradient_of_sums(own.device, bucket, total, precision=precision))
    return (
        yield from owned_gradient(
            own.device,
            bucket,
            bucket_gradients(own.views[bucket.number], precision),
            precision=precision,
        )
    )


def _wait_for_parameter(
    own: DeviceState, bucket: Bucket, beside: SideTask[torch.Tensor]
) -> Task[None]:
    """Wait for what the device keeps of a parameter; the values before are dropped."""
    values = yield from end_side_task(beside)
    if bucket.number in own.pieces:
        own.pieces[bucket.number] = values
    else:
        own.views[bucket.number].show(values)


def _updated_piece(
    own: DeviceState,
    bucket: Bucket,
    gradient: torch.Tensor,
    *,
    known: Training,
    factor: torch.Tensor,
) -> torch.Tensor:
    """The values of the device's piece of the optimizer's states, updated."""
    low, _ = bucket.sharing(own.device).piece(own.device, bucket.elements, 1)
    piece = own.owned(bucket)
    for a, b, states in own.shares(bucket):
        for first, end, rule in _rules(bucket, a, b, known=known):
            here, there = slice(first - low, end - low), slice(first - a, end - a)
            update(
                piece[here],
                gradient[here],
                states.part(there),
                step=own.steps,
                rule=rule,
                factor=factor,
            )
    return piece


def _rules(
    bucket: Bucket, low: int, high: int, *, known: Training
) -> Iterator[tuple[int, int, AdamW]]:
    """(first element, end, rule) of the elements of a bucket from `low` to `high`: those that
    weight decay spares have a rule without.
    """
    rule, model = known.rule, known.work.model
    if not rule.spared or not rule.decay:
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
                if is_exempt(parameter_of(model, key), rule.spared)
                else rule,
            )
        begin += size


def train_rank(
    network: DistributedTransport,
    members: Mapping[int, DeviceState],
    known: Training,
    batches: Iterable[Batch],
    *,
    trace: CommunicationRecord | None = None,
    stop: Callable[[], bool] | None = None,
    recorder: Recorder | None = None,
) -> Iterator[StepReport]:
    """One step for every batch, over the ranks of a network; `members`: devices of this rank;
    `recorder` has the last step taken.
    """
    for batch in batches:
        tasks = {
            d: step_task(own, known, batch=batch, stop=stop, recorder=recorder)
            for d, own in members.items()
        }
        found = network.run_tasks(
            tasks if recorder is None else recorder.record_tasks(tasks), trace=trace
        )
        yield next(iter(found.values()))
