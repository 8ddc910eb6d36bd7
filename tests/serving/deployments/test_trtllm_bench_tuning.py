"""Budget and requests that TensorRT-LLM's benchmark chooses: its steps, what a user set, and that
no prompt waits for an empty engine."""

from dataclasses import replace

import pytest

from shardwright.hardware.cluster_expression import parse_cluster
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Lengths,
    NumberFormat,
    OperatorPrecision,
    Precision,
    TokenRange,
)
from shardwright.runtime.serving_engines.engine_registry import load_engine
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Worker
from tests.serving.problems import problem

FP8 = OperatorPrecision(weights=NumberFormat.FP8, activations=NumberFormat.FP8)
LLAMA = Precision(attention=FP8, mlp=FP8, experts=FP8, kv=NumberFormat.FP8)


def asked(inputs: int, outputs: int, *, options: str = "tuned=on") -> ServingProblem:
    made = problem(
        "llama-3.3-70b",
        "h100-sxm:8",
        precision=LLAMA,
        engine=load_engine(f"tensorrt-llm 1.0 {options}"),
    )
    lengths = Lengths(
        inputs=TokenRange(low=inputs, high=inputs), outputs=TokenRange(low=outputs, high=outputs)
    )
    return replace(
        made, job=replace(made.job, lengths=lengths, arrivals=ClosedLoop(concurrency=8, requests=8))
    )


@pytest.mark.parametrize(
    ("inputs", "outputs"), [(128, 2048), (2048, 2048), (5000, 500), (20000, 2000), (128, 128)]
)
def test_as_many_as_fill_the_cache_rounded_up(inputs: int, outputs: int) -> None:
    """70.6 billion bytes of weights; a token of the cache is 80 layers x 2 x 8 heads x 128 bytes:
    163,840."""
    made = asked(inputs, outputs)
    memory, parameters = made.cluster.node.accelerator.memory_bytes, made.model.num_parameters
    assert parameters == pytest.approx(70.55e9, rel=0.01)
    fit = 0.9 * (2 * memory - parameters) / (163_840 * (inputs + outputs))
    engine = problem_on_worker(made, Worker(tp=2)).engine
    step = 32 if fit < 256 else 128 if fit < 1024 else 256
    assert max(fit, 64) <= engine.max_sequences < max(fit, 64) + step
    assert engine.max_sequences % 32 == 0
    wanted = min(fit * (1 + inputs / outputs), 32768)
    assert engine.token_budget >= max(wanted, 2048, inputs + engine.max_sequences)
    assert engine.token_budget < max(wanted + 1024, 2048 + 256, inputs + engine.max_sequences + 1)


def test_it_is_asked_for_and_what_a_user_set_stays() -> None:
    plain = problem_on_worker(asked(20000, 2000, options=""), Worker(tp=2)).engine
    assert (plain.token_budget, plain.max_sequences) == (8192, 2048)
    told = problem_on_worker(
        asked(2048, 2048, options="tuned=on token_budget=4096"), Worker(tp=2)
    ).engine
    assert told.token_budget == 4096
    assert told.max_sequences < 2048
    assert (
        problem_on_worker(
            asked(2048, 2048, options="tuned=on sequences=8"), Worker(tp=2)
        ).engine.max_sequences
        == 8
    )


def test_cut_prompts_need_no_budget_of_a_whole_one() -> None:
    whole = problem_on_worker(asked(20000, 2000), Worker(tp=2)).engine
    cut = problem_on_worker(
        asked(20000, 2000, options="tuned=on chunked_prefill=on"), Worker(tp=2)
    ).engine
    assert cut.token_budget < 20000 < whole.token_budget


def test_more_memory_takes_more_requests() -> None:
    made = asked(2048, 2048)
    larger = replace(made, cluster=parse_cluster("h200-sxm:8"))
    assert (
        problem_on_worker(larger, Worker(tp=2)).engine.max_sequences
        > problem_on_worker(made, Worker(tp=2)).engine.max_sequences
    )
