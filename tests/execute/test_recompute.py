"""Operators that run again: gradients are the same to the last bit, and what the plan drops is gone between forward and backward."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from shardwright.execute.device import device_task
from shardwright.execute.in_process import run
from shardwright.execute.parameters import Key
from shardwright.execute.precision import precision_of
from shardwright.execute.train import training
from shardwright.hardware.expression import parse_cluster
from shardwright.program.problem import Problem
from shardwright.runtime.registry import load_runtime
from shardwright.simulator.plans import lower
from tests.execute.kept import Watched, with_lines
from tests.execute.small_plans import PLANS, Small

ONE = Small(body="lane main samples 2 in 1\n  stages embed+4+head on 0\n    all = .\norder 1f1b(main)\n", devices=1, batch=2)
SLICED = Small(
    body="lane main samples 2 in 1 slices 4\n  stages embed+2, 2+head on 0, 1\n    all = .\norder gpipe(main)\n", devices=2, batch=2
)


def gradients(small: Small) -> tuple[dict[tuple[int, Key, Any], torch.Tensor], dict[int, Watched]]:
    """By device, key and box; and what was watched, in the job's formats."""
    known = training(small.model, small.job, small.plan, precision=precision_of(small.job))
    members, walkers = small.members(known), {}

    def walking(device: int, *given: Any) -> Watched:
        return walkers.setdefault(device, Watched(device, *given))

    run({d: device_task(d, known.work, batch=small.batches(0), store=m.store, walking=walking) for d, m in members.items()})
    return {
        (d, key, box): held.gradient
        for d, own in members.items()
        for key, boxes in own.store.held.items()
        for box, held in boxes.items()
        if held.gradient is not None
    }, walkers


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("one", "recompute 0-: core"),
        ("one", "recompute 0-: core,act"),
        ("one", "recompute 0-: attn,mlp"),
        ("one", "recompute 1-2: norm1,up,act,norm2"),
        ("one", "recompute 0-: full"),
        ("tp and sequence", "recompute 0-: core,act"),
        ("tp and sequence", "recompute 0-: stream,up,act"),
        ("ring", "recompute 0-: core,mlp"),
        ("sliced", "recompute 0-: attn,core"),
        ("sliced", "recompute 0-: qkv,rotary"),
        ("experts", "recompute 0-: experts"),
        ("experts", "recompute 0-: experts.act"),
        ("zb-v", "recompute 0-: core,act"),
    ],
)
def test_gradients_are_the_same_and_less_is_kept(name: str, line: str) -> None:
    small = {"one": ONE, "sliced": SLICED}.get(name) or PLANS[name]
    expected, plain = gradients(small)
    found, watched = gradients(with_lines(small, line))
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert torch.equal(found[key], gradient), key
    for device, walker in watched.items():
        assert sum(walker.after) < sum(plain[device].after)
        assert not walker.flows


def saved_bytes(small: Small, runtime: str) -> int:
    """What lowering says that a microbatch keeps."""
    problem = Problem(model=small.model, cluster=parse_cluster("h100-sxm:8"), job=small.job, runtime=load_runtime(runtime))
    _, costs = lower(problem, small.plan, unfolded=True)
    return int(costs.step(0, 0, 0).saved_bytes[0])


@pytest.mark.parametrize("line", ["recompute 0-: core,act", "recompute 0-: up,act", "recompute 1-2: act", "recompute 0-: mlp"])
def test_what_is_dropped_is_what_lowering_drops(line: str) -> None:
    """Bytes that one device keeps less, of one microbatch; the runtime's gated activation keeps its inputs only."""
    plain, again = ONE, with_lines(ONE, line)
    lowered = saved_bytes(plain, "megatron-core") - saved_bytes(again, "megatron-core")
    kept = [sum(gradients(small)[1][0].after) for small in (plain, again)]
    assert kept[0] - kept[1] == lowered > 0


def test_one_layer_is_made_again_at_a_time() -> None:
    """What lives when a layer goes back: inputs of all, and one layer whole."""
    plain, again = (gradients(small)[1][0] for small in (ONE, with_lines(ONE, "recompute 0-: full")))
    layers = 4
    assert again.most < plain.most / 2
    assert again.most - sum(again.after) < 1.5 * (sum(plain.after) - sum(again.after)) / layers
