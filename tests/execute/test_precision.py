"""Number formats of the job: bf16 and float32 train as one device does, and a device holds the
bytes that lowering counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from shardwright.dtype import Dtype
from shardwright.errors import StrategyError
from shardwright.execute.interpreter.run_device_actions_of_step import device_task
from shardwright.execute.numerics.base.run_precision import RunPrecision, precision_of
from shardwright.execute.training.adamw_optimizer import AdamW
from shardwright.execute.training.compare_step_gradients_on_virtual_devices import (
    single_device_plan,
)
from shardwright.execute.training.device_training_state import (
    DeviceState,
    PreparedTraining,
    prepare_training,
)
from shardwright.execute.training.training_loop import StepReport
from shardwright.execute.transport.communication_record import CommunicationRecord
from shardwright.execute.transport.in_process_transport import run_in_process
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.training_job import Optimizer
from shardwright.model.ir.model_graph import Model
from shardwright.program.training_problem import Problem
from shardwright.runtime.runtime_registry import load_runtime
from shardwright.simulator.peak_device_memory import plan_memory
from shardwright.simulator.simulate_plan import lower
from tests.execute.small_plans import PLANS, Small
from tests.execute.trained import train
from tests.tiers import chosen

STEPS = 3
KINDS = (Dtype.FP32, Dtype.BF16)
NAMES = ("ring", "experts", "zero-3", "one lane shards")
SMOOTH = AdamW(rate=3e-2, eps=3e-2, clip=1.0)
"""An eps above roundings of gradients: a step does not turn their signs into steps of the rate."""


def formats(small: Small, kind: Dtype) -> RunPrecision:
    """What a job of one format, with AdamW in float32, runs in."""
    master = None if kind is Dtype.FP32 else Dtype.FP32
    return precision_of(
        replace(
            small.job,
            compute=kind,
            parameter=kind,
            activation=kind,
            optimizer=Optimizer(master=master),
        )
    )


def steps(
    small: Small,
    known: PreparedTraining,
    *,
    count: int = STEPS,
    trace: CommunicationRecord | None = None,
) -> tuple[list[StepReport], dict[int, DeviceState]]:
    members = small.members(known)
    return train(members, known, [small.batches(0)] * count, trace=trace), members


def known_in(small: Small, precision: RunPrecision, *, alone: bool = False) -> PreparedTraining:
    plan = single_device_plan(small.model, small.job) if alone else small.plan
    return prepare_training(small.model, small.job, plan, rule=SMOOTH, precision=precision)


@lru_cache(maxsize=4)
def reports_alone(whole: Callable[[], Model], batch: int, kind: Dtype) -> list[StepReport]:
    """Steps of one device."""
    small = Small(body="", whole=whole, batch=batch)
    return steps(small, known_in(small, formats(small, kind), alone=True))[0]


def depth(small: Small) -> int:
    """Operators on the way from a token to its loss."""
    return sum(run.count * len(small.model.blocks[run.block].operators) for run in small.model.runs)


@pytest.mark.parametrize(
    ("name", "kind"),
    chosen(
        product(NAMES, KINDS),
        {
            ("ring", Dtype.FP32),
            ("experts", Dtype.BF16),
            ("zero-3", Dtype.BF16),
        },
    ),
)
def test_a_plan_trains_as_one_device_does(name: str, kind: Dtype) -> None:
    """Each operator rounds once, by u on either side; roundings are independent: sqrt(2 depth) u of
    what is of order one, for each step."""
    small = PLANS[name]
    precision = formats(small, kind)
    split, _ = steps(small, known_in(small, precision))
    alone = reports_alone(small.whole, small.batch, kind)
    unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-9}[precision.compute]
    bound = unit * (2 * depth(small)) ** 0.5
    for number, (one, other) in enumerate(zip(split, alone, strict=True), start=1):
        assert one.loss == pytest.approx(other.loss, rel=number * bound)
        assert one.norm == pytest.approx(other.norm, rel=2 * number * bound)
    assert split[-1].loss < split[0].loss - 20 * bound * split[0].loss


def bytes_of(tensors: list[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


@pytest.mark.parametrize(
    ("name", "kind"),
    chosen(
        product(["tp and sequence", "experts", "1f1b", "zero-1"], KINDS),
        {
            ("tp and sequence", Dtype.FP32),
            ("experts", Dtype.BF16),
            ("1f1b", Dtype.BF16),
            ("zero-1", Dtype.BF16),
            ("zero-1", Dtype.FP32),
        },
    ),
)
def test_a_device_holds_the_bytes_that_are_lowered(name: str, kind: Dtype) -> None:
    """Parameters, the optimizer's states, and gradients when the last microbatch is done."""
    small = PLANS[name]
    precision = formats(small, kind)
    known = known_in(small, precision)
    master = None if kind is Dtype.FP32 else Dtype.FP32
    job = replace(
        small.job, compute=kind, parameter=kind, activation=kind, optimizer=Optimizer(master=master)
    )
    problem = Problem(
        model=small.model,
        cluster=parse_cluster("h100-sxm:8"),
        job=job,
        runtime=load_runtime("megatron-core"),
    )
    program, costs = lower(problem, small.plan, unfolded=True)
    expected = {
        device: dict(memory.items)
        for memory in plan_memory(problem, program, costs)
        for device in program.classes[memory.rank].devices
    }
    members = small.members(known)
    run_in_process(
        {
            d: device_task(d, known.work, batch=small.batches(0), store=own.store)
            for d, own in members.items()
        }
    )
    for device, own in members.items():
        held = [h for boxes in own.store.held.values() for h in boxes.values()]
        assert bytes_of([h.value for h in held]) == expected[device]["parameters"]
        assert (
            bytes_of([h.gradient for h in held if h.gradient is not None])
            == expected[device]["gradients"]
        )
        assert (
            bytes_of([t for s in own.states.values() for t in s.tensors.values()])
            == expected[device]["optimizer"]
        )


