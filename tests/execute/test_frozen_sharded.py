"""ZeRO-3 of frozen parameters: adapters on a sharded base and a sharded teacher train like the
unsplit models, and send what is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from shardwright.cost.gradients.plan_synchronisation import device_sync_table
from shardwright.execute.checkpoints.read_checkpoint import read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.checkpoints.write_checkpoint import (
    begin_checkpoint,
    finish_checkpoint,
    write_device,
)
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.training.device_training_state import DeviceState, PreparedTraining
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.add_frozen_teacher_to_model import with_teacher
from shardwright.model.freeze_parameters_or_add_lora import trained
from shardwright.model.ir.model_graph import Model
from shardwright.program.stages.held_parameters import held_by_families
from shardwright.program.training_problem import Problem
from shardwright.program.zero_sharding import shard_rules
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.resolve_stages_edges_and_device_classes import summings_of
from shardwright.simulator.simulate_plan import simulate_plan
from shardwright.simulator.traffic.bytes_sent_per_device_by_class import plan_traffic
from shardwright.strategy.grid.grid_to_plan import plan_of
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.grid_notation import parse_grid
from tests.execute.kept import with_lines
from tests.execute.small_plans import PLANS, Small, alone_reports, run_here, tied
from tests.execute.trained import train
from tests.strategy.zoo_models import dense, sparse
from tests.tiers import in_both

EACH = "zero all: all/all/all gather=use reduce=microbatch\n"
ONE = "lane main samples 8 in 2\n  stages {stage} on 0\n    {split}\norder 1f1b(main)\n"
OWN, BESIDE = "embed+2+head", "teacher_embed+teacher_layers:3+embed+2+head"


@lru_cache(maxsize=8)
def adapted(text: str = "lora:r4") -> Model:
    return trained(dense(layers=2), text)


@lru_cache(maxsize=2)
def adapted_and_tied() -> Model:
    return trained(tied(), "lora:r4")


@lru_cache(maxsize=2)
def beside() -> Model:
    return with_teacher(trained(dense(layers=2), "lora:r4:attn"), dense(layers=3))


@lru_cache(maxsize=2)
def adapted_experts() -> Model:
    return trained(sparse(dense_layers=1, layers=1), "lora:r4:attn,mlp")


@dataclass(frozen=True, slots=True, kw_only=True)
class OfGrid(Small):
    """A plan that is a grid's."""

    grid: str

    @property
    def plan(self) -> Plan:
        return plan_of(parse_grid(self.grid), model=self.model, global_batch=self.batch)


def one(split: str, stage: str = OWN) -> str:
    return ONE.format(stage=stage, split=split.replace("; ", "\n    "))


CASES: dict[str, Small] = {
    "adapters": Small(body=one("all = b4"), whole=adapted, zero=EACH),
    "two ranks": Small(body=one("all = b2"), devices=2, whole=adapted, zero=EACH),
    "hybrid": Small(
        body=one("all = b4"), whole=adapted, zero="zero all: 4/2/2 gather=use reduce=microbatch\n"
    ),
    "base alone": Small(
        body=one("all = b2 t2; stream = b2 s2"),
        whole=adapted,
        zero="zero base: 1/1/all gather=use\nzero lora: all/1/1\n",
    ),
    "made again": with_lines(
        Small(body=one("all = b4"), whole=adapted, zero=EACH), "recompute 0-1: full"
    ),
    "once a step": Small(body=one("all = b4"), whole=adapted, zero="zero all: all/all/all\n"),
    "no embedding": Small(
        body=one("all = b4"), whole=partial(adapted, "frozen:embed,attn"), zero=EACH
    ),
    "teacher": Small(body=one("all = b4", BESIDE), whole=beside, zero=EACH),
    "teacher in a pipeline": OfGrid(body="", grid="pp2 dp2 mbs2 zero3", whole=beside),
    "adapters and tensors": OfGrid(body="", grid="tp2 sp dp2 mbs2 zero3", whole=adapted),
    "replicas": OfGrid(body="", grid="dp4 mbs1 zero3 shard2", whole=adapted),
    "two lanes": replace(PLANS["two lanes"], whole=adapted, zero=EACH),
    "tied": replace(PLANS["tied"], whole=adapted_and_tied, zero=EACH),
    "experts": replace(PLANS["experts"], whole=adapted_experts, zero=EACH),
}
"""The last three are general plans: lanes cut unlike each other, stages that share a weight,
experts in trees of their own."""


