"""Further answers that practitioners accept (more_practitioner_questions.tsv), against the guide's.

Runs of others are judged with the options of their programs, where these are known.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from shardwright.api.guide.make_serving_guide_of_request import make_serving_guide
from shardwright.report.page.view_data_types.design_guide_rules_of_thumb_and_losses import (
    BreakEven,
    Outcome,
)
from tests.api.guide.facts_of_requests import serving_facts_of
from tests.api.guide.guide_answers import (
    AS_GOOD,
    best,
    loss,
    request,
    require_a_test_of_each_question,
    verdict,
)

TABLE = Path(__file__).with_name("more_practitioner_questions.tsv")
TITAN_CLUSTER = "h100-sxm:{},memory=1.2x"
"""The H100 of torchtitan's measurements have 96 GB."""
ONLY_DATA_PARALLEL = {"tp": 1, "cp": 1, "pp": 1}


@cache
def serving_break_even(name: str, model: str, cluster: str, prompt: int, answer: int) -> BreakEven:
    """The break-even of a serving rule."""
    guide = make_serving_guide(request(model, cluster, prompt + answer, 64), answer=answer)
    found = next(rule for rule in guide.rules if rule.name == name).break_even
    assert found is not None
    return found


def test_each_question_has_a_test() -> None:
    require_a_test_of_each_question(TABLE, globals(), number=15)


def test_41_pipelines_inside_a_node() -> None:
    """Llama 2 7B with BERT's length has the vocabulary of BERT; Megatron of 2022 overlaps no TP."""
    wanted = request("llama-2-7b", "a100-sxm-80gb:8", 512, 1024)
    tensor = best(wanted, tp=8, pp=1, tp_overlap="none").step_s
    assert tensor > 1.3 * best(wanted, tp=1, pp=8, vpp=1).step_s


def test_42_fewer_sequences_than_devices() -> None:
    wanted = request("llama-3.1-8b", "h100-sxm:256", 4096, 128)
    found = verdict("data_parallelism_first", wanted)
    assert found.outcome is Outcome.NOT_POSSIBLE
    assert loss(wanted, tp=2) <= AS_GOOD


def test_43_fsdp_scales() -> None:
    """Tokens a second of a device on 128 devices over those on 8, with 2 sequences each."""
    few, many = (
        best(
            replace(
                request("llama-3.1-8b", TITAN_CLUSTER.format(devices), 8192, 2 * devices),
                runtime="torchtitan",
            ),
            **ONLY_DATA_PARALLEL,
            zero=3,
            mbs=2,
            recompute="selective",
        ).step_s
        for devices in (8, 128)
    )
    assert abs(few / many - 5605 / 5762) <= AS_GOOD


def test_44_tensor_parallelism_of_8b() -> None:
    wanted = request("llama-3.1-8b", "gh200-96gb:256", 4096, 512)
    single = best(wanted, **ONLY_DATA_PARALLEL, zero=1, mbs=2).step_s
    double = best(wanted, tp=2, cp=1, pp=1, zero=1, mbs=4, tp_overlap="none").step_s
    assert abs(double / single - 8840 / 8000) <= AS_GOOD


def test_45_degrees_of_mixtral() -> None:
    assert loss(request("mixtral-8x7b", "h100-sxm:16", 4096, 128), ep=8, tp=2) <= AS_GOOD


@pytest.mark.xfail(
    strict=True,
    reason=(
        "HSDP loses 4.7 % here, as torchtitan sums replicas in each microbatch (its issue 1929);"
        " pith-train, which was measured, is no runtime of this package"
    ),
)
def test_46_hybrid_sharding_with_pipelines() -> None:
    wanted = replace(request("qwen3-30b-a3b", "h100-sxm:64", 4096, 1024), runtime="torchtitan")
    pins = {"pp": 4, "ep": 8, "mbs": 1, "zero": 3}
    assert best(wanted, **pins, shard=8).step_s <= best(wanted, **pins, shard=0).step_s


def test_47_interleaved_pipelines() -> None:
    wanted = request("llama-3.1-405b", TITAN_CLUSTER.format(512), 8192, 256)
    pins: dict[str, int | str] = {"tp": 8, "pp": 8, "recompute": "full"}
    assert best(wanted, **pins, vpp=1).step_s > 1.05 * best(wanted, **pins).step_s


def test_48_zero_with_gradient_accumulation() -> None:
    """A network of 1.25 GB/s a device: 10 Gbit Ethernet."""
    wanted = request("llama-3.2-1b", "a100-sxm-80gb:32,network=0.05x", 2048, 1024)
    first, second = (best(wanted, **ONLY_DATA_PARALLEL, mbs=1, zero=zero) for zero in (1, 2))
    assert second.step_s > 2 * first.step_s


DEEPSEEK_OF_14_LAYERS = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 14,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "vocab_size": 129280,
    "max_position_embeddings": 4096,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 0,
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
}


