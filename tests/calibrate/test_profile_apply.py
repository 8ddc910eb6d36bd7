"""A profile's rates on clusters."""

from dataclasses import replace

import pytest

from shardwright.dtype import Dtype
from shardwright.errors import ClusterError
from shardwright.hardware.accelerator import Evidence
from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.hardware.profile.apply_profile import apply_profile, profiled_cluster
from shardwright.hardware.profile.measured_rates import Profile
from tests.calibrate.profiles import collective, profile


def test_an_accelerator_carries_the_measured_rates_with_their_origin() -> None:
    before = parse_cluster("h100-sxm:16")
    after = apply_profile(before, profile())
    device, old = after.node.accelerator, before.node.accelerator
    rates = next(g for g in device.gemm if g.dtype is Dtype.BF16)
    assert rates.compute_efficiency * device.peak(Dtype.BF16) == pytest.approx(500e12)
    assert rates.memory_efficiency * device.memory_bandwidth == pytest.approx(2e12)
    assert (rates.sustained, rates.overhead_s, rates.exponent) == (1.25, 5e-6, 2.0)
    assert rates.error == pytest.approx(0.078)
    assert (rates.origin.evidence, rates.origin.reference) == (Evidence.FITTED, profile().reference)
    kernel = next(a for a in device.attention if a.generation == "flash-2")
    assert kernel.origin.evidence is Evidence.MEASURED
    assert [share * device.peak(Dtype.BF16) for _, share in kernel.forward] == pytest.approx(
        [100e12, 300e12]
    )
    assert device.element_efficiency * device.memory_bandwidth == pytest.approx(2.5e12)
    assert device.launch_s == 4e-6
    assert device.memory_bytes == 80 * 10**9
    assert "launch_s" in old.assumed
    assert set(device.assumed) == set(old.assumed) - {"launch_s", "element_efficiency"}
    untouched = next(g for g in device.gemm if g.dtype is Dtype.FP8)
    assert untouched == next(g for g in old.gemm if g.dtype is Dtype.FP8)
    assert device.peak_flops == old.peak_flops


def test_links_come_from_the_largest_groups() -> None:
    node = apply_profile(parse_cluster("h100-sxm:16"), profile()).node
    assert node.scale_up.achieved == pytest.approx(310e9)
    assert node.scale_up.latency_s == pytest.approx(2e-6)
    assert node.scale_up.origin.evidence is Evidence.FITTED
    assert node.nics * node.nic.achieved == pytest.approx(200e9)
    assert node.nic.latency_s == pytest.approx(20e-6)
    assert node.host.pcie.achieved == pytest.approx(40e9)


def test_what_was_not_measured_stays() -> None:
    before = parse_cluster("h100-sxm:16")
    assert apply_profile(before, Profile(accelerator="h100")) == before
    only = Profile(
        accelerator="h100-sxm",
        collectives=(collective("all_reduce", num_devices=8, latency_s=28e-6, bandwidth=460e9),),
    )
    node = apply_profile(before, only).node
    # Its switch reduces: an all_reduce above the ring's limit says nothing of the links.
    assert node.scale_up.achieved == before.node.scale_up.achieved
    assert node.scale_up.latency_s == pytest.approx(2e-6)
    assert node.accelerator == before.node.accelerator


def test_only_nodes_of_the_profile_change() -> None:
    after = apply_profile(parse_cluster("h100-sxm:8+a100-sxm-80gb:8"), profile())
    assert after.groups[1] == parse_cluster("a100-sxm-80gb:8").groups[0]
    assert after.groups[0].kind.accelerator.launch_s == 4e-6
    with pytest.raises(
        ClusterError, match="the profile is of h100-sxm, the cluster has v100"
    ) as raised:
        apply_profile(parse_cluster("v100:8"), profile())
    assert raised.value.exit_code == 4


def test_an_accelerator_that_only_the_profile_knows() -> None:
    mine = replace(profile("my-chip", dtype=Dtype.FP32), memory_bytes=2**34)
    cluster = profiled_cluster("my-chip:16", mine)
    device = cluster.node.accelerator
    assert (cluster.num_devices, cluster.node.num_devices, device.memory_bytes) == (16, 8, 2**34)
    assert device.peak(Dtype.FP32) == pytest.approx(600e12)
    assert device.gemm[0].compute_efficiency == pytest.approx(500 / 600)
    assert [a.generation for a in device.attention] == ["flash-2"]
    assert device.element_efficiency == pytest.approx(1.0)
    assert cluster.node.scale_up.achieved == pytest.approx(310e9)
    assert profiled_cluster("my-chip:1", mine).num_devices == 1
    # What is priced by it never runs above the peak: a fit may say more than was measured, and a
    # core run faster than products.
    (gemm,), (core,) = mine.gemm, mine.attention
    faster = replace(mine, gemm=(replace(gemm, flops_per_second=700e12),))
    assert profiled_cluster("my-chip:1", faster).node.accelerator.peak(Dtype.FP32) == pytest.approx(
        700e12
    )
    curve = replace(mine, attention=(replace(core, curve=((1024, 800e12),), backward_ratio=1.0),))
    assert profiled_cluster("my-chip:1", curve).node.accelerator.peak(Dtype.FP32) == pytest.approx(
        1600e12
    )
    for text in (
        "my-chip",
        "my-chip:",
        "my-chip:0",
        "my-chip:-1",
        "my-chip:x",
        "my-chip:12",
        "my-chip:99999999999",
    ):
        with pytest.raises(ClusterError):
            profiled_cluster(text, mine)
    with pytest.raises(ClusterError, match="lacks GEMM"):
        profiled_cluster("my-chip:8", replace(mine, gemm=()))
    assert profiled_cluster("h100-sxm:8", profile()) == apply_profile(
        parse_cluster("h100-sxm:8"), profile()
    )
