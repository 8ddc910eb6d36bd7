"""What devices of a general plan exchange inside a block: patterns by hand, bytes equal to the
transition's, GEMM FLOPs as integers.

X = bytes of a microbatch's stream; all_gather and reduce_scatter of V move the full buffer V, an
all_to_all of V is a member's buffer.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from shardwright.collectives.algorithm_costs.algorithm_protocol import Collective
from shardwright.cost.lower_model_blocks_under_structure import block_context
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.model.ir.model_graph import Model
from shardwright.model.ir.operator import OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from shardwright.program.block.block_program import KernelKind, Phase
from shardwright.program.block.lower_block import lower_block
from shardwright.program.layout.operator_tensor_layouts import (
    cotangent_layout,
    made_layout,
    wanted_layout,
)
from shardwright.program.layout.tensor_layout import Holding
from shardwright.program.stages.stage_segments import Segment
from shardwright.program.training_problem import Problem
from shardwright.program.transition.cheapest_layout_transition import transition
from shardwright.runtime.runtime_registry import load_runtime
from tests.jobs import training_job
from tests.program.placed import ELEMENT, LENGTH, SAMPLES, layer_of, on_device, operator_of
from tests.program.unfold import gemm_flops
from tests.strategy.zoo_models import dense, sparse

AR, AG, RS, A2A = (
    Collective.ALL_REDUCE,
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_TO_ALL,
)
X = SAMPLES * LENGTH * 128 * ELEMENT


def exchanged(
    layer: Segment, device: int, source: str, target: str
) -> list[tuple[Collective | None, Collective | None, int, tuple[int, ...]]]:
    """(forward, backward, bytes, group) of the tensor between two operators."""
    changes = on_device(layer, device).changes(
        operator_of(layer, source), operator_of(layer, target), length=LENGTH, element=ELEMENT
    )
    return [
        (
            c.forward,
            c.backward,
            sum(v.times for v in (*c.forward_volume, *c.backward_volume)),
            c.group,
        )
        for c in changes
    ]


@pytest.mark.parametrize(
    ("lines", "devices"),
    [(("all = t4", "stream = s4"), 4), (("all = t[3:1]{., .+1}", "stream = s[3:1]{., .+1}"), 2)],
)
def test_sequence_parallelism_gathers_and_scatters(lines: tuple[str, ...], devices: int) -> None:
    """Equal and weighted parts alike: one X before and behind each pair of products, its transpose
    in backward."""
    layer, group = layer_of(dense(), *lines, devices=devices, layers=8), tuple(range(devices))
    for device in group:
        assert exchanged(layer, device, "norm1", "qkv") == [
            (AG, None, X, group),
            (None, RS, X, group),
        ]
        assert exchanged(layer, device, "proj", "residual1") == [
            (RS, None, X, group),
            (None, AG, X, group),
        ]
        assert exchanged(layer, device, "qkv", "rotary") == []


def test_tensor_parallelism_sums() -> None:
    layer, group = layer_of(dense(), "all = t4", devices=4, layers=8), (0, 1, 2, 3)
    assert exchanged(layer, 2, "norm1", "qkv") == [(None, AR, X, group)]
    assert exchanged(layer, 2, "proj", "residual1") == [(AR, None, X, group)]


def test_ulysses_exchanges_heads_for_positions() -> None:
    """Queries X/4; keys and values, half as wide each, X/4 together; the result X/4 back."""
    layer, group = layer_of(dense(), "all = s4", "core = h4", devices=4, layers=8), (0, 1, 2, 3)
    assert exchanged(layer, 1, "rotary", "core") == [
        (A2A, None, X // 2, group),
        (None, A2A, X // 2, group),
    ]
    assert exchanged(layer, 1, "core", "proj") == [
        (A2A, None, X // 4, group),
        (None, A2A, X // 4, group),
    ]


def test_replicas_exchange_nothing() -> None:
    layer = layer_of(dense(), "all = b4", devices=4, layers=8)
    names = [o.name for o in layer.block.operators]
    assert all(not exchanged(layer, 1, a, b) for a, b in pairwise(names))


def test_a_ring_joins_the_devices_that_differ_in_positions() -> None:
    layer = layer_of(dense(), "all = b2 s2 t2 via ring", devices=8, layers=8)
    core = operator_of(layer, "core")
    assert [on_device(layer, d).members(core, Dim.SEQUENCE) for d in (0, 3, 5)] == [
        (0, 2),
        (1, 3),
        (5, 7),
    ]


def test_expert_groups() -> None:
    """ep 4: all four exchange tokens. ep 2 beside f 2 in each half of the batch: strides 2 and
    1."""
    whole = layer_of(
        sparse(),
        "all = s4 via ring",
        "router = s4",
        "experts = e4",
        devices=4,
        layers=8,
        block="sparse",
    )
    assert [on_device(whole, d).expert_groups() for d in (0, 3)] == [
        ((0, 1, 2, 3), (0,)),
        ((0, 1, 2, 3), (3,)),
    ]
    lines = ("all = b2 s4 via ring", "router = b2 s4", "experts = b2 e2 f2")
    halves = layer_of(sparse(), *lines, devices=8, layers=8, block="sparse")
    assert [on_device(halves, d).expert_groups() for d in (0, 3, 7)] == [
        ((0, 2), (0, 1)),
        ((1, 3), (2, 3)),
        ((5, 7), (6, 7)),
    ]


ONE = {"mbs": np.ones(1, dtype=np.int64)}
_PASSES = {AG: 1, RS: 1, A2A: 1, AR: 2}


@pytest.mark.parametrize(
    "lines",
    [
        ("all = t4", "stream = s4"),
        ("all = t4",),
        ("all = s4", "core = h4"),
        ("all = b2 t2", "stream = b2 s2"),
    ],
)
def test_bytes_of_moves_are_what_the_transition_receives(lines: tuple[str, ...]) -> None:
    """Over all devices: V (n - 1) / n of a gather, a scatter or an exchange, twice that of an
    all_reduce."""
    layer = layer_of(dense(), *lines, devices=4, layers=8)
    compared = 0
    for target in layer.block.operators:
        for name in target.inputs:
            if name == "input" or (target.kind is OperatorKind.RESIDUAL and name != "proj"):
                continue
            source, counted = operator_of(layer, name), 0
            for device in range(4):
                for change in on_device(layer, device).changes(
                    source, target, length=LENGTH, element=1
                ):
                    kind = change.forward or change.backward
                    assert kind is not None
                    size, n = (
                        sum(v.times for v in (*change.forward_volume, *change.backward_volume)),
                        len(change.group),
                    )
                    assert size % n == 0
                    counted += _PASSES[kind] * size // n * (n - 1)
            received = 0
            for extent in dict.fromkeys(source.writes):
                made, wanted = (
                    f(layer.cells, o, extent, LENGTH)
                    for f, o in ((made_layout, source), (wanted_layout, target))
                )
                full = tuple(Holding(device=h.device, box=h.box) for h in made)
                for one, other in (
                    (made, wanted),
                    (cotangent_layout(layer.cells, target, extent, LENGTH), full),
                ):
                    received += source.writes.count(extent) * sum(
                        n for _, n in transition(one, other).received
                    )
            assert counted == received, (name, target.name)
            compared += received > 0
    assert compared >= 2


def problem_of(model: Model) -> Problem:
    job = training_job(seq_len=LENGTH, global_batch=SAMPLES)
    return Problem(
        model=model,
        cluster=parse_cluster("h100-sxm:8"),
        job=job,
        runtime=load_runtime("megatron-core"),
    )


def flops(model: Model, *lines: str, devices: int, block: str = "layer") -> dict[str, int]:
    """GEMM FLOPs of the forward by operator, summed over the devices."""
    layer, problem = (
        layer_of(model, *lines, devices=devices, layers=8, block=block),
        problem_of(model),
    )
    total: dict[str, int] = {}
    for device in range(devices):
        program = lower_block(
            layer.block, on_device(layer, device), block_context(problem, layer.block)
        )
        for work in program.works:
            if work.phase is Phase.F and work.kernel in (KernelKind.GEMM, KernelKind.GROUPED_GEMM):
                total[work.operator] = total.get(work.operator, 0) + gemm_flops(work, ONE)
    return total


@pytest.mark.parametrize(
    ("lines", "devices"),
    [
        (("all = t[3:1]{., .+1}",), 2),
        (("all = b[3:1]{t4, .+4}",), 5),
        (("all = s4z via ring",), 4),
        (("all = t4", "mlp = d4", "attn = d4"), 4),
        (("all = b[5:3]{., .+1}", "mlp = f2", "core = h2"), 2),
        (("all = s[3:1]{h2, f2+2}",), 4),
    ],
)
def test_flops_of_gemms_are_the_unsplit_models(lines: tuple[str, ...], devices: int) -> None:
    whole, parts = flops(dense(), "all = .", devices=1), flops(dense(), *lines, devices=devices)
    copied = 2 if "h2, f2" in lines[0] else 1
    if copied == 1:
        assert parts == whole
    else:  # a quarter of the tokens runs attention twice, three quarters run the MLP twice
        assert parts["qkv"] == whole["qkv"] * 5 // 4
        assert parts["up"] == whole["up"] * 7 // 4


def test_flops_of_key_heads_fewer_than_parts_are_counted_for_each_part() -> None:
    """16 query and 4 key heads on 8 devices: queries once, keys and values twice."""
    model = dense(kv_heads=4)
    whole, parts = flops(model, "all = .", devices=1), flops(model, "all = t8", devices=8)
    assert whole["qkv"] == 2 * SAMPLES * LENGTH * 128 * (128 + 2 * 32)
    assert parts["qkv"] == 2 * SAMPLES * LENGTH * 128 * (128 + 2 * 64)
    assert parts["up"] == whole["up"]
    assert parts["proj"] == whole["proj"]


def test_flops_of_weighted_experts() -> None:
    lines = ("all = .", "router = b[3:1]{., .+1}", "experts = e[3:1]{., .+1}")
    whole, parts = (
        flops(sparse(), "all = .", devices=1, block="sparse"),
        flops(sparse(), *lines, devices=2, block="sparse"),
    )
    assert parts == whole
