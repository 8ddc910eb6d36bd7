"""Every accelerator is complete, ordered sanely and sourced."""

from __future__ import annotations

import itertools
import re

import pytest

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Accelerator, Evidence, GemmRates
from shardwright.hardware.catalog.accelerators_by_name import (
    ACCELERATORS,
    accelerator,
    accelerator_names,
    name_key,
)
from shardwright.hardware.catalog.compute_capability_by_gpu import generation_of
from shardwright.hardware.catalog.default_node_table import ROWS, NodeRow
from shardwright.hardware.catalog.default_nodes import PCIE_GB_PER_S, default_node
from shardwright.hardware.catalog.fitted_training_constants import SHIPPED, family_of
from shardwright.hardware.catalog.power_limits import power_limit
from shardwright.hardware.files.read_cluster_file import load_cluster
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import AttentionKernel
from shardwright.units import BITS_PER_BYTE, GIB, GIGA
from tests.hardware.assumed import assumptions
from tests.hardware.catalog_rows import NODES, node_of
from tests.registries import place, require_members

LISTED = place("src/shardwright/hardware/catalog/multiprocessors_and_gemm_tiles.py", "_LISTED")
ENTRIES = place("src/shardwright/hardware/catalog")
EVERY = pytest.mark.parametrize("device", ACCELERATORS, ids=lambda a: a.name)


def test_there_are_enough_and_each_has_a_node() -> None:
    assert len(ACCELERATORS) >= 35
    assert len(set(accelerator_names())) == len(ACCELERATORS)
    require_members(ROWS, accelerator_names(), NODES)


def test_no_name_or_alias_is_taken_twice() -> None:
    owners: dict[str, list[str]] = {}
    for device in ACCELERATORS:
        for key in {name_key(name) for name in (device.name, *device.aliases)}:
            owners.setdefault(key, []).append(device.name)
    twice = [f"{key} ({' and '.join(names)})" for key, names in owners.items() if len(names) > 1]
    assert not twice, (
        f"two entries have the name or alias {', '.join(twice)}: remove it from the aliases of one"
        f" entry in {ENTRIES}"
    )


@EVERY
def test_rates_lie_below_their_peaks(device: Accelerator) -> None:
    assert device.memory_bytes > 8 * GIB
    assert 100e9 < device.memory_bandwidth < 20e12
    assert device.origin.reference
    for rates in device.gemm:
        assert 0 < rates.compute_efficiency <= 1
        assert 0 < rates.memory_efficiency <= 1
        assert rates.sustained >= 1
        assert rates.exponent >= 1
        assert rates.origin.reference
    for attention in device.attention:
        lengths = [length for length, _ in attention.forward]
        assert lengths == sorted(set(lengths))
        assert all(0 < fraction <= 0.75 for _, fraction in attention.forward)
        assert all(low <= high for (_, low), (_, high) in itertools.pairwise(attention.forward))
        assert 1.9 <= attention.backward_ratio <= 3.5
        assert attention.origin.reference
    assert 0 < device.element_efficiency <= 1
    assert device.overlap_slowdown >= 1
    assert 0 < device.failures_per_device_hour < 1e-3
    assert device.failures_origin is not None


@EVERY
def test_every_dtype_and_every_attention_kernel_of_a_device_has_a_rate(device: Accelerator) -> None:
    assert {g.dtype for g in device.gemm} == {dtype for dtype, _ in device.peak_flops}
    names = {a.generation for a in device.attention}
    if device.vendor == "NVIDIA" and generation_of(device) >= 8:
        assert names == {kernel.value for kernel in AttentionKernel}
    assert len(names) == len(device.attention) >= 2
    peaks = dict(device.peak_flops)
    order = [peaks[d] for d in (Dtype.FP32, Dtype.BF16, Dtype.FP8, Dtype.FP4) if d in peaks]
    assert order == sorted(order)


