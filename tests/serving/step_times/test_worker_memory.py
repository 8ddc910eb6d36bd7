"""Memory of a worker: weights against counts of parameters, the cache against what is left, and
refusals."""

from dataclasses import replace

import numpy as np
import pytest

from shardwright.errors import InfeasibleError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import Precision
from shardwright.runtime.serving_engines.serving_engine import ExpertExchange, MemoryRule
from shardwright.serving.deployments.deployment_notation import parse_worker
from shardwright.serving.step_times.worker_memory import (
    cached_bytes,
    require_cache_for,
    weight_bytes,
    worker_memory,
)
from tests.serving.problems import EIGHT_BITS, ENGINE, problem


@pytest.mark.parametrize(
    ("model", "cluster"),
    [("llama-3.1-70b", "h100-sxm:8"), ("gpt-oss-120b", "b200-sxm:8"), ("qwen3-32b", "h100-sxm:8")],
)
def test_one_device_holds_every_parameter(model: str, cluster: str) -> None:
    asked = problem(model, cluster)
    assert weight_bytes(asked, parse_worker("tp1")) == asked.model.num_parameters * 2


def test_experts_are_spread() -> None:
    asked = problem("qwen3-235b-a22b", "h100-sxm:8")
    whole = weight_bytes(asked, parse_worker("tp1"))
    assert weight_bytes(asked, parse_worker("tp8")) == pytest.approx(whole / 8, rel=0.02)
    assert weight_bytes(asked, parse_worker("tp8 ep8")) == pytest.approx(
        weight_bytes(asked, parse_worker("tp8")), rel=0.001
    )
    ranks = weight_bytes(asked, parse_worker("dpa8 ep8"))
    experts = 94 * 128 * 3 * 4096 * 1536 * 2
    assert ranks == pytest.approx(whole - experts * 7 / 8, rel=0.001)


def test_predictors_count_where_they_guess() -> None:
    asked = problem("deepseek-v3", "h200-sxm:8")
    plain, guessing = (weight_bytes(asked, parse_worker(words)) for words in ("tp8", "tp8 mtp1"))
    assert plain < guessing == weight_bytes(asked, parse_worker("tp8 mtp3"))


def test_the_cache_is_what_is_left() -> None:
    asked = problem(
        "llama-3.1-70b", "h100-sxm:8", precision=Precision(attention=EIGHT_BITS, mlp=EIGHT_BITS)
    )
    memory = worker_memory(asked, parse_worker("tp8"))
    assert memory.token == 80 * 2 * 128 * 2  # one key head of each layer
    assert memory.usable == int(memory.capacity * 0.9)
    assert memory.cache == memory.usable - memory.weights - memory.activations - memory.others
    assert np.floor(memory.cache / (memory.token * 16)) == memory.blocks


def test_a_share_of_what_is_free_is_less() -> None:
    asked = problem("llama-3.1-70b", "h100-sxm:8")
    total, free = (
        worker_memory(
            replace(asked, engine=replace(ENGINE, memory_rule=rule)), parse_worker("tp8")
        ).tokens
        for rule in (MemoryRule.TOTAL, MemoryRule.FREE)
    )
    assert free > 0
    assert free != total


def test_states_of_sequences_are_kept_back() -> None:
    asked = problem("qwen3-next-80b-a3b", "h100-sxm:8")
    token, sequence = cached_bytes(asked, parse_worker("tp4"))
    few, many = (worker_memory(asked, parse_worker(f"tp4 seqs{n}")) for n in (8, 256))
    assert sequence > 1000 * token
    assert few.cache - many.cache == pytest.approx(
        248 * sequence + many.activations - few.activations, rel=0.001
    )


def test_a_dry_run_holds_logits_or_products_whichever_are_more() -> None:
    asked = problem("llama-3.1-70b", "h100-sxm:8")
    few, many, more = (
        worker_memory(asked, parse_worker(f"tp8 seqs{n}")).activations for n in (8, 1024, 2048)
    )
    assert few == worker_memory(asked, parse_worker("tp8 seqs16")).activations
    assert many > few
    assert more - many == 1024 * asked.model.vocab * asked.engine.logit_bytes


def test_gathered_experts_hold_tokens_of_all_ranks() -> None:
    """2,048 tokens of each of 8 ranks, 8 experts each of 1,536 elements: 16 KiB there and back, and
    rows of 4,096 and 4,096 in 16 bits."""
    asked = problem("qwen3-235b-a22b", "h200-sxm:8")
    gathered, sent = (
        worker_memory(
            replace(asked, engine=replace(asked.engine, exchange=way)),
            parse_worker("dpa8 ep8 chunk2048 seqs8"),
        ).activations
        for way in (ExpertExchange.GATHERED, ExpertExchange.DEEPEP)
    )
    tokens = 8 * 2048
    assert gathered == 2048 * 4096 * 4 + tokens * (4096 * 4 + 8 * (4096 * 2 + 4096 * 2))
    assert sent < gathered / 4


def test_a_share_of_what_was_free_leaves_the_context_out() -> None:
    asked = problem("llama-3.1-70b", "h100-sxm:8")
    static = worker_memory(
        replace(asked, engine=replace(ENGINE, memory_rule=MemoryRule.STATIC)), parse_worker("tp8")
    )
    assert static.usable == int((static.capacity - static.others) * 0.9)


def test_too_large() -> None:
    with pytest.raises(InfeasibleError, match=r"a device needs .* GiB too much"):
        worker_memory(problem("llama-3.1-405b", "h100-sxm:8"), parse_worker("tp4"))


def test_no_room_for_one_sequence() -> None:
    asked = problem("llama-3.1-70b", "h100-sxm:8")
    memory = worker_memory(asked, parse_worker("tp2"))
    require_cache_for(memory, longest=memory.tokens)
    with pytest.raises(
        InfeasibleError,
        match=r"the cache holds [\d,]+ tokens, and the longest request has [\d,]+: .* too little",
    ):
        require_cache_for(memory, longest=memory.tokens + 16)
