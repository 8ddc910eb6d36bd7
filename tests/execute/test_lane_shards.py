"""Lanes that shard gradients and parameters for themselves: the same steps as one device, and as
many elements moved as is priced."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache, lru_cache
from pathlib import Path

import pytest

pytest.importorskip("torch")

from shardwright.cost.gradients.optimizer_state_owner_exchange_seconds import owner_volumes
from shardwright.execute.checkpoints.read_checkpoint import read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.device_state.zero_bucket_collectives import Bucket
from shardwright.execute.numerics.base.run_precision import precision_of
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    PreparedTraining,
    create_device_state,
    prepare_training,
)
from shardwright.execute.transport.communication_record import CommunicationRecord, SentElements
from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.zero_sharding import shard_rules
from tests.execute.saved import save
from tests.execute.small_plans import PLANS, RULE, Small, alone_reports, run_here
from tests.execute.trained import train
from tests.tiers import chosen, many

NAMES = tuple(
    name for name, small in PLANS.items() if any(rule.lanes for rule in small.plan.shards)
)
STEPS = many(2, 3)


@lru_cache
def alone(small: Small) -> list[tuple[float, float]]:
    return [(r.loss, r.norm) for r in alone_reports(small, steps=STEPS)]


def test_some_plans_have_lanes_of_their_own() -> None:
    assert len(NAMES) >= 9


@pytest.mark.parametrize(
    "name",
    chosen(
        NAMES,
        ("a lane shards gradients", "a lane shards beside a pipeline", "lanes of experts shard"),
    ),
)
def test_steps_are_those_of_one_device(name: str) -> None:
    small = PLANS[name]
    found = [(r.loss, r.norm) for r in run_here(small, small.known(), steps=STEPS)[0]]
    assert found == [pytest.approx(step, rel=1e-12) for step in alone(small)]


@cache
def traced(name: str) -> tuple[PreparedTraining, CommunicationRecord]:
    """A step of a plan."""
    small, trace = PLANS[name], CommunicationRecord()
    known = small.known()
    train(small.members(known), known, [small.batches(0)], trace=trace)
    return known, trace


def moved(name: str, what: str) -> list[tuple[Bucket, list[SentElements]]]:
    """Of each bucket of several reduction groups: what its devices exchanged with the owners of
    optimizer states in a step."""
    known, trace = traced(name)
    found: dict[int, list[SentElements]] = defaultdict(list)
    for record in trace.records:
        if isinstance(record.key, tuple) and record.key[0] == what:
            found[record.key[1]].append(record)
    return [
        (bucket, found[bucket.number]) for bucket in known.buckets if bucket.has_reduction_groups
    ]


@pytest.mark.parametrize("name", ["one lane shards", "lanes shard for themselves", "hybrid lanes"])
def test_the_busiest_gives_the_owners_what_is_priced(name: str) -> None:
    rules, small = shard_rules(PLANS[name].plan), PLANS[name]
    compared = 0
    for bucket, records in moved(name, "owners"):
        sharing = rules.sharing(ParameterClass.DENSE, DeviceList.of(bucket.sharers[0].devices))
        volume = (
            bucket.elements * owner_volumes(DeviceList.of(bucket.members), sharing)["to_owners"]
        )
        assert sorted(r.device for r in records) == list(bucket.devices)
        assert max(r.elements for r in records) == pytest.approx(volume, abs=len(bucket.devices))
        assert sum(r.sent for r in records) == sum(r.received for r in records)
        compared += 1
    assert compared == sum(b.has_reduction_groups for b in small.known().buckets) > 0


@pytest.mark.parametrize("name", ["one lane shards", "lanes shard for themselves"])
def test_new_values_come_once(name: str) -> None:
    """Each device receives its reduction group's piece of a bucket, without what it owns."""
    for bucket, records in moved(name, "renewed"):
        sharers = bucket.sharers[0]
        for record in records:
            (low, high), (a, b) = (
                one.piece(record.device, bucket.elements, 1)
                for one in (sharers.reduction_group(record.device), sharers)
            )
            assert record.received == high - low - max(min(high, b) - max(low, a), 0)


@pytest.mark.parametrize("name", ["lanes of one replica", "lanes hold experts once"])
def test_what_no_lane_shards_is_summed_once_and_gathered_once(name: str) -> None:
    """Whatever the lanes' stage: of it no microbatch reduces anything and no use gathers anything,
    and new values come from all holders."""
    known, trace = traced(name)
    found = Counter(
        (*r.key[:2], r.device)
        for r in trace.records
        if isinstance(r.key, tuple) and len(r.key) == 2
    )
    apart = [bucket for bucket in known.buckets if not bucket.has_reduction_groups]
    sums = []
    for bucket in apart:
        uses, owners, new, scattered = (
            {found[what, bucket.number, d] for d in bucket.devices}
            for what in ("use", "owners", "new", "scatter")
        )
        assert (uses, owners, new) == ({0}, {0}, {1})
        sums.append(scattered)
    # Norms that tensor parallel devices copy are summed over all holders at once.
    assert {1} in sums
    assert all(scattered in ({0}, {1}) for scattered in sums)


@pytest.mark.parametrize("in_formats", [pytest.param(False, marks=pytest.mark.proof), True])
@pytest.mark.parametrize("name", chosen(["one lane shards", "hybrid lanes"], ["hybrid lanes"]))
def test_a_checkpoint_is_taken_up_where_it_was_left(
    name: str, in_formats: bool, tmp_path: Path
) -> None:
    """Under the same plan and on one device, with master copies and without: the next step is that
    of who went on."""
    small, source = PLANS[name], seeded(PLANS[name].model, seed=0)
    precision = precision_of(small.job) if in_formats else None
    known = prepare_training(small.model, small.job, small.plan, rule=RULE, precision=precision)
    members = {d: create_device_state(d, known, source=source) for d in known.devices}
    train(members, known, [small.batches(0)])
    assert all(bool(own.values) is not in_formats for own in members.values() if own.pieces)
    found = read_checkpoint(save(members, known, tmp_path), model=small.model)
    (expected,) = train(members, known, [small.batches(1)])
    (again,) = train(
        {d: resume_device(d, known, found, source=source) for d in known.devices},
        known,
        [small.batches(1)],
    )
    assert (again.loss, again.norm) == (expected.loss, expected.norm)
    one = prepare_training(
        small.model,
        small.job,
        single_device_plan(small.model, small.job),
        rule=RULE,
        precision=precision,
    )
    (alone,) = train(
        {d: resume_device(d, one, found, source=source) for d in one.devices},
        one,
        [small.batches(1)],
    )
    assert alone.loss == pytest.approx(expected.loss, rel=1e-2 if in_formats else 1e-12)
