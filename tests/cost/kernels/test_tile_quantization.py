"""What products lose by their shape: whole tiles and waves of them, and operands whose rows are no
multiple of 16 bytes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from shardwright.cost.kernels.accelerator_rates import Machine, machine_of
from shardwright.cost.kernels.gemm_element_attention_seconds import gemm_seconds
from shardwright.cost.kernels.measured_kernel_factors import roofline_seconds
from shardwright.cost.kernels.tile_quantization import staging, unaligned, wave_padding
from shardwright.cost.tables.all_block_costs_by_degrees import layer_table
from shardwright.dtype import Dtype
from shardwright.hardware.catalog.accelerators_by_name import ACCELERATORS, accelerator
from shardwright.hardware.catalog.measured_gemm_attention_collective_tables import (
    SAME_DIE,
    TABLES,
    kernel_tables,
)
from shardwright.hardware.catalog.multiprocessors_and_gemm_tiles import (
    MULTIPROCESSORS,
    Multiprocessors,
)
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    ElementKernels,
)
from shardwright.strategy.grid.parallelism_grid import Grid
from tests.cost.prices import rows_of
from tests.program.small import cluster_of, problem_of
from tests.registries import place
from tests.strategies import dense_model

LISTED = place("src/shardwright/hardware/catalog/multiprocessors_and_gemm_tiles.py", "_LISTED")
ONE_TILE = Multiprocessors(count=40, tiles=((128, 128),))


def machine(name: str, compute: Dtype = Dtype.FP16) -> Machine:
    return machine_of(
        accelerator(name),
        compute=compute,
        attention=AttentionKernel.FLASH_2,
        elements=ElementKernels.FUSED,
    )


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def padding(
    parts: Multiprocessors,
    m: float,
    n: float,
    k: float,
    groups: float = 1.0,
    intensity: float = 1e9,
) -> float:
    """With sums that cost so much that k is never cut, unless `intensity` says otherwise."""
    sides = {
        "m": np.array([m]),
        "n": np.array([n]),
        "k": np.array([k]),
        "groups": np.array([groups]),
    }
    return float(wave_padding(parts, **sides, element_bytes=2.0, intensity=intensity)[0])


def test_every_listed_part_is_in_the_catalog_and_every_table_s_device_is_listed() -> None:
    assert set(MULTIPROCESSORS) <= {a.name for a in ACCELERATORS}
    assert {*TABLES, *SAME_DIE} <= set(MULTIPROCESSORS)
    for alias, name in SAME_DIE.items():
        assert MULTIPROCESSORS[alias] == MULTIPROCESSORS[name]


def test_their_multiplications_make_the_peak_at_a_clock_that_such_parts_have() -> None:
    for name, parts in MULTIPROCESSORS.items():
        if parts.multiplications:
            device = accelerator(name)
            peak = device.peak(Dtype.BF16) or device.peak(Dtype.FP16)
            clock = peak / (2 * parts.count * parts.multiplications)
            assert 0.9e9 < clock < 2.7e9, (
                f"{name} would run at {clock / 1e9:.2f} GHz: change its count or kind in {LISTED}"
            )


def test_waves_cost_whole() -> None:
    assert padding(ONE_TILE, 128 * 40, 128, 4096) == 1.0
    assert padding(ONE_TILE, 128 * 41, 128, 4096) == pytest.approx(80 / 41)
    assert padding(ONE_TILE, 128 * 8 - 1, 128 * 5, 4096) == pytest.approx(1024 / 1023)
    assert padding(ONE_TILE, 128, 128, 4096) == 40.0
    assert padding(ONE_TILE, 128, 128, 4096, groups=20) == 2.0, (
        "the tiles of equal products share the waves"
    )
    assert padding(ONE_TILE, 128 * 40, 128, 65) == pytest.approx(128 / 65)


def test_a_few_deep_tiles_are_cut_along_k() -> None:
    free, dear = (
        padding(ONE_TILE, 256, 256, 16384, intensity=0.0),
        padding(ONE_TILE, 256, 256, 16384),
    )
    assert free == pytest.approx(2 * 40 / 64)
    assert dear == 10.0
    some = padding(ONE_TILE, 256, 256, 16384, intensity=100.0)
    assert some == pytest.approx(40 / 32 + 8 * 8 * 100 / 16384)
    assert free < some < dear


def test_larger_tiles_fetch_less_and_smaller_ones_fill_the_device() -> None:
    parts = MULTIPROCESSORS["t4"]
    both = replace(parts, tiles=((256, 128), (64, 64)))
    large, small = replace(both, tiles=((256, 128),)), replace(both, tiles=((64, 64),))
    assert staging(parts, (256, 128), element_bytes=2.0) < staging(
        parts, (64, 64), element_bytes=2.0
    )
    assert padding(both, 8192, 8192, 1024) == padding(large, 8192, 8192, 1024)
    assert padding(both, 512, 512, 1024) < padding(large, 512, 512, 1024)
    assert padding(small, 8192, 8192, 1024) < 1.01, "over the best of the tiles that there are"


def scatter(name: str) -> tuple[float, float]:
    """Spread of ln(predicted / measured) over the device's grid by the roofline, and with waves."""
    device, tables = accelerator(name), kernel_tables(name)
    grid = tables.gemm_grid(Dtype.BF16) if tables is not None else None
    assert grid is not None
    rates = next(r for r in device.gemm if r.dtype is Dtype.BF16)
    sides = np.meshgrid(*(2.0**axis for axis in (grid.m, grid.n, grid.k)), indexing="ij")
    wanted = grid.measured & np.all([side >= 512 for side in sides], axis=0) & (sides[2] <= 8192)
    m, n, k = (side[wanted] for side in sides)
    shape = {
        "peak": device.peak(Dtype.BF16),
        "bandwidth": device.memory_bandwidth,
        "width": 2.0,
        "m": m,
        "n": n,
        "k": k,
    }
    plain = roofline_seconds(rates, **shape) + rates.overhead_s
    intensity = (
        device.peak(Dtype.BF16)
        * rates.compute_efficiency
        / 2
        / device.memory_bandwidth
        / rates.memory_efficiency
    )
    waves = wave_padding(
        MULTIPROCESSORS[name],
        m=m,
        n=n,
        k=k,
        groups=np.ones_like(m),
        element_bytes=2.0,
        intensity=intensity,
    )
    waved = roofline_seconds(rates, **shape, padding=waves) + rates.overhead_s
    measured = plain * 2.0 ** grid.octaves[wanted]
    return float(np.log(plain / measured).std()), float(np.log(waved / measured).std())


