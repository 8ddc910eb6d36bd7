"""State-space mixers: counts, extents that a split on t cuts, and errors."""

from __future__ import annotations

import pytest

from shardwright.model.ir.operator import OperatorClass, OperatorKind
from shardwright.model.ir.tensor_dims import Dim
from tests.model.extra_reference import block_of, changed, model_of, operator_of, pattern, refusal


def test_a_mamba2_layer_is_one_mixer() -> None:
    model = model_of("mamba2")
    assert pattern(model) == [("embed", 1), ("mamba", 3), ("head", 1)]
    block = block_of(model, "mamba")
    assert [o.name for o in block.operators] == [
        "norm",
        "in_proj",
        "conv",
        "scan",
        "gate",
        "gate_norm",
        "out_proj",
        "residual",
    ]
    assert {o.klass for o in block.operators[1:-1]} == {OperatorClass.SSM}


def test_in_proj_is_cut_between_heads_and_groups() -> None:
    # z and x: 12 heads of 8; B and C: 2 groups of 16; dt: one element a head.
    in_proj = operator_of(block_of(model_of("mamba2"), "mamba"), "in_proj")
    assert [(e.size, e.quantum) for e in in_proj.writes] == [
        (96, 8),
        (96, 8),
        (32, 16),
        (32, 16),
        (12, 1),
    ]
    assert in_proj.width() is Dim.HEADS
    assert sum(e.size for e in in_proj.writes) == 2 * 96 + 2 * 2 * 16 + 12


def test_the_scan_has_the_shape_of_the_recurrence() -> None:
    scan = operator_of(block_of(model_of("mamba2"), "mamba"), "scan")
    assert scan.kind is OperatorKind.SCAN
    assert scan.scan is not None
    assert (
        scan.scan.heads,
        scan.scan.head_dim,
        scan.scan.state,
        scan.scan.groups,
        scan.scan.chunk,
    ) == (12, 8, 16, 2, 8)
    assert sum(p.size for p in scan.parameters) == 3 * 12
    conv = operator_of(block_of(model_of("mamba2"), "mamba"), "conv")
    assert conv.kind is OperatorKind.CONV
    assert sum(p.size for p in conv.parameters) == (96 + 2 * 32) * (4 + 1)


def test_mamba1_sums_over_channels_before_the_step() -> None:
    block = block_of(model_of("mamba"), "mamba")
    x_proj = operator_of(block, "x_proj")
    assert [e.dim for e in x_proj.reads] == [Dim.HEADS]
    assert {e.dim for e in x_proj.writes} == {Dim.HIDDEN}
    assert [e.size for e in x_proj.writes] == [3, 16, 16]
    scan = operator_of(block, "scan").scan
    assert scan is not None
    assert (scan.heads, scan.head_dim) == (96, 1)


def test_projection_biases_are_counted() -> None:
    grown = changed("mamba2", use_bias=True).num_parameters - model_of("mamba2").num_parameters
    assert grown == 3 * (2 * 96 + 2 * 32 + 12 + 48)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_heads": 10}, "num_heads x head_dim"),
        ({"n_groups": 5}, "n_groups"),
        ({"state_size": None}, "state_size"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"conv_kernel": "4"}, "conv_kernel"),
    ],
)
def test_errors_name_the_field(fields: dict[str, object], named: str) -> None:
    assert named in refusal("mamba2", **fields)
