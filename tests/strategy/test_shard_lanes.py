"""Rules of shards that name lanes: what they may name, and which one holds."""

from __future__ import annotations

import pytest

from shardwright.hardware.strided_device_list import DeviceList
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.program.zero_sharding import shard_rules
from shardwright.strategy.plan.plan import Plan
from shardwright.strategy.text.parse_plan import parse_plan
from shardwright.strategy.text.print_plan import print_plan
from shardwright.strategy.verify.check_structural_plan_rules import verify
from tests.strategy.zoo_models import dense

LANES = """plan two devices {devices}
{zero}lane a samples 4 in 2
  stages embed+8+head on 0
    all = b2
lane b samples 4 in 4
  stages embed+8+head on {base}
    all = t2
{orders}
"""
APART = "order 1f1b(a)\norder 1f1b(b)"


def plan_of(zero: str, *, base: int = 2, orders: str = APART, devices: int = 4) -> Plan:
    return parse_plan(LANES.format(zero=zero, base=base, orders=orders, devices=devices))


def broken(plan: Plan) -> list[str]:
    return [
        violation.message
        for violation in verify(plan, model=dense(), global_batch=8)
        if violation.rule == "shards.lanes"
    ]


def test_a_lane_of_its_own_shares_no_device() -> None:
    sharing = {"base": 0, "orders": "order table(a, b)\n  0: a/0F0", "devices": 2}
    (message,) = broken(plan_of("zero all: all/1/1\nzero all: all/all/1 lanes=a\n", **sharing))  # type: ignore[arg-type]
    assert message == "lanes a and b share device 0"
    assert not broken(plan_of("zero all: all/1/1\n", **sharing))  # type: ignore[arg-type]
    assert not broken(plan_of("zero all: all/1/1\nzero all: all/all/1 lanes=a\n"))


def test_states_of_the_optimizer_are_shared_alike() -> None:
    (message,) = broken(plan_of("zero all: all/all/all lanes=b\n"))
    assert message == "optimizer states of dense parameters: 1 in lane a, all in lane b"


@pytest.mark.parametrize("lanes", ["a", "b", "a,b", "b,a"])
def test_lanes_are_printed_and_read(lanes: str) -> None:
    plan = plan_of(f"zero all: all/1/1\nzero dense: all/all/1 lanes={lanes} gather=use\n")
    assert plan.shards[1].lanes == tuple(lanes.split(","))
    assert parse_plan(print_plan(plan)) == plan


def test_the_last_rule_that_names_a_lane_holds_for_it() -> None:
    rules = shard_rules(
        plan_of("zero all: all/1/1\nzero all: all/all/all lanes=b\nzero embed: all/all/1 lanes=b\n")
    )
    assert [rule.zero for rule in rules.lanes] == [1, 3]
    assert rules.lanes[1].degrees[ParameterClass.EMBED] == (0, 0, 1)
    assert rules.lanes[0].degrees[ParameterClass.EMBED] == (0, 1, 1)


@pytest.mark.parametrize(
    "zero",
    [
        "zero all: all/1/1\n",
        "zero all: all/all/all\n",
        "zero all: all/1/1\nzero all: all/1/1 lanes=b\n",
    ],
)
def test_without_lanes_that_shard_all_holders_are_one_party(zero: str) -> None:
    sharing = shard_rules(plan_of(zero)).sharing(ParameterClass.DENSE, DeviceList.run(0, 3))
    assert [tuple(party.devices) for party in sharing.parties] == [(0, 1, 2)]
    assert sharing.to_owners == sharing.from_owners == 0.0


def test_lanes_that_shard_are_parties() -> None:
    sharing = shard_rules(plan_of("zero all: all/1/1\nzero all: all/all/all lanes=a\n")).sharing(
        ParameterClass.DENSE, DeviceList.run(0, 3)
    )
    assert [(tuple(p.devices), p.reduced, p.gradient, p.parameter) for p in sharing.parties] == [
        ((0, 1), 2, 2, 2),
        ((2,), 1, 1, 1),
    ]
    assert sharing.optimizer == 3
    # Device 2 has all gradients and gives each of three owners a third; it receives all new values,
    # the others half of them.
    assert (sharing.to_owners, sharing.from_owners) == (1.0, 1.0)
    assert sharing.is_apart(0)
    assert not sharing.is_apart(2)