@pytest.mark.parametrize("name", ["a100-sxm-80gb", "rtx-pro-6000", "l40s", "h100-sxm", "b200-sxm"])
def test_waves_are_where_measured_products_show_them(name: str) -> None:
    plain, waved = scatter(name)
    assert (waved < plain) == MULTIPROCESSORS[name].waves


def test_waves_are_counted_once() -> None:
    """A table has them, a fit their mean; stated defaults have neither."""
    m, n, k = ints(512), ints(768), ints(1024)
    shape = {"m": m.astype(float), "n": n.astype(float), "k": k.astype(float), "groups": np.ones(1)}
    t4 = machine("t4")
    fitted = replace(t4, gemm=replace(t4.gemm, origin=machine("a100-sxm-80gb").gemm.origin))
    assert gemm_seconds(t4, m=m, n=n, k=k)[0] > 1.2 * gemm_seconds(fitted, m=m, n=n, k=k)[0]
    a100 = machine("a100-sxm-80gb", Dtype.BF16)
    assert (
        wave_padding(MULTIPROCESSORS["a100-sxm-80gb"], **shape, element_bytes=2.0, intensity=1e9)[0]
        > 1.2
    )
    renamed = replace(a100, accelerator=replace(a100.accelerator, name="a800-sxm-80gb"))
    assert gemm_seconds(a100, m=m, n=n, k=k) == gemm_seconds(renamed, m=m, n=n, k=k)


