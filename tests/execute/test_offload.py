"""What waits on the host: gradients and steps are the same to the last bit, and the device keeps as
much less as lowering says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from shardwright.errors import StrategyError
from shardwright.execute.checkpoints.find_finished_checkpoints import newest_checkpoint
from shardwright.execute.checkpoints.read_checkpoint import read_checkpoint
from shardwright.execute.checkpoints.resume_device_state import resume_device
from shardwright.execute.device_state.offload_and_restore_part_of_tensor import (
    offload_tensor,
    restore_tensor,
)
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.numerics.base.run_precision import precision_of
from shardwright.execute.training.device_training_state import PreparedTraining, prepare_training
from tests.execute.kept import ONE, gradients, saved_bytes, with_lines
from tests.execute.saved import save
from tests.execute.small_plans import PLANS, RULE, Small
from tests.execute.trained import train
from tests.tiers import chosen


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("one", ("host 0-: core,act",)),
        pytest.param("one", ("host 0- 50%: mlp.up",), marks=pytest.mark.proof),
        ("one", ("recompute 0-1: full", "host 2-: mlp,core")),
        pytest.param("tp and sequence", ("host 0-: up,norm2",), marks=pytest.mark.proof),
        ("experts", ("host 0-: experts",)),
        ("zb-v", ("host 0- 30%: mlp",)),
    ],
)
def test_gradients_are_the_same_and_less_is_kept(name: str, lines: tuple[str, ...]) -> None:
    small = ONE if name == "one" else PLANS[name]
    expected, plain = gradients(small)
    found, watched = gradients(with_lines(small, *lines))
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        assert torch.equal(found[key], gradient), key
    for device, walker in watched.items():
        assert sum(walker.after) < sum(plain[device].after)


@pytest.mark.parametrize("line", ["host 0-: core,act", "host 1-2 50%: up", "host 0- 25%: mlp"])
def test_the_device_keeps_as_much_less_as_is_lowered(line: str) -> None:
    small = with_lines(ONE, line)
    lowered = saved_bytes(ONE, "megatron-core") - saved_bytes(small, "megatron-core")
    kept = [sum(gradients(one)[1][0].after) for one in (ONE, small)]
    assert kept[0] - kept[1] == lowered > 0


@pytest.mark.parametrize("percent", [0, 37, 100])
def test_a_share_of_the_elements_lies_on_the_host(percent: int) -> None:
    tensor = torch.randn(7, 11).T
    away = offload_tensor(tensor, percent=percent)
    assert away.host.numel() == 77 * percent // 100
    assert away.host.numel() + away.rest.untyped_storage().nbytes() // 4 == 77
    assert torch.equal(restore_tensor(away), tensor)


def _known(zero: str) -> tuple[Small, PreparedTraining]:
    small = replace(PLANS["zero-1"], zero=zero)
    return small, prepare_training(
        small.model, small.job, small.plan, rule=RULE, precision=precision_of(small.job)
    )


@pytest.mark.parametrize("percent", chosen([100, 30], [30]))
def test_states_on_the_host_make_the_same_steps_and_can_be_resumed(
    percent: int, tmp_path: Path
) -> None:
    plain, known = _known("zero all: all/1/1\n")
    hosting, with_host = _known(f"zero all: all/1/1 host=opt:{percent}\n")
    members, others = plain.members(known), hosting.members(with_host)
    batches = [plain.batches(step) for step in range(3)]
    assert train(members, known, batches[:2]) == train(others, with_host, batches[:2])
    for own, other in zip(members.values(), others.values(), strict=True):
        assert own.states.keys() == other.host.keys() == other.states.keys()
        for bucket, states in own.states.items():
            host, rest = other.host[bucket], other.states[bucket]
            assert host.first.numel() == states.first.numel() * percent // 100
            for name, tensor in states.tensors.items():
                assert torch.equal(torch.cat([host.tensors[name], rest.tensors[name]]), tensor)
    save(others, with_host, tmp_path)
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    saved = read_checkpoint(newest, model=plain.model)
    again = {
        d: resume_device(d, known, saved, source=seeded(plain.model, seed=1)) for d in known.devices
    }
    back = {
        d: resume_device(d, with_host, saved, source=seeded(plain.model, seed=1))
        for d in known.devices
    }
    expected = train(members, known, batches[2:])
    assert train(again, known, batches[2:]) == expected
    assert train(back, with_host, batches[2:]) == expected


@pytest.mark.parametrize("state", ["grad", "param"])
def test_other_states_on_the_host_are_refused(state: str) -> None:
    with pytest.raises(
        StrategyError, match=rf"the host share of {state} is not executed \[execute.host\]"
    ):
        _known(f"zero all: all/1/1 host={state}:50\n")
