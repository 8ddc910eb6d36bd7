"""Tables of serving kernels: what is shipped, how it is looked up, and how a grid is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwright.hardware.tables
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.catalog.measured_serving_kernels import (
    SERVED,
    OctaveGrid,
    engine_curves,
    serving_tables,
)

TABLES = [serving_tables(name) for name in SERVED]


def test_every_file_is_small_and_attributed() -> None:
    folder = Path(next(iter(shardwright.hardware.tables.__path__)))
    assert {path.name for path in folder.glob("*-serving.npz")} == {
        f"{name}-serving.npz" for name in SERVED
    }
    assert all(path.stat().st_size < 32 * 1024 for path in folder.glob("*-serving.npz"))
    assert "serving_tables.py" in (folder / "ATTRIBUTION.txt").read_text()


def test_weights_in_groups_have_the_kernels_of_their_format() -> None:
    tables = [
        one
        for one in TABLES
        if one is not None and any(expert.weights == "int4" for expert in one.experts)
    ]
    assert tables
    for one in tables:
        (multiplied, *_) = (expert.multiplied for expert in one.experts if expert.weights == "int4")
        found = [
            one.expert(weights=weights, multiplied=multiplied, library="vllm")
            for weights in ("int4", "int4-group32", "int3")
        ]
        assert found[0] is found[1] is not None
        assert found[2] is None


@pytest.mark.parametrize("name", SERVED)
def test_decode_never_falls(name: str) -> None:
    """Starts, and slopes of all sequences and key heads together, along sequences, key heads, and
    rows from two on."""
    tables = serving_tables(name)
    assert tables is not None
    assert tables.decodes
    for table in tables.decodes:
        sequences, key_heads, _ = table.slope.axes
        total = table.slope.octaves + sequences[:, None, None] + key_heads[None, :, None]
        for grid in (table.start.octaves, total):
            assert (np.diff(grid, axis=0) >= -1e-12).all()
            assert (np.diff(grid, axis=1) >= -1e-12).all() or table.head_dim != table.value_dim
            assert (np.diff(grid[:, :, 1:], axis=2) >= -1e-12).all()


@pytest.mark.parametrize("name", SERVED)
def test_forms_are_within_what_the_device_can_do(name: str) -> None:
    tables = serving_tables(name)
    assert tables is not None
    for table in (*tables.products, *tables.experts):
        assert 0.3 < table.form.launches < 100
        assert 0 < table.form.compute_efficiency <= 1
        assert 0 < table.form.memory_efficiency <= 1
        assert table.form.exponent >= 1


def test_an_engine_without_rows_takes_anothers() -> None:
    tables = serving_tables("h200-sxm")
    assert tables is not None
    named = {
        library: tables.product(weights="bf16", multiplied=Dtype.BF16, library=library)
        for library in ("vllm", "sglang", "nobody")
    }
    assert [None if t is None else t.library for t in named.values()] == [
        "vllm",
        "sglang",
        "sglang",
    ]
    latent = tables.decode(shape=(576, 512), cached=16, library="vllm")
    assert latent is not None
    assert latent.library != "vllm"
    assert tables.product(weights="nvfp4", multiplied=Dtype.FP4, library="vllm") is None


def test_heads_that_were_not_measured_take_the_nearest() -> None:
    tables = serving_tables("h200-sxm")
    assert tables is not None
    for dim, nearest in ((64, 64), (80, 64), (96, 128), (112, 128), (192, 256), (512, 256)):
        table = tables.decode(shape=(dim, dim), cached=16, library="vllm")
        assert table is not None
        assert table.head_dim == nearest


def test_parts_of_one_die_share_tables_and_others_have_none() -> None:
    assert serving_tables("gh200-96gb") is serving_tables("h100-sxm")
    assert serving_tables("mi300x") is None


def test_curves_are_named_by_library() -> None:
    node = default_node(accelerator("h200-sxm"))
    assert {(c.collective, c.num_devices) for c in engine_curves(node, library="vllm")} == {
        ("all_reduce", n) for n in (2, 4, 8)
    }
    assert {c.collective for c in engine_curves(node, library="deepep")} == {
        f"{mode}-{way}" for mode in ("low-latency", "normal") for way in ("dispatch", "combine")
    }
    assert engine_curves(node, library="nobody") == ()
    assert engine_curves(default_node(accelerator("mi300x")), library="vllm") == ()
    for curve in engine_curves(node, library="vllm"):
        assert (np.diff(curve.log_volume) > 0).all()
        assert (np.diff(curve.log_seconds) >= 0).all()


@given(x=st.floats(0.01, 1e6), y=st.floats(0.01, 1e6))
def test_a_grid_is_linear_in_logarithms_and_held_at_its_edges(x: float, y: float) -> None:
    grid = OctaveGrid(
        axes=(np.array([0.0, 1.0, 4.0]), np.array([2.0, 3.0])),
        octaves=np.array([[0.0, 1.0], [1.0, 2.0], [4.0, 5.0]]),
    )
    held = np.clip(np.log2(x), 0, 4) + np.clip(np.log2(y), 2, 3) - 2
    assert float(grid.ratio(np.array(x), np.array(y))) == pytest.approx(2.0**held, rel=1e-12)