@EVERY
def test_number_formats_are_those_of_the_compute_capability(device: Accelerator) -> None:
    """bf16 and tf32 from 8.0 on (Ampere), fp8 from 8.9 (Ada, Hopper), fp4 from 10.0 (Blackwell)."""
    if device.vendor != "NVIDIA":
        return
    generation = generation_of(device)
    formats = {dtype for dtype, _ in device.peak_flops}
    for dtype, least in ((Dtype.BF16, 8), (Dtype.TF32, 8), (Dtype.FP4, 10)):
        assert (dtype in formats) == (generation >= least), (
            f"{device.name} has compute capability {generation}, and {dtype} is from {least} on:"
            f" change `peaks` of its entry in {ENTRIES}, or its kind in {LISTED}"
        )
    assert Dtype.FP8 in formats or generation < 9, f"`peaks` of {device.name} in {ENTRIES}: no fp8"


@EVERY
def test_assumed_numbers_have_wide_errors_and_are_listed(device: Accelerator) -> None:
    listed = assumptions(device)
    for rates in device.gemm:
        if rates.origin.evidence is Evidence.ASSUMED:
            assert rates.error >= 0.15
            assert f"gemm {rates.dtype.value}" in listed
        else:
            assert f"gemm {rates.dtype.value}" not in listed
    assert "launch_s" in listed


@EVERY
def test_node_links_reach_less_than_their_peak(device: Accelerator) -> None:
    kind = node_of(device)
    for link in (kind.scale_up, kind.nic, kind.host.pcie):
        assert 0 < link.achieved < link.bandwidth
        assert 0 < link.latency_s < 1e-3
        assert link.origin.reference
    assert kind.island % kind.num_devices == 0 or kind.num_devices % kind.island == 0
    assert kind.host.memory_bytes >= 128 * GIB, f"host_gib of {device.name}: {NODES}"


def gemm_rates(device: Accelerator, *, dtype: Dtype) -> GemmRates:
    return next(g for g in device.gemm if g.dtype is dtype)


def test_published_facts() -> None:
    h100 = accelerator("h100-sxm")
    assert h100.peak(Dtype.BF16) == 989e12
    assert h100.peak(Dtype.FP4) == 0.0
    assert gemm_rates(h100, dtype=Dtype.BF16).compute_efficiency == 0.779
    assert gemm_rates(h100, dtype=Dtype.BF16).sustained == SHIPPED.clock_hopper
    assert gemm_rates(accelerator("a100"), dtype=Dtype.BF16).sustained == SHIPPED.clock_ampere
    assert dict(next(a for a in h100.attention if a.generation == "flash-3").forward)[4096] == 0.53
    assert accelerator("v100").peak(Dtype.BF16) == 0.0
    assert accelerator("h200").memory_bytes < 141 * GIB
    assert 1.9e-5 < h100.failures_per_device_hour < 2.0e-5


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100-80GB", "h100-sxm"),
        ("h100", "h100-sxm"),
        ("H100_SXM", "h100-sxm"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("A100-40GB(DGX-A100)", "a100-sxm-40gb"),
        ("H100-96GB-HBM2e-500W", "h100-sxm-96gb-500w"),
        ("V100-16GB (AWS p3.16xlarge)", "v100-sxm-16gb"),
        ("V100-32GB(DGX-2)", "v100-sxm-32gb"),
        ("B200", "b200-sxm"),
        ("GB200", "gb200-nvl72"),
        ("TPUv5e", "tpu-v5e"),
        ("T4-16GB", "t4"),
        ("A800-80GB", "a800-sxm-80gb"),
        ("GH200-96GB", "gh200-96gb"),
        ("MI355X", "mi355x"),
    ],
)
def test_names_are_normalised(written: str, name: str) -> None:
    assert accelerator(written).name == name


def test_typo_names_the_nearest() -> None:
    with pytest.raises(ClusterError, match="did you mean h100-sxm"):
        accelerator("h100-smx")


def test_rates_of_a_fitted_family_follow_its_fitted_clock() -> None:
    """Efficiencies that are fitted for a family come with its clock, which fits change."""
    of_family = {
        device.name
        for device in ACCELERATORS
        for rates in device.gemm
        if "as fitted for" in rates.origin.reference or rates.origin.evidence is Evidence.FITTED
        if rates.sustained > 1.0
    }
    require_members(
        (name for name in of_family if family_of(name)),
        of_family,
        place("src/shardwright/hardware/catalog/fitted_training_constants.py", "_FAMILIES"),
    )