COVERED = {
    "adapters",
    "hybrid",
    "no embedding",
    "two ranks",
    "made again",
    "once a step",
    "teacher",
    "adapters and tensors",
    "replicas",
    "two lanes",
}
"""Whose parts other cases have, or other tests of this file: proofs alone train them."""


@in_both
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.proof) if name in COVERED else name for name in CASES],
)
def test_steps_are_those_of_one_device_and_nothing_frozen_changes(name: str) -> None:
    small = CASES[name]
    reports, members = run_here(small, small.known(), steps=2)
    alone = alone_reports(small, steps=2)
    assert [r.loss for r in reports] == pytest.approx([r.loss for r in alone], rel=1e-9)
    assert [r.norm for r in reports] == pytest.approx([r.norm for r in alone], rel=1e-9)
    first = small.members(small.known())
    for device, own in members.items():
        for bucket in (b for b in small.known().buckets if not b.trainable and device in b.devices):
            assert torch.equal(own.pieces[bucket.number], first[device].pieces[bucket.number])
            assert bucket.number not in own.states


def frozen_elements(model: Model) -> int:
    """Of all parameters without a gradient that are stored, one by one."""
    return sum(
        run.count * prod(e.size for e in p.extents)
        for run in model.runs
        for o in model.blocks[run.block].operators
        for p in o.parameters
        if not p.trainable and not p.tied_to
    )


@pytest.mark.parametrize(
    "name",
    [
        "adapters",
        "hybrid",
        "teacher",
        *(pytest.param(name, marks=pytest.mark.proof) for name in ("two ranks", "no embedding")),
    ],
)
def test_devices_hold_their_part_of_what_is_frozen(name: str) -> None:
    small = CASES[name]
    known = small.known()
    ways = 2 if name in ("hybrid", "two ranks") else 4
    for own in small.members(known).values():
        frozen = [b for b in known.buckets if not b.trainable]
        pieces = sum(own.pieces[b.number].numel() for b in frozen)
        whole = frozen_elements(small.model)
        assert whole / ways <= pieces < whole / ways + len(frozen)
        assert all(
            h.value.numel() == 0 for boxes in own.store.held.values() for h in boxes.values()
        )


@cache
def traced(name: str) -> tuple[PreparedTraining, dict[int, DeviceState], CommunicationRecord]:
    """A step of a case."""
    small, trace = CASES[name], CommunicationRecord()
    known = small.known()
    members = small.members(known)
    train(members, known, [small.batches(0)], trace=trace)
    return known, members, trace


def test_what_has_no_backward_is_gathered_once_and_all_else_twice() -> None:
    """Of a microbatch: the teacher, and a frozen embedding, for the forward alone."""
    for name in ("teacher", "adapters", "no embedding", "made again"):
        small = CASES[name]
        known, _, trace = traced(name)
        found = Counter(
            r.key[1]
            for r in trace.records
            if r.device == 0 and isinstance(r.key, tuple) and r.key[0] == "use"
        )
        microbatches = small.plan.lanes[0].microbatches
        for bucket in known.buckets:
            blocks = {small.model.blocks[small.model.runs[key[0]].block] for key, _ in bucket.boxes}
            (block,) = blocks
            alone = block.is_of_teacher or all(
                key[3].startswith("teacher.") for key, _ in bucket.boxes
            )
            ends = not bucket.trainable and block.name == "embed"
            assert found[bucket.number] == microbatches * (1 if alone or ends else 2), (
                name,
                block.name,
                bucket.boxes,
            )