def test_49_full_recomputation_of_experts(tmp_path: Path) -> None:
    """The devices have more memory here, so that both plans fit with equal stages."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DEEPSEEK_OF_14_LAYERS), encoding="utf-8")
    wanted = request(str(file), "h100-sxm:64,memory=1.3x", 2048, 256)
    pins: dict[str, int | str] = {
        "tp": 1,
        "pp": 4,
        "vpp": 2,
        "ep": 16,
        "mbs": 1,
        "dispatcher": "alltoall",
    }
    modules = ("norms", "mla", "moe_act", "mlp", "shared")
    none = best(
        wanted, **pins, recompute="none", **{f"recompute_{name}": "off" for name in modules}
    )
    full = best(wanted, **pins, recompute="full", recompute_layers=0)
    assert abs(1 - none.step_s / full.step_s - 0.18) <= AS_GOOD


def test_50_memory_under_context_parallelism() -> None:
    reserved = []
    for degree in (1, 2, 4, 8):
        wanted = request("llama-3.1-8b", TITAN_CLUSTER.format(8), 32768 * degree, 8 // degree)
        plan = best(
            wanted,
            tp=1,
            pp=1,
            cp=degree,
            zero=3,
            mbs=1,
            recompute="full",
            recompute_layers=0,
            offload=0,
        )
        assert plan.prediction is not None
        reserved.append(plan.prediction.reserved_bytes)
    assert max(reserved) <= (1 + AS_GOOD) * min(reserved)


def test_51_width_of_workers() -> None:
    facts = serving_facts_of("qwen2.5-32b", "a100-sxm-80gb:8", prompt=1, answer=200, load=1)
    wide, half, quarter = (facts.simulated(f"agg 1x(tp{tp})").tokens_per_s for tp in (8, 4, 2))
    assert wide > half > quarter
    wide, replicas = (
        facts.simulated(text, concurrency=512).tokens_per_s
        for text in ("agg 1x(tp8)", "agg 2x(tp4)")
    )
    assert replicas > wide


def test_52_data_parallel_attention_by_load() -> None:
    """It pays from the guide's break-even on, at the latest at 256 requests in flight."""
    found = serving_break_even("tensor_or_data_attention", "deepseek-v3", "h200-sxm:8", 760, 460)
    below, above = found.sides
    assert (below.has, above.has) == (False, True)
    assert above.value <= 256
    few = serving_facts_of("deepseek-v3", "h200-sxm:8", prompt=760, answer=460, load=8)
    data, tensor = (few.simulated(f"agg 1x({text})").answer for text in ("dpa8 ep8", "tp8"))
    assert data is not None
    assert tensor is not None
    assert data.metrics.tpot.mean > tensor.metrics.tpot.mean


def test_53_cache_of_latent_attention() -> None:
    """A token needs the same bytes on each device, of which DP holds different tokens on each."""
    facts = serving_facts_of("deepseek-v3", "b200-sxm:8", prompt=4096, answer=512, load=8)
    data, tensor = (facts.simulated(f"agg 1x({text})").answer for text in ("dpa8 ep8", "tp8"))
    assert data is not None
    assert tensor is not None
    own, repeated = data.pools[0].memory, tensor.pools[0].memory
    assert own.token == repeated.token
    assert 4 < 8 * own.cache / repeated.cache < 8


@pytest.mark.parametrize(
    ("cluster", "precision", "fits"),
    [
        ("h200-sxm:8", "", True),
        ("mi300x:8", "", True),
        ("h100-sxm:16", "", True),
        ("h100-sxm:8", "", False),
        ("h200-sxm:16", "bf16", True),
        ("a100-sxm-80gb:32", "bf16", True),
        ("h200-sxm:8", "bf16", False),
        ("a100-sxm-80gb:16", "bf16", False),
    ],
)
def test_54_devices_of_deepseek(cluster: str, precision: str, fits: bool) -> None:
    facts = serving_facts_of(
        "deepseek-v3", cluster, prompt=1024, answer=128, load=1, precision=precision
    )
    found = facts.simulated(f"agg 1x(tp{facts.devices})")
    assert (found.answer is not None) is fits, found.why


@pytest.mark.xfail(
    strict=True,
    reason=(
        "the accepted degrees lose 13.1 % against TP 4, CP 2, PP 4, VPP 5: virtual stages are equal"
        " here, and the head of 128,256 words slows the last one, which the accepted run's"
        " layout evens out; with the 32,000 words of Llama 2 the same degrees lose 0.3 %"
    ),
)
def test_55_fp8_on_64_h100() -> None:
    wanted = replace(request("llama-3.1-70b", "h100-sxm:64", 8192, 128), precision="fp8")
    assert loss(wanted, tp=4, pp=8, vpp=5, cp=1) <= AS_GOOD


def test_55_fp8_without_a_large_vocabulary() -> None:
    """The degrees are right where the output head is as small as a layer: Llama 2 70B."""
    wanted = replace(request("llama-2-70b", "h100-sxm:64", 8192, 128), precision="fp8")
    assert loss(wanted, tp=4, pp=8, vpp=5, cp=1) <= AS_GOOD
