"""What engines set by themselves on devices, against what their own code gives there.

Devices report 81,559 MiB (H100 80GB), 143,771 MiB (H200), 183,359 MiB (B200) and 46,068 MiB (L40S).
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    BackendChoice,
    all_reduce_range,
    first_matching_backend,
)
from shardwright.runtime.serving_engines.engine_defaults_on_device import (
    EngineSite,
    engine_on_device,
)
from shardwright.runtime.serving_engines.engine_options import engine_with_options
from shardwright.runtime.serving_engines.engine_registry import all_engines, load_engine
from shardwright.runtime.serving_engines.serving_engine import Engine, ExpertExchange
from shardwright.units import KIB, MIB
from tests.tiers import examples

H100 = EngineSite(memory_bytes=81_559 * MIB, generation=9, tp=8)
H200 = EngineSite(memory_bytes=143_771 * MIB, generation=9, tp=8)
B200 = EngineSite(memory_bytes=183_359 * MIB, generation=10, tp=8)
L40S = EngineSite(memory_bytes=46_068 * MIB, generation=8, tp=8)
A100 = EngineSite(memory_bytes=81_920 * MIB, generation=8, tp=8)
DEEPSEEK = {"latent": True, "architecture": "DeepseekV3ForCausalLM", "weights": "fp8"}


@pytest.mark.parametrize(
    ("site", "budget", "sequences"),
    [
        (H100, 8192, 1024),
        (H200, 8192, 1024),
        (B200, 8192, 1024),
        (A100, 2048, 256),
        (L40S, 2048, 256),
    ],
)
@pytest.mark.parametrize("version", ["0.11", "0.12", "0.15", "0.18"])
def test_vllm_by_memory(version: str, site: EngineSite, budget: int, sequences: int) -> None:
    made = engine_on_device(load_engine(f"vllm-{version}"), site)
    assert (made.token_budget, made.max_sequences) == (budget, sequences)


@pytest.mark.parametrize(
    ("version", "site", "chunk", "captured", "share"),
    [
        ("0.5.9", H100, 8192, 512, 0.818),
        ("0.5.9", replace(H100, tp=1), 8192, 256, 0.835),
        ("0.5.9", H200, 8192, 512, 0.897),
        ("0.5.9", B200, 16384, 512, 0.852),
        ("0.5.9", L40S, 4096, 160, 0.826),
        ("0.5.9", replace(B200, draft_tokens=3), 16384, 512, 0.841),
        ("0.5.8", H200, 8192, 512, 0.897),
        ("0.5.6", B200, 16384, 512, 0.852),
        ("0.5.10", replace(B200, **DEEPSEEK), 16384, 512, 0.844),
        ("0.5.10", B200, 16384, 512, 0.849),
        ("0.5.10", replace(B200, draft_tokens=3), 16384, 512, 0.830),
        ("0.5.1", H100, 8192, 160, 0.831),
        ("0.5.1", H200, 8192, 256, 0.886),
        ("0.5.1", B200, 16384, 512, 0.821),
    ],
)
def test_sglang_by_memory(
    version: str, site: EngineSite, chunk: int, captured: int, share: float
) -> None:
    made = engine_on_device(load_engine(f"sglang-{version}"), site)
    assert (made.token_budget, made.largest_captured, made.memory_fraction) == (
        chunk,
        captured,
        share,
    )


def test_sglang_divides_over_ranks_with_attention_of_their_own() -> None:
    made = engine_on_device(load_engine("sglang-0.5.9"), replace(B200, tp=1, dpa=8))
    # 512 + 1.5 x 16384 + 2 x 512 + 1024 + 3 x 512 x 8 + 1.5 x 512 x 8 MiB are kept free.
    assert made.memory_fraction == round((183_359 - 45_568) / 183_359, 3)
    assert (made.token_budget, made.max_sequences) == (2048, 256)
    assert made.estimate is not None
    assert made.estimate.first == pytest.approx(0.21)
    assert made.polling == 1


def test_vllm_ranks_have_all_for_themselves() -> None:
    made = engine_on_device(load_engine("vllm-0.18"), replace(H200, tp=1, dpa=8))
    assert (made.token_budget, made.max_sequences) == (8192, 1024)
    assert not made.fused_all_reduce


def test_captured_sizes_of_vllm() -> None:
    made = engine_on_device(load_engine("vllm-0.12"), H100)
    assert made.captured == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    few = engine_on_device(load_engine("vllm-0.12 sequences=16"), H100)
    assert few.captured == (1, 2, 4, 8, 16, 24, 32)
    guessing = engine_on_device(
        load_engine("vllm-0.15 sequences=16"), replace(H100, draft_tokens=3)
    )
    assert guessing.captured[-1] == 16 * 4 * 2


def test_captured_sizes_of_sglang() -> None:
    made = engine_on_device(load_engine("sglang-0.5.9 graph_max=20"), H100)
    assert made.captured == (1, 2, 4, 8, 12, 16)
    assert engine_on_device(load_engine("sglang-0.5.10 graph_max=20"), H100).captured[-1] == 20
    guessing = engine_on_device(
        load_engine("sglang-0.5.9 graph_max=8"), replace(H100, draft_tokens=1)
    )
    assert guessing.captured == tuple(range(2, 17, 2)), "requests of two tokens each"


def test_captured_sizes_of_tensorrt_llm() -> None:
    assert engine_on_device(load_engine("trtllm-1.2"), B200).captured == (*range(1, 33), 64, 128)
    padded = engine_on_device(load_engine("trtllm-1.2 graph_padding=on graph_max=512"), B200)
    assert padded.captured == (1, 2, 4, *range(8, 129, 8), 256, 512)
    assert engine_on_device(
        load_engine("trtllm-1.2 graph_padding=on graph_max=300"), B200
    ).captured[-2:] == (256, 300)


def test_set_sizes_of_tensorrt_llm_end_at_the_requests_that_may_run() -> None:
    """Padded batches have the most that may run among them; others have the sizes that are left."""
    sizes = "graph_sizes=1,8,64,128 sequences=100"
    assert engine_on_device(load_engine(f"trtllm-1.2 graph_padding=on {sizes}"), B200).captured == (
        1,
        8,
        64,
        100,
    )
    assert engine_on_device(load_engine(f"trtllm-1.2 {sizes}"), B200).captured == (1, 8, 64)
    assert engine_on_device(
        load_engine("trtllm-1.2 graph_sizes=1,8,64 sequences=100"), B200
    ).captured == (1, 8, 64)


def test_backends_by_format_take_groups_of_any_size() -> None:
    choices = (BackendChoice(name="four", weights=("int4",)), BackendChoice(name="any"))
    found = [
        first_matching_backend(choices, generation=9, latent=False, weights=weights)
        for weights in ("int4", "int4-group32", "int8", "")
    ]
    assert found == ["four", "four", "any", "any"]


def test_no_graphs() -> None:
    for text in ("vllm-0.12", "sglang-0.5.9", "trtllm-1.2"):
        made = engine_on_device(load_engine(f"{text} graphs=off"), H100)
        assert made.captured == ()
        assert not made.piecewise


def test_pieces_for_prompts() -> None:
    plain = load_engine("sglang-0.5.10")
    assert engine_on_device(plain, B200).piecewise_tokens == 16384
    assert engine_on_device(plain, replace(B200, **DEEPSEEK)).piecewise_tokens == 2048
    for alone in (replace(B200, draft_tokens=1), replace(B200, tp=1, dpa=8), replace(B200, pp=2)):
        assert not engine_on_device(plain, alone).piecewise
    assert engine_on_device(load_engine("trtllm-1.2 piecewise=on"), B200).piecewise_tokens == 3072
    assert (
        engine_on_device(
            load_engine("trtllm-1.2 piecewise=on piece_sizes=8,64"), B200
        ).piecewise_tokens
        == 64
    )
    assert engine_on_device(load_engine("vllm-0.12"), H100).piecewise


@pytest.mark.parametrize(
    ("text", "site", "attention", "block"),
    [
        ("vllm-0.12", replace(B200, latent=True), "cutlass_mla", 128),
        ("vllm-0.15", replace(B200, latent=True), "flashinfer_mla", 64),
        ("vllm-0.12", replace(H200, latent=True), "flash_attn_mla", 64),
        ("vllm-0.12", H100, "flash_attn", 16),
        ("vllm-0.18", B200, "flashinfer", 16),
        ("sglang-0.5.9", replace(B200, **DEEPSEEK), "trtllm_mla", 64),
        ("sglang-0.5.9", B200, "trtllm_mha", 64),
        ("sglang-0.5.6", B200, "flashinfer", 1),
        ("sglang-0.5.9", H200, "fa3", 1),
        ("sglang-0.5.9 attention=flashmla", H200, "flashmla", 64),
        ("sglang-0.5.9 attention=trtllm_mla block=32", B200, "trtllm_mla", 32),
        ("trtllm-1.2", B200, "trtllm", 32),
    ],
)
def test_attention_kernels_and_their_blocks(
    text: str, site: EngineSite, attention: str, block: int
) -> None:
    made = engine_on_device(load_engine(text), site)
    assert (made.attention_kernel, made.block_tokens) == (attention, block)


@pytest.mark.parametrize(
    ("text", "site", "experts"),
    [
        ("sglang-0.5.9", replace(B200, **DEEPSEEK), "flashinfer_trtllm"),
        ("sglang-0.5.9", replace(H200, **DEEPSEEK), "triton"),
        ("sglang-0.5.9", replace(B200, weights="mxfp4"), "flashinfer_mxfp4"),
        ("vllm-0.18", replace(H200, weights="fp8", spread=True), "flashinfer-cutlass"),
        ("vllm-0.18", replace(H200, weights="fp8"), "triton"),
        ("vllm-0.18 experts=marlin", replace(H100, weights="mxfp4"), "marlin"),
        ("trtllm-1.2", replace(B200, **DEEPSEEK), "cutlass"),
    ],
)
def test_expert_kernels(text: str, site: EngineSite, experts: str) -> None:
    assert engine_on_device(load_engine(text), site).expert_kernel == experts


def kind_of(text: str, site: EngineSite, *, tokens: int, hidden: int) -> tuple[AllReduceKind, bool]:
    """How a sum of bf16 tokens is done."""
    made = engine_on_device(load_engine(text), site)
    found = all_reduce_range(
        made.sums,
        generation=site.generation,
        ranks=site.tp,
        tokens=tokens,
        hidden=hidden,
        size_bytes=2 * tokens * hidden,
        fused=made.fused_all_reduce,
        multimem=made.multimem,
    )
    return found.kind, found.fused


def test_sums_of_vllm() -> None:
    # 8 ranks of Hopper: own sums up to 256 KiB, then the switch up to 64 MiB, then the library.
    assert kind_of("vllm-0.12", H100, tokens=15, hidden=8192) == (AllReduceKind.ONE_SHOT, False)
    assert kind_of("vllm-0.12", H100, tokens=17, hidden=8192) == (AllReduceKind.MULTIMEM, False)
    assert kind_of("vllm-0.12", H100, tokens=5000, hidden=8192) == (AllReduceKind.LIBRARY, False)
    assert kind_of("vllm-0.12 multimem=off", H100, tokens=17, hidden=8192) == (
        AllReduceKind.LIBRARY,
        False,
    )
    assert kind_of("vllm-0.18", H100, tokens=17, hidden=8192) == (AllReduceKind.ONE_SHOT, True)
    assert kind_of("vllm-0.18", H100, tokens=64, hidden=8192) == (AllReduceKind.MULTIMEM, False)
    assert kind_of("vllm-0.12 fused_sums=on", replace(B200, tp=4), tokens=512, hidden=8192) == (
        AllReduceKind.TWO_SHOT,
        True,
    )
    assert engine_on_device(load_engine("vllm-0.12"), H100).custom_all_reduce_bytes == 256 * KIB


def test_sums_of_sglang() -> None:
    deepseek = replace(B200, **DEEPSEEK)
    assert kind_of("sglang-0.5.9", deepseek, tokens=128, hidden=7168) == (
        AllReduceKind.ONE_SHOT,
        True,
    )
    assert kind_of("sglang-0.5.9", deepseek, tokens=2048, hidden=7168) == (
        AllReduceKind.TWO_SHOT,
        True,
    )
    assert kind_of("sglang-0.5.9", deepseek, tokens=2049, hidden=7168) == (
        AllReduceKind.LIBRARY,
        False,
    )
    assert kind_of("sglang-0.5.6", replace(H200, **DEEPSEEK), tokens=128, hidden=7168) == (
        AllReduceKind.TWO_SHOT,
        False,
    )
    assert kind_of(
        "sglang-0.5.6 fused_sums=on", replace(H200, **DEEPSEEK), tokens=128, hidden=7168
    ) == (AllReduceKind.ONE_SHOT, True)


def test_sums_of_tensorrt_llm() -> None:
    assert kind_of("trtllm-1.0", B200, tokens=128, hidden=7168) == (AllReduceKind.ONE_SHOT, True)
    assert kind_of("trtllm-1.0", B200, tokens=129, hidden=7168) == (AllReduceKind.LIBRARY, False)
    assert kind_of("trtllm-1.2", B200, tokens=511, hidden=7168) == (AllReduceKind.ONE_SHOT, True)
    assert kind_of("trtllm-1.2", B200, tokens=512, hidden=7168) == (AllReduceKind.TWO_SHOT, True)
    assert kind_of("trtllm-1.2", B200, tokens=8192, hidden=7168) == (AllReduceKind.LIBRARY, False)
    assert kind_of("trtllm-1.2", H100, tokens=128, hidden=7168) == (AllReduceKind.LIBRARY, False)


def test_experts_across_a_rack() -> None:
    rack = replace(B200, tp=1, dpa=32, rack=True)
    assert engine_on_device(load_engine("trtllm-1.2"), rack).exchange is ExpertExchange.ONE_SIDED
    assert (
        engine_on_device(load_engine("trtllm-1.2 exchange=notenabled"), rack).exchange
        is ExpertExchange.GATHERED
    )
    assert (
        engine_on_device(load_engine("trtllm-1.2"), replace(rack, rack=False)).exchange
        is ExpertExchange.GATHERED
    )


def test_guesses_and_the_host() -> None:
    guessing = replace(B200, draft_tokens=3)
    assert not engine_on_device(load_engine("sglang-0.5.9"), guessing).asynchronous
    assert engine_on_device(load_engine("vllm-0.18"), guessing).asynchronous
    assert engine_on_device(load_engine("sglang-0.5.9"), guessing).max_sequences == 48
    assert (
        engine_on_device(load_engine("sglang-0.5.9 sequences=256"), guessing).max_sequences == 256
    )


@examples(100, 1000)
@given(
    made=st.sampled_from(all_engines()),
    gib=st.integers(8, 300),
    generation=st.sampled_from([8, 9, 10]),
    tp=st.sampled_from([1, 2, 4, 8]),
    dpa=st.sampled_from([1, 4]),
    draft_tokens=st.integers(0, 3),
    latent=st.booleans(),
)
def test_on_any_device_all_is_settled(
    made: Engine, gib: int, generation: int, tp: int, dpa: int, draft_tokens: int, latent: bool
) -> None:
    site = EngineSite(
        memory_bytes=gib * 1024 * MIB,
        generation=generation,
        tp=tp,
        dpa=dpa,
        draft_tokens=draft_tokens,
        latent=latent,
    )
    settled = engine_on_device(made, site)
    assert settled.token_budget >= 1
    assert settled.max_sequences >= 1
    assert settled.memory_fraction < 1
    assert settled.attention_kernel
    assert settled.expert_kernel
    assert list(settled.captured) == sorted({*settled.captured})
    assert {field.name for field in fields(Engine)} == {field.name for field in fields(settled)}
    more = engine_on_device(made, replace(site, memory_bytes=2 * site.memory_bytes))
    assert more.token_budget >= settled.token_budget
    assert more.largest_captured >= settled.largest_captured


def test_what_a_user_sets_stays() -> None:
    made = engine_with_options(
        load_engine("sglang-0.5.9"),
        [("token_budget", "4096"), ("memory", "0.5"), ("graph_sizes", "3,1")],
    )
    settled = engine_on_device(made, B200)
    assert (settled.token_budget, settled.memory_fraction, settled.captured) == (4096, 0.5, (1, 3))
