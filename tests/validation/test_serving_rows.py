"""Rows of serving as cases: deployments, formats, traffic, engines, and one line on each that is
none."""

from __future__ import annotations

from collections import Counter

import pytest

from shardwright.errors import StrategyError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    NumberFormat,
    Poisson,
)
from shardwright.serving.deployments.deployment_notation import print_deployment
from shardwright.validation.serving.deployment_of_row import row_deployment
from shardwright.validation.serving.measured_deployment import Category, ServingRun
from shardwright.validation.serving.row_to_serving_run import to_serving_run
from shardwright.validation.serving.serving_table_columns import ServingMetric
from shardwright.validation.tables.skipped_rows import SkippedRow, SkipReason
from tests.validation.serving_tables import (
    case_of,
    facts,
    published,
    published_cases,
    row_of,
    skip_of,
)


def test_a_whole_row() -> None:
    case = case_of(shortest="0.8")
    assert case.job.lengths is not None
    assert (
        case.job.lengths.inputs.low,
        case.job.lengths.inputs.high,
        case.job.lengths.outputs.low,
    ) == (820, 1024, 410)
    assert case.job.arrivals == ClosedLoop(concurrency=64, requests=640)
    assert (print_deployment(case.deployment), case.cluster.num_devices, case.version) == (
        "agg 1x(tp4)",
        4,
        "vllm 0.12.0",
    )
    assert (case.values.tpot_s, case.values.ttft_s, case.measured(ServingMetric.THROUGHPUT)) == (
        pytest.approx(0.0175),
        pytest.approx(0.3),
        None,
    )
    assert case.measured(ServingMetric.E2E) == pytest.approx(0.3 + (461 - 1) * 0.0175)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({}, "agg 1x(tp4)"),
        ({"gpu_count": "8"}, "agg 2x(tp4)"),
        ({"tp": "1", "dpa": "4", "ep": "4"}, "agg 1x(dpa4 ep4)"),
        (
            {"tp": "64", "ep": "8", "gpu_count": "64", "degrees": "product of tp and ep"},
            "agg 1x(tp8 ep8)",
        ),
        (
            {"workers": "1x(tp4ep4dp)+5x(tp8ep8)", "gpu_count": ""},
            "prefill 1x(dpa4 ep4) decode 5x(tp8 ep8)",
        ),
        (
            {"workers": "2x(tp8ep1dp)+1x(tp32ep32dp)", "gpu_count": "48"},
            "prefill 2x(dpa8) decode 1x(dpa32 ep32)",
        ),
        ({"deployment": "agg 2x(tp2 seqs64)"}, "agg 2x(tp2 seqs64)"),
    ],
)
def test_degrees_are_deployments(cells: dict[str, str], text: str) -> None:
    assert print_deployment(row_deployment(row_of(**cells))) == text


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"tp": ""}, "tp is not said"),
        ({"gpu_count": "6"}, "is not 6 devices"),
        ({"ep": "3"}, "ep 3 does not divide 4 devices"),
        ({"workers": "4xtp4"}, "not of the form"),
        ({"workers": "0x(tp4)+1x(tp4)"}, "degree of 0"),
        ({"workers": "1x(tp4)+1x(tp4)", "gpu_count": "4"}, "are 8 devices, not 4"),
        ({"tp": "6", "ep": "4", "degrees": "product of tp and ep"}, "no multiple of ep 4"),
    ],
)
def test_degrees_that_are_none(cells: dict[str, str], message: str) -> None:
    with pytest.raises(StrategyError) as caught:
        row_deployment(row_of(**cells))
    assert message in str(caught.value)
    assert message in skip_of(**cells).detail


@pytest.mark.parametrize(
    ("cells", "reason", "message"),
    [
        ({"duplicate_of": "12"}, SkipReason.DUPLICATE, "row 12"),
        ({"notes": "LOW QUALITY"}, SkipReason.LOW_QUALITY, ""),
        ({"tpot_ms": "", "ttft_ms": ""}, SkipReason.NO_MEASUREMENT, ""),
        ({"model_name": "lama"}, SkipReason.UNSUPPORTED_MODEL, "'lama'"),
        ({"gpu": "H1000"}, SkipReason.UNKNOWN_ACCELERATOR, "H1000"),
        ({"engine": "ollama 0.5"}, SkipReason.UNSUPPORTED_RUNTIME, "ollama"),
        ({"options": "token_bugdet=1"}, SkipReason.UNSUPPORTED_RUNTIME, "token_bugdet"),
        ({"isl": ""}, SkipReason.INCOMPLETE_CONFIGURATION, "isl"),
        ({"concurrency": ""}, SkipReason.INCOMPLETE_CONFIGURATION, "concurrency"),
        ({"concurrency": "", "request_rate": "3"}, SkipReason.INCOMPLETE_CONFIGURATION, "requests"),
        ({"spec_decoding": "mtp"}, SkipReason.INCOMPLETE_CONFIGURATION, "guesses"),
        ({"guesses": "3"}, SkipReason.INCOMPLETE_CONFIGURATION, "acceptance"),
        ({"precision": "int3"}, SkipReason.INCOMPLETE_CONFIGURATION, "precision int3"),
        ({"kv_precision": "three"}, SkipReason.INCOMPLETE_CONFIGURATION, "kv_precision"),
        ({"shortest": "1.5"}, SkipReason.INCONSISTENT_CONFIGURATION, "1.5"),
        (
            {"cluster": "h200-sxm:2", "gpu_count": ""},
            SkipReason.INCONSISTENT_CONFIGURATION,
            "cluster of 2",
        ),
    ],
)
def test_rows_that_are_none_say_why(
    cells: dict[str, str], reason: SkipReason, message: str
) -> None:
    found = skip_of(**cells)
    assert found.reason is reason
    assert message in found.detail
    assert "\n" not in found.detail


