"""Rules on a plan's ZeRO settings: shard degrees, parameter classes and lanes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from shardwright.errors import nearest
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.tensor_dims import ParameterClass
from shardwright.strategy.plan.lane_of_batch_share_and_stages import Lane, Role
from shardwright.strategy.plan.plan import ALL, Plan, Shards
from shardwright.strategy.plan.zero_rule_lookup import last_rule
from shardwright.strategy.rule_violations import Violation
from shardwright.strategy.verify.order_rules import stage_devices


def shard_violations(plan: Plan, *, model: Model) -> Iterator[Violation]:
    """Check a plan's ZeRO rules: shard degrees, parameter classes, lanes and host shares."""
    for rule in plan.shards:
        yield from _rule_violations(rule, model=model, devices=plan.devices)
        yield from _lane_violations(rule, plan)
    if any(rule.lanes for rule in plan.shards):
        yield from _optimizer_violations(plan)


def _text_place(rule: Shards) -> str:
    """Place of a ZeRO rule in the plan's text, such as ``zero experts``, for messages."""
    return f"zero {','.join(rule.parameters) or 'all'}"


def _lane_violations(rule: Shards, plan: Plan) -> Iterator[Violation]:
    """Check that lanes named by a ZeRO rule exist and share no device with another lane."""
    names = [lane.name for lane in plan.lanes]
    for name in rule.lanes:
        if name not in names:
            yield Violation(
                rule="shards.lanes",
                message=f"unknown lane {name!r}",
                hint=nearest(name, names),
                path=_text_place(rule),
            )
    for lane in (lane for lane in plan.lanes if lane.name in rule.lanes):
        devices = _devices(lane)
        neighbour = next((o for o in plan.lanes if o is not lane and devices & _devices(o)), None)
        if neighbour is not None:
            yield Violation(
                rule="shards.lanes",
                message=(
                    f"lanes {lane.name} and {neighbour.name} share device"
                    f" {min(devices & _devices(neighbour))}"
                ),
                hint="a lane of shards of its own has its devices to itself: name no lanes",
                path=_text_place(rule),
            )


def _devices(lane: Lane) -> frozenset[int]:
    """Devices of all stages of a lane."""
    return frozenset().union(*(stage_devices(lane, chunk) for chunk in range(len(lane.stages))))


def _optimizer_violations(plan: Plan) -> Iterator[Violation]:
    """Check that all lanes shard the optimizer states of a parameter class by the same degree."""
    trained = [lane.name for lane in plan.lanes if lane.role is Role.TRAIN]
    for klass in ParameterClass:
        lane_of_degree: dict[int, str] = {}
        for name in trained:
            rule = last_rule(plan.shards, klass.value, lane=name)
            lane_of_degree.setdefault(1 if rule is None else rule.optimizer, name)
        if len(lane_of_degree) > 1:
            (degree, lane_a), (degree_b, lane_b), *_ = lane_of_degree.items()
            yield Violation(
                rule="shards.lanes",
                message=(
                    f"optimizer states of {klass.value} parameters: {degree or 'all'} in lane"
                    f" {lane_a}, {degree_b or 'all'} in lane {lane_b}"
                ),
                hint="lanes share them, so the first degree is the same in all",
                path="zero",
            )
            return


def _rule_violations(rule: Shards, *, model: Model, devices: int) -> Iterator[Violation]:
    """Check one ZeRO rule: known parameter classes, degrees that divide, host shares."""
    class_names = [klass.value for klass in ParameterClass]
    path = _text_place(rule)
    model_classes = {
        p.klass.value for block in model.blocks for o in block.operators for p in o.parameters
    }
    for klass in rule.parameters:
        if klass not in class_names:
            yield Violation(
                rule="shards.class",
                message=f"unknown class {klass!r}",
                hint=nearest(klass, class_names),
                path=path,
            )
        elif klass not in model_classes:
            hint = f"it has {', '.join(sorted(model_classes))}"
            yield Violation(
                rule="shards.class",
                message=f"the model has no parameters of class {klass}",
                hint=hint,
                path=path,
            )
    chain = (rule.optimizer, rule.gradient, rule.parameter)
    steps = (
        chain[2:]
        if _is_frozen(rule, model=model)
        else chain[1:]
        if rule.lanes and rule.optimizer != 1
        else chain
    )
    divides = all(
        one == ALL or (next_degree != ALL and one % next_degree == 0)
        for one, next_degree in pairwise(steps)
    )
    if _is_frozen(rule, model=model) and any(degree != 1 for degree in chain[:2]):
        yield Violation(
            rule="shards.frozen",
            message=(
                f"optimizer {chain[0] or 'all'}, gradient {chain[1] or 'all'} of parameters that"
                " are not trained"
            ),
            hint="frozen parameters have only the last degree: 1/1/all",
            path=path,
        )
        return
    if min(chain) < 0 or max(chain) > devices or not divides:
        yield Violation(
            rule="shards.degrees",
            message=(
                f"optimizer {chain[0] or 'all'}, gradient {chain[1] or 'all'}, parameter"
                f" {chain[2] or 'all'} on {devices} devices"
            ),
            hint="each degree divides the one before it",
            path=path,
        )
    states = [state for state, _ in rule.host]
    if len(set(states)) != len(states) or any(not 1 <= percent <= 100 for _, percent in rule.host):
        yield Violation(
            rule="shards.host",
            message="host shares",
            hint="each state once, 1 to 100 percent",
            path=path,
        )


def _is_frozen(rule: Shards, *, model: Model) -> bool:
    """True if a rule selects parameters of the model and all of them are frozen."""
    chosen = [
        p
        for block in model.blocks
        for o in block.operators
        for p in o.parameters
        if not rule.parameters or p.klass.value in rule.parameters
    ]
    return not any(p.trainable for p in chosen) and bool(chosen)
