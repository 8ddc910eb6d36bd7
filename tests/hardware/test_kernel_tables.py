"""The shipped tables: sane, readable where an installed package has them, exact at their points,
and not read before they are needed."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import accelerator
from shardwright.hardware.catalog.default_nodes import default_node
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    SAME_DIE,
    SAME_LINKS,
    TABLES,
    KernelTables,
    attention_fraction,
    collective_curves,
    curve_seconds,
    gemm_correction,
    grouped_correction,
    inside_grid,
    kernel_tables,
)
from tests.tiers import examples

KIB = 1024
MIB = 1024 * KIB


def tables_of(name: str) -> KernelTables:
    tables = kernel_tables(name)
    assert tables is not None
    return tables


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_files_are_in_the_package_with_their_licence_and_small() -> None:
    folder = importlib.resources.files("shardwright.hardware.tables")
    names = {f.name for f in folder.iterdir()}
    assert {f"{name}.npz" for name in TABLES} | {"ATTRIBUTION.txt"} <= names
    assert "Apache License, Version 2.0" in folder.joinpath("ATTRIBUTION.txt").read_text()
    assert sum(len(folder.joinpath(f"{name}.npz").read_bytes()) for name in TABLES) < 512 * KIB


def test_help_and_the_catalog_read_no_table() -> None:
    code = (
        "import sys, contextlib, io\nsys.argv = ['shardwright', '--help']\nfrom"
        " shardwright.__main__ import main\nwith contextlib.redirect_stdout(io.StringIO()),"
        " contextlib.suppress(SystemExit):\n    main()\nimport"
        " shardwright.hardware.catalog.accelerators_by_name\n"
        "print('shardwright.hardware.tables' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", TABLES)
class TestEveryTable:
    def test_grids_are_over_the_rates_of_the_catalog(self, name: str) -> None:
        """A change of the four numbers calls for a new table: until then the grid would not be used
        at all."""
        rates = {r.dtype: r for r in accelerator(name).gemm}
        grids = tables_of(name).gemm
        assert Dtype.BF16 in {g.dtype for g in grids}
        assert all(g.corrects(rates[g.dtype]) for g in grids)
        slower = replace(
            rates[Dtype.BF16], compute_efficiency=0.9 * rates[Dtype.BF16].compute_efficiency
        )
        assert not tables_of(name).gemm[0].corrects(slower)

    def test_corrections_are_sane(self, name: str) -> None:
        for grid in tables_of(name).gemm:
            ratio = np.exp2(grid.octaves)
            # Small products that stay in a large cache, over rates that are assumed (L40S, RTX PRO
            # 6000).
            assert ratio.min() > 0.2
            assert ratio.max() < 8.0
            large = (
                (grid.m >= 10)[:, None, None]
                & (grid.n >= 10)[None, :, None]
                & (grid.k >= 10)[None, None, :]
            )
            assert 0.6 < np.median(ratio[large]) < 1.7
            assert grid.measured.mean() > 0.9

    def test_grids_are_exact_at_their_points_and_between_neighbours(self, name: str) -> None:
        grid = tables_of(name).gemm[0]
        i, j, k = 4, 7, 9
        at = (floats(2 ** grid.m[i]), floats(2 ** grid.n[j]), floats(2 ** grid.k[k]))
        assert gemm_correction(grid, m=at[0], n=at[1], k=at[2])[0] == pytest.approx(
            2 ** grid.octaves[i, j, k], rel=1e-9
        )
        middle = floats(2 ** ((grid.k[k] + grid.k[k + 1]) / 2))
        expected = 2 ** ((grid.octaves[i, j, k] + grid.octaves[i, j, k + 1]) / 2)
        assert gemm_correction(grid, m=at[0], n=at[1], k=middle)[0] == pytest.approx(
            expected, rel=1e-9
        )

    def test_grids_hold_their_edge(self, name: str) -> None:
        grid = tables_of(name).gemm[0]
        edge = floats(2 ** grid.m[-1])
        n = k = floats(4096.0)
        assert gemm_correction(grid, m=16 * edge, n=n, k=k) == pytest.approx(
            gemm_correction(grid, m=edge, n=n, k=k)
        )
        assert inside_grid(grid, m=edge / 2, n=n, k=k)[0]
        assert not inside_grid(grid, m=16 * edge, n=n, k=k)[0]

    def test_attention_is_a_fraction_and_grows_with_work(self, name: str) -> None:
        tables = tables_of(name)
        assert {128} <= {a.head_dim for a in tables.attention}
        for table in tables.attention:
            assert (table.fraction > 0.0).all()
            assert (table.fraction < 0.9).all()
            long = attention_fraction(table, length=floats(16384.0), heads=floats(32.0))
            short = attention_fraction(table, length=floats(512.0), heads=floats(32.0))
            assert long[0] > 1.3 * short[0]

    def test_experts_of_many_wide_matrices_run_as_dense_ones(self, name: str) -> None:
        for table in tables_of(name).grouped:
            wide = grouped_correction(table, tokens=floats(1024.0), width=floats(4096.0))[0]
            narrow = grouped_correction(table, tokens=floats(1024.0), width=floats(256.0))[0]
            assert 0.6 < wide < 3.0
            assert 0.6 < narrow < 5.0

    def test_curves_rise_and_slow_down_no_more_than_in_proportion(self, name: str) -> None:
        node = default_node(accelerator(name))
        curves = collective_curves(node)
        assert len(curves) >= 8
        for curve in curves:
            volume = np.geomspace(64, 8e9, 200)
            link = np.full(200, curve.bandwidth), np.full(200, curve.latency_s)
            seconds = curve_seconds(curve, volume=volume, bandwidth=link[0], latency_s=link[1])
            assert (np.diff(seconds) >= 0.0).all()
            assert seconds[0] > 1e-6
            times = 2.0 if curve.collective == "all_reduce" else 1.0
            bus = times * (curve.num_devices - 1) / curve.num_devices * volume[-1] / seconds[-1]
            assert 0.2 * curve.bandwidth < bus
            assert bus < node.scale_up.bandwidth * (1.2 if node.in_network_reduction else 1.0)


@examples(50, 500)
@given(st.floats(1e3, 1e10), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_curves_rescale(volume: float, seconds: float, size: float) -> None:
    """Bytes counted in another unit and a clock that runs at another speed change the answer by the
    clock's factor only."""
    curve = collective_curves(default_node(accelerator("h100-sxm")))[0]
    link = floats(curve.bandwidth), floats(curve.latency_s)
    once = curve_seconds(curve, volume=floats(volume), bandwidth=link[0], latency_s=link[1])
    again = curve_seconds(
        curve,
        volume=floats(volume * size),
        bandwidth=link[0] * size / seconds,
        latency_s=link[1] * seconds,
    )
    assert again[0] == pytest.approx(seconds * once[0], rel=1e-9)


