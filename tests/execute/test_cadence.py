"""Parameters gathered at each use and gradients summed after each microbatch: the same steps, and
as many collectives as passes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device_state.zero_bucket_collectives import Bucket
from shardwright.execute.interpreter.chunk_passes import Walker
from shardwright.execute.interpreter.gather_and_reduce_hooks import BucketHooks
from shardwright.execute.interpreter.run_device_actions_of_step import device_task
from shardwright.execute.interpreter.stage_layers import StageNode, stage_nodes
from shardwright.execute.training.device_training_state import PreparedTraining
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.communication_requests import Task
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.program.task_kind_stream_and_dependency_arrays import TaskKind
from tests.execute.kept import with_lines
from tests.execute.small_plans import PLANS, Small, run_here
from tests.execute.trained import train

EACH = "zero all: all/all/all gather=use reduce=microbatch\n"
PIPELINE = Small(
    body=(
        "lane main samples 8 in 2\n  stages embed+1, 1+head on 0, 2\n    all = b2\norder"
        " zb-h1(main)\n"
    ),
    zero=EACH,
)
CASES: dict[str, Small] = {
    "one stage": PLANS["zero-3"],
    "input and weight gradients apart": PIPELINE,
    "hybrid": replace(
        PLANS["hybrid zero-3"], zero="zero all: 4/2/2 gather=use reduce=microbatch\n"
    ),
    "made again": with_lines(PLANS["zero-3"], "recompute 0-1: full", "recompute 2-: act"),
    "gathers only": replace(PLANS["zero-3"], zero="zero all: all/all/all gather=use\n"),
    "sums only": replace(PLANS["zero-2"], zero="zero all: all/all/1 reduce=microbatch\n"),
    "shared by lanes": replace(PLANS["two lanes"], zero=EACH),
    "tied": replace(PLANS["tied"], zero=EACH),
    "experts": replace(PLANS["experts"], zero=EACH),
    "a device sums parts with others": replace(PLANS["three devices"], zero=EACH),
    "a lane of its own": PLANS["one lane shards"],
    "lanes of their own": PLANS["lanes shard for themselves"],
    "hybrid lanes": PLANS["hybrid lanes"],
}
FEW = {
    "input and weight gradients apart",
    "made again",
    "sums only",
    "shared by lanes",
    "experts",
}
"""What is tested of each: who gathers, who sums, within a lane and over lanes."""


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.proof) for name in CASES]
)
def test_steps_are_those_of_the_cadence_of_a_step(name: str) -> None:
    small = CASES[name]
    once = replace(
        small, zero=small.zero.replace(" gather=use", "").replace(" reduce=microbatch", "")
    )
    found, expected = (run_here(one, one.known(), steps=2)[0] for one in (small, once))
    assert [r.loss for r in found] == pytest.approx([r.loss for r in expected], rel=1e-12)
    assert [r.norm for r in found] == pytest.approx([r.norm for r in expected], rel=1e-12)


def passes(known: PreparedTraining, device: int) -> Counter[str]:
    """Layers with parameters that a device passes in a step: gathers, and sums of gradients."""
    rows = known.work.rows
    row = next(i for i, devices in enumerate(rows.devices) if device in devices)
    found: Counter[str] = Counter()
    for action in range(int(rows.row_start[row]), int(rows.row_start[row + 1])):
        nodes = stage_nodes(
            known.work.stages[int(rows.lane[action])][int(rows.chunk[action])], known.work.model
        )
        kind = TaskKind(int(rows.kind[action]))
        found["use"] += len(nodes)
        found["sum"] += len(nodes) if kind in (TaskKind.B, TaskKind.W) else 0
    return found


@pytest.mark.parametrize(
    "name", ["one stage", "input and weight gradients apart", "gathers only", "hybrid"]
)
def test_there_is_a_collective_for_every_pass_of_a_layer(name: str) -> None:
    small = CASES[name]
    known, trace = small.known(), CommunicationRecord()
    train(small.members(known), known, [small.batches(0)], trace=trace)
    for device in known.devices:
        own = [r for r in trace.records if r.device == device and isinstance(r.key, tuple)]
        expected = passes(known, device)
        elements = sum(b.elements for b in known.buckets if device in b.devices)
        each = expected["use"] // sum(1 for b in known.buckets if device in b.devices)
        gathers = [r for r in own if r.key[0] == "use"]
        assert len(gathers) == expected["use"]
        assert sum(r.elements for r in gathers) == each * elements
        scatters = [r for r in own if r.key[0] == "scatter"]
        microbatches = 1 if name == "gathers only" else small.plan.lanes[0].microbatches
        assert sum(r.elements for r in scatters) == microbatches * elements
        if name != "gathers only":
            assert len(scatters) == expected["sum"]


class Weighed(Walker):
    """Notes the most elements of parameters and of gradients that it holds when a layer begins its
    work."""

    most = (0, 0)

    def _node_forward(self, *given: Any) -> Task[None]:
        self._note()
        yield from super()._node_forward(*given)

    def _node_backward(self, *given: Any) -> Task[None]:
        self._note()
        yield from super()._node_backward(*given)

    def _note(self) -> None:
        held = [h for boxes in self.store.held.values() for h in boxes.values()]
        now = (
            sum(h.value.numel() for h in held),
            sum(h.gradient.numel() for h in held if h.gradient is not None),
        )
        self.most = (max(self.most[0], now[0]), max(self.most[1], now[1]))


def test_one_layer_is_whole_at_a_time() -> None:
    """A device holds whole parameters of the layer at work, and of no layer a whole gradient when
    the next begins."""
    small = CASES["one stage"]
    known = small.known()
    members, walkers, arounds = small.members(known), {}, {}
    for device, own in members.items():
        buckets = tuple(b for b in known.buckets if device in b.devices)
        arounds[device] = BucketHooks(
            device,
            own.store,
            buckets,
            own.views,
            own.pieces,
            gathers_at_use=True,
            sums_at_microbatch=True,
        )

    def walking(device: int, *given: Any) -> Weighed:
        return walkers.setdefault(device, Weighed(device, *given))

    batch = small.batches(0)
    run_in_process(
        {
            d: device_task(
                d, known.work, batch=batch, store=m.store, make_walker=walking, hooks=arounds[d]
            )
            for d, m in members.items()
        }
    )
    for device, walker in walkers.items():
        assert walker.most == (max(b.elements for b in known.buckets), 0)
        assert (
            sum(
                h.value.numel()
                for boxes in members[device].store.held.values()
                for h in boxes.values()
            )
            == 0
        )
        pieces = [b.sharing(device).piece(device, b.elements, 2) for b in known.buckets]
        assert [arounds[device].gradient_sums[b.number].numel() for b in known.buckets] == [
            high - low for low, high in pieces
        ]


def buckets_of(known: PreparedTraining, device: int) -> tuple[Bucket, ...]:
    return tuple(b for b in known.buckets if device in b.devices)


def test_the_next_layer_is_gathered_and_the_one_before_summed_while_one_is_at_work() -> None:
    small = CASES["one stage"]
    known = small.known()
    members = small.members(known)
    arounds: dict[int, BucketHooks] = {}
    seen: dict[int, list[tuple[str, int, int]]] = {device: [] for device in members}

    class Watched(Walker):
        def _node_forward(self, *given: Any) -> Task[None]:
            self._note("F")
            yield from super()._node_forward(*given)

        def _node_backward(self, *given: Any) -> Task[None]:
            self._note("B")
            yield from super()._node_backward(*given)

        def _note(self, kind: str) -> None:
            around = arounds[self.device]
            seen[self.device].append((kind, len(around.next_gathers), len(around.running_sums)))

    for device, own in members.items():
        arounds[device] = BucketHooks(
            device,
            own.store,
            buckets_of(known, device),
            own.views,
            own.pieces,
            gathers_at_use=True,
            sums_at_microbatch=True,
        )
    tasks = {
        d: device_task(
            d,
            known.work,
            batch=small.batches(0),
            store=m.store,
            make_walker=Watched,
            hooks=arounds[d],
        )
        for d, m in members.items()
    }
    run_in_process(tasks)
    microbatches, (stages,) = small.plan.lanes[0].microbatches, known.work.stages
    layers = len(stage_nodes(stages[0], known.work.model))
    assert layers > 2
    for device in known.devices:
        forward, backward = ([one[1:] for one in seen[device] if one[0] == kind] for kind in "FB")
        assert [ahead for ahead, _ in forward] == [*(1,) * (layers - 1), 0] * microbatches
        assert [ahead for ahead, _ in backward] == [*(1,) * (layers - 1), 0] * microbatches
        # Nothing has been summed before the first backward of all; what one microbatch left is
        # waited for in the next.
        assert [summing for _, summing in backward] == [0, *(1,) * (layers * microbatches - 1)]


@pytest.mark.parametrize("name", ["zero-1", "zero-2", "ring"])
def test_sums_of_a_step_begin_as_layers_end_in_the_last_microbatch(name: str) -> None:
    small = PLANS[name]
    known = small.known()
    members = small.members(known)
    begun: dict[int, list[int]] = {device: [] for device in members}

    class Counting(BucketHooks):
        def end(self, node: StageNode, *, weights: bool) -> Task[None]:
            yield from super().end(node, weights=weights)
            if weights:
                begun[self.device].append(len(self.final_gradients) + len(self.running_sums))

    arounds = {
        d: Counting(
            d,
            own.store,
            buckets_of(known, d),
            own.views,
            own.pieces,
            gathers_at_use=False,
            sums_at_microbatch=False,
            passes=own.passes,
        )
        for d, own in members.items()
    }
    tasks = {
        d: device_task(d, known.work, batch=small.batches(0), store=m.store, hooks=arounds[d])
        for d, m in members.items()
    }
    run_in_process(tasks)
    for device, counts in begun.items():
        microbatches = small.plan.lanes[0].microbatches
        each = len(counts) // microbatches
        assert counts[:-each] == [0] * (len(counts) - each)
        assert counts[-each:] == sorted(counts[-each:])
        assert counts[-each] < counts[-1] == len(buckets_of(known, device))