def test_a_stream_and_guesses() -> None:
    case = case_of(concurrency="", request_rate="3", requests="100", guesses="2", acceptance="0.5")
    assert case.job.arrivals == Poisson(per_second=3.0, requests=100)
    assert case.job.speculation is not None
    assert case.job.speculation.mean_tokens == 1.75
    assert case.deployment.pools[-1].worker.draft_tokens == 2


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "precision", "expected"),
    [
        (
            "deepseek-ai/DeepSeek-R1",
            "B200",
            "sglang 0.5.9",
            "fp8",
            ("fp8/fp8", None, "fp8/fp8", "fp8/fp8"),
        ),
        (
            "deepseek-ai/DeepSeek-R1",
            "B200",
            "sglang 0.5.9",
            "fp4",
            ("bf16/bf16", "nvfp4/nvfp4", "nvfp4/nvfp4", "nvfp4/nvfp4"),
        ),
        (
            "openai/gpt-oss-120b",
            "H100",
            "vllm 0.18.0",
            "fp4",
            ("bf16/bf16", None, "bf16/bf16", "mxfp4/bf16"),
        ),
        (
            "openai/gpt-oss-120b",
            "B200",
            "vllm 0.18.0",
            "fp4",
            ("bf16/bf16", None, "bf16/bf16", "mxfp4/fp8"),
        ),
        (
            "moonshotai/Kimi-K2.5",
            "H200",
            "vllm 0.16.0",
            "int4",
            ("bf16/bf16", None, "bf16/bf16", "int4-group32/bf16"),
        ),
        (
            "Qwen/Qwen3-32B",
            "H100",
            "vllm 0.12.0",
            "bf16",
            ("bf16/bf16", None, "bf16/bf16", "bf16/bf16"),
        ),
    ],
)
def test_a_word_means_formats_by_class(
    model: str, gpu: str, engine: str, precision: str, expected: tuple[str | None, ...]
) -> None:
    found = case_of(
        model_name=model, gpu=gpu, engine=engine, precision=precision, tp="8", gpu_count="8"
    ).job.precision
    said = (found.attention, found.output, found.mlp, found.experts)
    assert tuple(one and f"{one.weights}/{one.activations}" for one in said) == expected
    assert found.head.weights is NumberFormat.BF16


def test_the_cache_is_as_the_row_says_else_as_engine_and_checkpoint_do() -> None:
    assert case_of(kv_precision="fp8").job.precision.kv is NumberFormat.FP8
    # vLLM's auto is the model's 16 bits, SGLang's what the checkpoint says.
    assert case_of().job.precision.kv is NumberFormat.BF16
    assert case_of(engine="sglang 0.5.9").job.precision.kv is NumberFormat.FP8


def test_what_nothing_says_is_judged_apart() -> None:
    assert case_of(precision="").category is Category.PRECISION
    assert case_of(spec_decoding="unknown").category is Category.MTP
    assert case_of(degrees="inconsistent", spec_decoding="unknown").category is Category.DEGREES


def test_the_projects_own_rows() -> None:
    cases = published_cases()
    counts = Counter(
        case.category if isinstance(case, ServingRun) else case.reason for case in cases
    )
    assert counts[Category.KNOWN] > 1200
    assert counts[Category.PRECISION] == 0
    assert all(isinstance(case, ServingRun) or case.detail for case in cases)
    assert sum(isinstance(case, SkippedRow) for case in cases) < 150
    # Attention DP 8, as printed in "1 (attn DP8)", and 896 requests a rank.
    (row,) = [
        case
        for case in cases
        if isinstance(case, ServingRun)
        and case.concurrency == 7168
        and case.measurement.source_id == "trtllm-r1"
    ]
    assert (print_deployment(row.deployment), row.engine.max_sequences, row.job.precision.kv) == (
        "agg 1x(dpa8 ep8)",
        896,
        NumberFormat.FP8,
    )


def test_degrees_that_were_multiplied_twice_are_mended() -> None:
    """The table prints tp 4, dp 4, ep 16 on 16 devices for runs whose times are those of tp 4, ep 4
    on 4."""
    found = {
        print_deployment(case.deployment)
        for case in published_cases()
        if isinstance(case, ServingRun)
        and case.model.name == "minimax-m2.5"
        and case.measurement.gpu == "h100_sxm"
    }
    assert found == {"agg 1x(tp4 ep4)"}


def test_rows_that_are_not_judged_have_their_reason() -> None:
    found = [to_serving_run(row, facts=facts()) for row in published("skipped.csv")]
    assert found
    assert all(isinstance(one, SkippedRow) and one.detail for one in found)