def test_a_host_link_is_pcie_or_has_its_own_rate() -> None:
    for name, row in ROWS.items():
        assert (row.pcie in PCIE_GB_PER_S) != (row.c2c_gb_per_s > 0), (
            f"{name}: give `pcie`, or 0 and `c2c_gb_per_s`, in {NODES}"
        )


def test_a_lower_power_limit_lowers_the_clock_by_the_cube_root_of_what_is_left_for_it() -> None:
    full = gemm_rates(accelerator("h100-sxm"), dtype=Dtype.BF16).sustained
    capped = gemm_rates(accelerator("h100-sxm-96gb-500w"), dtype=Dtype.BF16).sustained
    assert capped == pytest.approx(full * ((700 - 119) / (500 - 119)) ** (1 / 3))


FITTED_FOR = {
    device.name: (rates, found[1])
    for device in ACCELERATORS
    for rates in device.gemm
    if rates.dtype is Dtype.FP16 and rates.sustained > 1.0 and power_limit(device) is not None
    if (found := re.search(r"as fitted for (\S+)", rates.origin.reference)) is not None
}
"""Accelerators of a known power limit -> their rates, and the name of the part that has the fit."""


@pytest.mark.parametrize("name", FITTED_FOR)
def test_a_part_with_rates_of_another_has_the_clock_of_its_own_power_and_peak(name: str) -> None:
    """A clock falls with the cube root of the power for each FLOP/s beside the fixed power."""
    rates, fitted = FITTED_FOR[name]
    device, base = accelerator(name), accelerator(fitted)
    limit, base_limit = power_limit(device), power_limit(base)
    assert limit is not None
    assert base_limit is not None
    fixed = 0.17 * base_limit.watts
    joules = (limit.watts - fixed) / device.peak(Dtype.FP16)
    base_joules = (base_limit.watts - fixed) / base.peak(Dtype.FP16)
    wanted = gemm_rates(base, dtype=Dtype.FP16).sustained * (base_joules / joules) ** (1 / 3)
    assert rates.sustained == pytest.approx(max(wanted, 1.0))


def test_attention_kernels_are_those_that_exist_on_a_device() -> None:
    """cuDNN is NVIDIA's, from compute capability 8.0 on; FlashAttention-2 is there too and on
    AMD."""
    for device in ACCELERATORS:
        names = {rates.generation for rates in device.attention}
        ampere = device.vendor == "NVIDIA" and generation_of(device) >= 8
        if device.vendor == "NVIDIA":
            require_members([device.name] if generation_of(device) else [], [device.name], LISTED)
        told = (
            f"{device.name} has the kernels {sorted(names)}: change `kernels` or `attention` of its"
            f" entry in src/shardwright/hardware/catalog, or its kind in {LISTED}"
        )
        assert ("cudnn" in names) == ampere, told
        assert ("flash-2" in names) == (ampere or device.vendor == "AMD"), told
        assert "unfused" in names
        assert len(names) >= 2
    own = load_cluster(
        "accelerators: {chip: {memory_gib: 96, memory_bandwidth_gigabytes_per_s: 4000, peak_tflops:"
        " {bf16: 800}}}\nnodes: [{accelerator: chip, count: 1}]"
    )
    assert {rates.generation for rates in own.node.accelerator.attention} == {"fused", "unfused"}


def test_rows_name_their_values() -> None:
    values = (8, 8, ROWS["h100-sxm"].scale_up, 400, 5, 2048)
    with pytest.raises(TypeError):
        NodeRow(*values)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_cards_of_a_node_carry_the_rate_of_all_its_devices(name: str) -> None:
    row, node = ROWS[name], default_node(accelerator(name))
    total = node.nics * node.nic.bandwidth * BITS_PER_BYTE / GIGA
    assert total == pytest.approx(row.device_gbit_per_s * row.devices)
    assert node.nics == (row.cards or row.devices)