def test_what_moves_has_the_format_of_its_kind() -> None:
    """Activations two bytes, statistics of norms and losses four, gradients as the job says."""
    small = PLANS["vocabulary"]
    for wire in (None, Dtype.BF16):
        trace = CommunicationRecord()
        precision = precision_of(replace(small.job, gradient_wire=wire))
        steps(small, known_in(small, precision), count=1, trace=trace)
        seen: dict[str, set[int]] = {}
        for record in trace.records:
            outer, inner = record.key if isinstance(record.key, tuple) else (record.key, ())
            if outer == "gradient":
                kind = outer
            elif isinstance(outer, tuple):
                kind = (
                    "statistics"
                    if isinstance(inner, tuple) and inner[-1] in ("max", "sum")
                    else "activation"
                )
            else:
                continue
            seen.setdefault(kind, set()).add(record.element)
        assert seen == {
            "activation": {2},
            "statistics": {4},
            "gradient": {4 if wire is None else 2},
        }


@pytest.mark.parametrize("name", chosen(["ring", "experts"], ["experts"]))
def test_all_tensors_are_made_where_the_run_lies(name: str) -> None:
    """Where torch makes tensors that are told no device (here: on `meta`), none of the run's may
    be."""
    small = PLANS[name]
    known = known_in(small, precision_of(small.job))
    expected, _ = steps(small, known, count=2)
    members, batches = small.members(known), [small.batches(0)] * 2
    torch.set_default_device("meta")
    try:
        found = train(members, known, batches)
    finally:
        torch.set_default_device(None)
    assert found == expected


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"compute": Dtype.FP8}, "compute in fp8"),
        ({"compute": Dtype.FP16, "activation": Dtype.FP16}, "compute in fp16"),
        (
            {"compute": Dtype.BF16, "activation": Dtype.FP32},
            "compute in bf16 over activations in fp32",
        ),
        ({"gradient_wire": Dtype.FP8}, "gradient wire in fp8"),
        ({"optimizer": Optimizer(states=(Dtype.FP8, Dtype.FP32))}, "optimizer state 0 in fp8"),
    ],
)
def test_other_formats_are_refused(changed: dict[str, object], what: str) -> None:
    with pytest.raises(StrategyError) as caught:
        precision_of(replace(PLANS["tp"].job, **changed))
    assert caught.value.rule == "execute.precision"
    assert what in str(caught.value)