# Bus bandwidth in GB/s, 512 MiB: published beside the tables that the files come from.
PUBLISHED = (
    ("h100-sxm", "all_reduce", 2, 512 * MIB, 321),
    ("h100-sxm", "all_reduce", 4, 512 * MIB, 349),
    ("h100-sxm", "all_reduce", 8, 512 * MIB, 445),
    ("h100-sxm", "all_reduce", 8, 128 * MIB, 406),
    ("h100-sxm", "all_reduce", 8, 8 * MIB, 186),
    ("h100-sxm", "all_gather", 8, 512 * MIB, 336),
    ("h100-sxm", "reduce_scatter", 4, 512 * MIB, 310),
    ("h100-sxm", "all_to_all", 8, 512 * MIB, 317),
    ("b200-sxm", "all_reduce", 8, 512 * MIB, 702),
    ("b200-sxm", "all_to_all", 8, 512 * MIB, 565),
    ("a100-sxm-80gb", "all_reduce", 8, 512 * MIB, 222),
    ("gb200-nvl72", "all_reduce", 4, 512 * MIB, 628),
)


@pytest.mark.parametrize(("name", "kind", "devices", "volume", "bus"), PUBLISHED)
def test_published_bandwidths(name: str, kind: str, devices: int, volume: int, bus: float) -> None:
    curve = next(
        c
        for c in collective_curves(default_node(accelerator(name)))
        if (c.collective, c.num_devices) == (kind, devices)
    )
    seconds = curve_seconds(
        curve,
        volume=floats(volume),
        bandwidth=floats(curve.bandwidth),
        latency_s=floats(curve.latency_s),
    )[0]
    times = 2 if kind == "all_reduce" else 1
    assert times * (devices - 1) / devices * volume / seconds / 1e9 == pytest.approx(bus, rel=0.02)


def test_published_attention() -> None:
    """H100, 32 heads of 128 and 8192 tokens: .61 of peak with the serving operator's start and
    cache, so somewhat more without."""
    table = tables_of("h100-sxm").attention_table(head_dim=128, value_dim=128)
    assert table is not None
    assert 0.60 < attention_fraction(table, length=floats(8192.0), heads=floats(32.0))[0] < 0.66


def test_heads_that_were_not_measured_take_the_nearest() -> None:
    tables = tables_of("h100-sxm")
    near = tables.attention_table(head_dim=96, value_dim=96)
    assert near is not None
    assert near.head_dim in (64, 128)
    latent = tables.attention_table(head_dim=192, value_dim=128)
    assert latent is not None
    assert (latent.head_dim, latent.value_dim) == (192, 128)


def test_links_that_are_not_the_measured_ones_have_no_curve() -> None:
    node = default_node(accelerator("h100-sxm"))
    assert collective_curves(node)
    other = replace(
        node, scale_up=replace(node.scale_up, efficiency=0.5 * node.scale_up.efficiency)
    )
    assert collective_curves(other) == ()
    assert collective_curves(replace(node, scale_up=replace(node.scale_up, latency_s=0.0))) == ()
    assert collective_curves(replace(node, in_network_reduction=False)) == ()
    assert collective_curves(default_node(accelerator("mi300x"))) == ()


def test_parts_of_the_same_die_borrow_their_sibling() -> None:
    assert set(SAME_LINKS) <= set(SAME_DIE)
    for part, sibling in SAME_DIE.items():
        assert accelerator(part).name == part
        assert kernel_tables(part) is kernel_tables(sibling)
        assert (
            tables_of(part)
            .gemm[0]
            .corrects(next(r for r in accelerator(part).gemm if r.dtype is Dtype.BF16))
        )
    assert kernel_tables("mi300x") is None
