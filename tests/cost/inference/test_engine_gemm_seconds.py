"""Products with few tokens, and routed experts that are reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.inference.engine_gemm_seconds import small_gemm_seconds
from shardwright.cost.inference.make_prices_non_decreasing_in_size import (
    KNOTS,
    non_decreasing_price,
)
from shardwright.cost.inference.routed_experts import active_experts, routed_experts_seconds
from shardwright.dtype import Dtype
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from tests.cost.inference.serving_machines import DEVICES, machine, slower, untabled
from tests.tiers import examples

FEW = examples(40)
PAIRS = st.sampled_from(
    (
        (NumberFormat.BF16, Dtype.BF16),
        (NumberFormat.FP8, Dtype.FP8),
        (NumberFormat.INT4, Dtype.BF16),
        (NumberFormat.MXFP4, Dtype.BF16),
    )
)
LIBRARIES = st.sampled_from(("vllm", "sglang", "trtllm", ""))
TOKENS = st.integers(1, 300_000)
MIXTRAL = {"experts": 8, "topk": 2, "hidden": 4096, "width": 14336, "local": 8}
DEEPSEEK = {"experts": 256, "topk": 8, "hidden": 7168, "width": 2048, "local": 32}


class TestProducts:
    @FEW
    @given(
        name=st.sampled_from(DEVICES),
        pair=PAIRS,
        library=LIBRARIES,
        m=TOKENS,
        more=TOKENS,
        n=st.integers(64, 60000),
    )
    def test_never_fall_with_tokens(
        self, name: str, pair: tuple[NumberFormat, Dtype], library: str, m: int, more: int, n: int
    ) -> None:
        spent = small_gemm_seconds(
            machine(name, pair[1]),
            m=np.array([m, m + more]),
            n=n,
            k=4096,
            weights=pair[0],
            library=library,
        )
        assert spent[1] >= spent[0] > 0

    @FEW
    @given(name=st.sampled_from(DEVICES), pair=PAIRS, m=TOKENS, times=st.floats(0.01, 100))
    def test_rescale_with_the_machine(
        self, name: str, pair: tuple[NumberFormat, Dtype], m: int, times: float
    ) -> None:
        one = machine(name, pair[1])
        before, after = (
            small_gemm_seconds(each, m=np.array([m]), n=8192, k=4096, weights=pair[0])
            for each in (one, slower(one, times))
        )
        np.testing.assert_allclose(after, before * times, rtol=1e-12)

    def test_one_token_reads_the_weights_as_they_are_stored(self) -> None:
        one = untabled(machine("h200-sxm"))
        wide, packed = (
            float(small_gemm_seconds(one, m=np.array([1]), n=16384, k=16384, weights=weights)[0])
            - one.half.overhead_s
            for weights in (NumberFormat.BF16, NumberFormat.INT4)
        )
        assert packed / wide == pytest.approx(NumberFormat.INT4.bytes / 2.0, rel=0.01)

    def test_the_clock_multiplies_products_alone(self) -> None:
        """Long runs clock the units down, not the memory: one token takes what it does in a short
        run, many `sustained` times as long."""
        one = untabled(machine("b200-sxm"))
        sustained = one.gemm.sustained
        assert sustained > 1.2
        few, many = (
            small_gemm_seconds(one, m=np.array([1, 65536]), n=16384, k=16384) - one.half.overhead_s
        )
        memory = (2 * 16384 * 16384 + 4 * 16384) / (
            one.gemm.memory_efficiency * one.accelerator.memory_bandwidth
        )
        compute = 2 * 65536 * 16384 * 16384 / (one.gemm.compute_efficiency * one.peak)
        assert few == pytest.approx(memory, rel=0.01)
        assert many == pytest.approx(sustained * compute, rel=0.05)


class TestExperts:
    @FEW
    @given(
        tokens=st.integers(0, 100_000),
        experts=st.integers(1, 512),
        topk=st.integers(1, 16),
        share=st.integers(1, 16),
    )
    def test_no_more_are_reached_than_there_are_copies_or_experts(
        self, tokens: int, experts: int, topk: int, share: int
    ) -> None:
        topk = min(topk, experts)
        reached = float(
            active_experts(np.array([tokens]), experts=experts, topk=topk, local=experts / share)[0]
        )
        assert 0 <= reached <= experts / share * (1 + 1e-12)
        assert reached <= tokens * topk / share * (1 + 1e-12)

    def test_figures_of_the_page(self) -> None:
        found = active_experts(np.array([1, 32, 256, 10**6]), experts=256, topk=8, local=32)
        np.testing.assert_allclose(found, [1.0, 20.41, 32.0, 32.0], rtol=1e-3)

    @FEW
    @given(
        name=st.sampled_from(DEVICES),
        pair=PAIRS,
        library=LIBRARIES,
        tokens=TOKENS,
        more=TOKENS,
        shape=st.sampled_from((MIXTRAL, DEEPSEEK)),
    )
    def test_never_fall_with_tokens(
        self,
        name: str,
        pair: tuple[NumberFormat, Dtype],
        library: str,
        tokens: int,
        more: int,
        shape: dict[str, int],
    ) -> None:
        spent = routed_experts_seconds(
            machine(name, pair[1]),
            tokens=np.array([0, tokens, tokens + more]),
            weights=pair[0],
            library=library,
            **shape,
        )
        assert spent[2] >= spent[1] >= spent[0] > 0

    @FEW
    @given(name=st.sampled_from(DEVICES), tokens=TOKENS, times=st.floats(0.01, 100))
    def test_rescale_with_the_machine(self, name: str, tokens: int, times: float) -> None:
        one = machine(name)
        before, after = (
            routed_experts_seconds(each, tokens=np.array([tokens]), **DEEPSEEK)
            for each in (one, slower(one, times))
        )
        np.testing.assert_allclose(after, before * times, rtol=1e-12)

    @pytest.mark.parametrize("name", DEVICES)
    def test_all_reached_experts_are_read_once(self, name: str) -> None:
        """64 tokens of Mixtral reach all 8 experts: reading their weights takes most of the time,
        at no more than 8 of B200's 7.7 TB/s."""
        spent = float(routed_experts_seconds(machine(name), tokens=np.array([64]), **MIXTRAL)[0])
        reading = 8 * 3 * 4096 * 14336 * 2.0 / machine(name).accelerator.memory_bandwidth
        assert 7.7 / 8 * reading < spent < 2.0 * reading

    def test_a_kernel_is_asked_for_by_name(self) -> None:
        prices = {
            kernel: float(
                routed_experts_seconds(
                    machine("h200-sxm"), tokens=np.array([16]), library=kernel, **DEEPSEEK
                )[0]
            )
            for kernel in (
                "sglang",
                "sglang/triton",
                "sglang/flashinfer-cutlass",
                "sglang/no such kernel",
            )
        }
        assert (
            prices["sglang"]
            == prices["sglang/triton"]
            == prices["sglang/no such kernel"]
            != prices["sglang/flashinfer-cutlass"]
        )


def test_rising_keeps_what_rises_and_lifts_what_falls() -> None:
    sizes = np.array([1.0, 5.0, 100.0, 1e7])
    np.testing.assert_allclose(
        non_decreasing_price(lambda size: 3.0 + 2.0 * size, sizes), 3.0 + 2.0 * sizes, rtol=1e-12
    )
    dipped = non_decreasing_price(lambda size: np.where(size > 64, 1.0, 2.0), KNOTS)
    np.testing.assert_array_equal(dipped, 2.0)