def test_tpus_pad_to_their_arrays() -> None:
    for name, side in (("tpu-v5p", 128), ("tpu-v6e", 256)):
        assert padding(MULTIPROCESSORS[name], 4096, side, side) == 1.0
        assert padding(MULTIPROCESSORS[name], 4096, 64, side) == pytest.approx(side / 64)
        assert padding(MULTIPROCESSORS[name], 4096, side, 64) == pytest.approx(side / 64)


class TestUnaligned:
    def slower(self, name: str, side: int, *, width: float = 2.0) -> float:
        return float(np.max(unaligned(name, (ints(4096), ints(side)), element_bytes=width)))

    def test_the_more_loads_the_slower(self) -> None:
        for name, parts in MULTIPROCESSORS.items():
            found = [self.slower(name, 4096 + odd) for odd in (8, 4, 2, 1)]
            assert found[0] == 1.0
            assert found == sorted(found)
            assert (found[3] > found[1] > 1.0) == bool(parts.multiplications), name

    def test_eight_bits_need_sixteen_elements_and_half_of_them_none_of_their_own(self) -> None:
        assert self.slower("h100-sxm", 4096 + 16, width=1.0) == 1.0
        assert self.slower("h100-sxm", 4096 + 8, width=1.0) == pytest.approx(
            self.slower("h100-sxm", 4096 + 4)
        )
        assert self.slower("b200-sxm", 4096 + 32, width=0.5) == 1.0
        assert self.slower("b200-sxm", 4096 + 16, width=0.5) > 1.0

    def test_ada_by_hand_and_as_measured(self) -> None:
        """2 instructions for each of (128 + 128) x 2 elements of 2 bytes on 16 lanes, beside 128 x
        128 / 256 clocks a step of k."""
        parts, odd, even = MULTIPROCESSORS["rtx-4090"], 256 * 2 / 16, 256 / 8 / 16
        assert staging(parts, (128, 128), element_bytes=2.0, run=2) == pytest.approx(
            odd / (128 * 128 / 256)
        )
        assert self.slower("rtx-4090", 2055) == pytest.approx((64 + odd) / (64 + even))
        # bf16 products of 2055 against 2040: 115.6 and 155.9 TFLOP/s (pytorch/pytorch#181718)
        assert self.slower("rtx-4090", 2055) == pytest.approx(155.9 / 115.6, rel=0.1)

    def test_tokens_are_no_row(self) -> None:
        """Ragged m keeps the rows whole; the weight gradient is contiguous along the same two
        widths."""
        one = machine("h100-sxm", Dtype.BF16)
        seconds = [
            gemm_seconds(one, m=ints(m), n=ints(n), k=ints(4096))[0]
            for m, n in ((8192, 4096), (8191, 4096), (8192, 4095))
        ]
        assert seconds[1] < 1.01 * seconds[0] < 1.5 * seconds[0] < seconds[2]
        gradient = partial(gemm_seconds, one, m=ints(4096), n=ints(4096), k=ints(8191))
        assert gradient()[0] > 1.5 * gradient(widths=(ints(4096), ints(4096)))[0]

    def test_a_layer_of_odd_width_is_slower_in_all_passes(self) -> None:
        def layer(ffn: int, tokens: int) -> np.ndarray:
            model = dense_model(layers=1, ffn=ffn)
            made = problem_of(
                model, cluster_of(8, node=8, accelerator="a100-sxm-80gb"), seq_len=tokens
            )
            index = next(i for i, b in enumerate(model.blocks) if b.name == "layer")
            return np.asarray(layer_table(made, rows_of([Grid(dp=8)])).seconds[index, :3, 0, 0])

        odd, even, ragged = layer(8191, 4096), layer(8192, 4096), layer(8192, 4095)
        assert (odd > 1.1 * even).all()
        assert (ragged < 1.02 * even).all()