@pytest.mark.parametrize(
    "name",
    [
        "adapters",
        "replicas",
        "made again",
        *(
            pytest.param(n, marks=pytest.mark.proof)
            for n in ("two ranks", "no embedding", "teacher")
        ),
    ],
)
def test_bytes_on_the_links_are_those_of_the_program(name: str) -> None:
    """Rings of n send (n - 1) / n of what a gather or a reduction is of."""
    small = CASES[name]
    problem, runtime = asked(small), load_runtime("torchtitan")
    assert runtime.reduce_every_microbatch
    simulated = simulate_plan(problem, small.plan)
    _, _, trace = traced(name)
    wire = (runtime.gradient_wire or runtime.gradient_dtype).bits // 8
    bytes_of = {"use": 2, "scatter": wire, "across": 2 * wire}
    for number, traffic in enumerate(plan_traffic(problem, simulated)):
        device = simulated.program.classes[number].devices[0]
        sent = 0.0
        for record in (
            r
            for r in trace.records
            if r.device == device and isinstance(r.key, tuple) and r.key[0] in bytes_of
        ):
            n = len(record.group)
            sent += record.elements * bytes_of[record.key[0]] * (n - 1) / n
        assert sum(sum(t.sent[:1]) for t in traffic if t.part == "sharding") == pytest.approx(
            sent, rel=1e-9
        )


@pytest.mark.parametrize(
    "name",
    [
        "base alone",
        "adapters and tensors",
        "experts",
        *(
            pytest.param(n, marks=pytest.mark.proof)
            for n in ("replicas", "teacher in a pipeline", "hybrid")
        ),
    ],
)
def test_elements_that_are_gathered_are_those_that_are_priced(name: str) -> None:
    small = CASES[name]
    problem, rules = asked(small), shard_rules(small.plan)
    program = simulate_plan(problem, small.plan).program
    holdings = held_by_families(program.stages, summings_of(problem, program.stages))
    _, _, trace = traced(name)
    for device in (one.devices[0] for one in program.classes):
        wanted = 0
        for stage in (
            s for lane in program.stages for s in lane if (s.lane, s.chunk, 0, device) in holdings
        ):
            held = [
                holdings.get((stage.lane, stage.chunk, n, device), ())
                for n in range(len(stage.segments))
            ]
            sync = device_sync_table(
                problem,
                held,
                device=device,
                segments=stage.segments,
                rules=rules,
                zero=rules.lanes[stage.lane].zero,
            )
            runs = small.plan.lanes[stage.lane].microbatches
            wanted += sum(
                runs * s.count * int(g + r)
                for s, (g,), (r,) in zip(
                    stage.segments, sync.gathered, sync.regathered, strict=True
                )
            )
        found = (
            r.elements
            for r in trace.records
            if r.device == device and isinstance(r.key, tuple) and r.key[0] == "use"
        )
        assert sum(found) == wanted > 0


@pytest.mark.parametrize("onto", ["base alone", pytest.param("replicas", marks=pytest.mark.proof)])
def test_a_checkpoint_has_what_is_trained_and_any_plan_resumes_it(
    tmp_path: Path, onto: str
) -> None:
    small, other = CASES["adapters"], CASES[onto]
    known, then = small.known(), other.known()
    members = small.members(known)
    train(members, known, [small.batches(0)])
    folder = begin_checkpoint(tmp_path, 1)
    saved = read_checkpoint(
        finish_checkpoint(
            folder, [write_device(m, known, folder) for m in members.values()], known, step=1
        ),
        model=small.model,
    )
    assert {key for key in saved.shapes if "lora" not in key[3]} == set()
    resumed_members = {
        d: resume_device(d, then, saved, source=seeded(small.model, seed=0)) for d in then.devices
    }
    found, wanted = (
        train(m, k, [small.batches(1)])[0] for m, k in ((resumed_members, then), (members, known))
    )
    assert (found.loss, found.norm) == pytest.approx((wanted.loss, wanted.norm), rel=1e-9)


def asked(small: Small) -> Problem:
    cluster = parse_cluster(f"h100-sxm:{small.devices}")
    return Problem(
        model=small.model, cluster=cluster, job=small.job, runtime=load_runtime("torchtitan")
    )
