"""Operators recomputed by name and activations on the host: bytes and seconds as stated."""

from __future__ import annotations

import pytest

from shardwright.cost.step.strategy_task_seconds import StepCosts
from shardwright.cost.tables.apply_recompute_and_offload_policy import transfer_bandwidth
from shardwright.strategy.plan.stage_splits_and_policies import ActivationPolicy
from tests.simulator.general import SEQ, problem_for, two_stages
from tests.strategy.zoo_models import dense

TOKENS, WIDTH, ELEMENT, LAYERS = 2 * SEQ, 512 // 2, 2, 4
"""Of a microbatch; of the MLP's half on one device; of bf16; of a stage."""
ACT = LAYERS * TOKENS * WIDTH * ELEMENT


def step(*lines: str, chunk: int = 0) -> StepCosts:
    return two_stages(*lines).costs.step(0, chunk, 0)


def seconds(one: StepCosts, name: str) -> float:
    return float(getattr(one, name)[0])


def saved(one: StepCosts) -> int:
    return int(one.saved_bytes[0])


@pytest.mark.parametrize(("named", "tensors"), [("act", 1), ("up", 2), ("mlp", 3), ("up,act", 3)])
def test_recomputed_operators_are_not_saved(named: str, tensors: int) -> None:
    """The activation makes one tensor of the MLP's width, the projections up two; a class's name
    means all of its operators."""
    plain, kept = step(), step(f"recompute 0-3: {named}")
    assert saved(plain) - saved(kept) == tensors * ACT
    assert seconds(kept, "forward_s") == seconds(plain, "forward_s")
    assert seconds(kept, "backward_s") > seconds(plain, "backward_s")
    assert seconds(kept, "weight_s") == seconds(plain, "weight_s")


def test_recomputed_operators_add_up_and_so_do_blocks() -> None:
    """Seconds of two operators are those of each; half of the layers costs half as much."""
    plain = seconds(step(), "backward_s")
    more = {
        line: seconds(step(f"recompute {line}"), "backward_s") - plain
        for line in ("0-3: act", "0-3: up", "0-3: up,act", "0-1: up,act")
    }
    assert more["0-3: up,act"] == pytest.approx(more["0-3: up"] + more["0-3: act"], rel=1e-9)
    assert more["0-3: up,act"] == pytest.approx(2 * more["0-1: up,act"], rel=1e-9)


def test_a_share_of_the_activations_goes_to_the_host() -> None:
    plain, half, all_of = step(), step("host 0-3 50%: act"), step("host 0-3: act")
    assert saved(plain) - saved(half) == ACT // 2
    assert saved(plain) - saved(all_of) == ACT


def test_what_compute_hides_of_a_transfer_costs_nothing() -> None:
    plain, kept = step(), step("host 0-3: act")
    assert seconds(kept, "forward_s") == seconds(plain, "forward_s")
    assert seconds(kept, "backward_s") == seconds(plain, "backward_s")


def test_what_compute_does_not_hide_of_a_transfer_is_exposed() -> None:
    """At r bytes/s the forward of a stage of nothing but offloaded layers takes bytes / r in
    all."""
    inner = "recompute 0-0: act"
    plain = two_stages(inner).costs.families[0, 1, 0].slices[0]
    slow, fast = (two_stages("host 0-3: act", pcie=rate).costs.step(0, 1, 0) for rate in (1e6, 2e6))
    for name in ("forward_s", "backward_s"):
        # The layers take bytes / rate, the head beside them what it did: the difference of two
        # rates is bytes x (1 / r1 - 1 / r2).
        assert seconds(slow, name) - seconds(fast, name) == pytest.approx(
            ACT / 1e6 - ACT / 2e6, rel=1e-6
        )
        assert seconds(fast, name) > seconds(plain, name)


def test_the_slower_of_link_and_drive_moves_them() -> None:
    problem = problem_for(dense(), batch=8)
    node = problem.cluster.node
    assert transfer_bandwidth(problem, ActivationPolicy.HOST) == node.host.pcie.achieved
    assert transfer_bandwidth(problem, ActivationPolicy.NVME) <= min(
        node.host.pcie.achieved, node.host.nvme_bandwidth or node.host.pcie.achieved
    )
