"""Launch facts of InferenceX: each with a source, options that the engine has, and rows as their
scripts start them."""

from __future__ import annotations

import re
from functools import cache

import pytest

from shardwright.errors import RuntimeModelError
from shardwright.runtime.serving_engines.engine_options import BY_NAME
from shardwright.runtime.serving_engines.engine_registry import all_engines, load_engine
from shardwright.serving.deployments.deployment_notation import parse_deployment, print_deployment
from shardwright.validation.serving.launch_options_by_role import (
    engine_options,
    joined_options,
    with_role_options,
)
from shardwright.validation.serving.measured_deployment import ServingRun
from shardwright.validation.serving.row_to_serving_run import to_serving_run
from shardwright.validation.serving.serving_table_columns import SERVING_TABLE
from shardwright.validation.tables.skipped_rows import SkippedRow
from shardwright.validation.tables.table_facts_from_toml import TableFacts, parse_facts
from tests.validation.serving_tables import FOLDER, facts, published_cases, row_of

FILES = ("inferencex.toml", "inferencex_disaggregated.toml")
SOURCE = re.compile(
    r"https://github\.com/(SemiAnalysisAI/InferenceX|(NVIDIA|ishandhanani)/srt-slurm)/blob/[0-9a-f]{40}/\S+\.(sh|yaml)$"
)
R1 = {
    "model_name": "DeepSeek-R1",
    "precision": "fp8",
    "protocol": "inferencex",
    "osl": "1024",
    "spec_decoding": "none",
    "source_id": "x",
}


@cache
def launches(name: str) -> TableFacts:
    return parse_facts((FOLDER / "facts" / name).read_bytes(), name=name, form=SERVING_TABLE)


def started(**cells: str) -> ServingRun:
    found = to_serving_run(
        row_of(**{"gpu_count": cells.get("tp", "8"), "tp": "8", **R1, **cells}), facts=facts()
    )
    assert isinstance(found, ServingRun), found
    return found


def options_of(**cells: str) -> dict[str, str]:
    return dict(started(**cells).engine.options)


@pytest.mark.parametrize("name", FILES)
def test_every_rule_has_a_source_and_known_options(name: str) -> None:
    had = {setting.option for engine in all_engines() for setting in engine.settings}
    for rule in launches(name).rules:
        assert SOURCE.search(rule.because), rule.because
        assert rule.options or rule.fill
        names = [
            re.sub(r"^(prefill|decode)\.", "", word.partition("=")[0])
            for word in rule.options.split()
        ]
        assert {*names} <= had & {*BY_NAME}
        assert len({word.partition("=")[0] for word in rule.options.split()}) == len(names)


def test_no_published_row_is_lost_for_its_launch() -> None:
    found = [case for case in published_cases() if case.measurement.protocol == "inferencex"]
    cases = [case for case in found if isinstance(case, ServingRun)]
    lost = [
        case
        for case in found
        if isinstance(case, SkippedRow)
        and case.reason.value in ("unsupported-runtime", "inconsistent-configuration")
    ]
    told = [case for case in cases if case.engine.options]
    # Those without: disaggregated runs of which no recipe is public, and rows of fixed lengths.
    assert all("Little" in skip.detail or "devices" in skip.detail for skip in lost)
    assert len(told) > 0.8 * len(cases)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            {"engine": "sglang 0.5.9", "gpu": "b200_sxm", "concurrency": "64", "isl": "1024"},
            {
                "sequences": "128",
                "memory": "0.82",
                "token_budget": "32768",
                "polling": "30",
                "stream_interval": "30",
            },
        ),
        (
            {"engine": "sglang 0.5.9", "gpu": "b200_sxm", "concurrency": "8", "isl": "1024"},
            {"polling": "10"},
        ),
        (
            {
                "engine": "sglang 0.5.9",
                "gpu": "b200_sxm",
                "concurrency": "64",
                "isl": "8192",
                "tp": "4",
            },
            {"sequences": "32", "memory": "0.95", "token_budget": "8192", "polling": "10"},
        ),
        (
            {
                "engine": "trtllm 1.2.0rc6.post2",
                "gpu": "b200_sxm",
                "concurrency": "128",
                "isl": "1024",
            },
            {
                "piecewise": "on",
                "wait_iterations": "40",
                "graph_max": "128",
                "token_budget": "8192",
                "context": "8192",
                "experts": "trtllm",
            },
        ),
        (
            {
                "engine": "trtllm 1.2.0rc6.post2",
                "gpu": "b200_sxm",
                "concurrency": "512",
                "isl": "1024",
            },
            {"graph_max": "64", "experts": "deepgemm", "memory": "0.7"},
        ),
        (
            {
                "engine": "trtllm 1.2.0rc6.post2",
                "gpu": "b200_sxm",
                "concurrency": "64",
                "isl": "8192",
                "tp": "1",
                "dpa": "8",
                "gpu_count": "8",
            },
            {"balance_iterations": "60", "token_budget": "8320", "piecewise": "on"},
        ),
        (
            {
                "engine": "trtllm 1.2.0rc6.post3",
                "gpu": "b200_sxm",
                "concurrency": "32",
                "isl": "1024",
                "spec_decoding": "mtp",
            },
            {"sequences": "32", "token_budget": "1216", "experts": "trtllm", "graph_max": "32"},
        ),
        (
            {
                "engine": "vllm 0.15.1",
                "model_name": "gpt-oss-120b",
                "precision": "fp4",
                "gpu": "b200_sxm",
                "concurrency": "16",
                "isl": "1024",
            },
            {
                "context": "2068",
                "graph_max": "2048",
                "kv": "fp8",
                "fused_sums": "on",
                "sequences": "512",
            },
        ),
        (
            {
                "engine": "vllm 0.18.0",
                "model_name": "gpt-oss-120b",
                "precision": "fp4",
                "gpu": "h100_sxm",
                "concurrency": "16",
                "isl": "8192",
            },
            {"context": "10240", "sequences": "16", "experts": "marlin"},
        ),
    ],
)
def test_rows_run_as_their_scripts_start_them(cells: dict[str, str], said: dict[str, str]) -> None:
    assert said.items() <= options_of(**cells).items()


def test_prefill_and_decode_have_options_of_their_own() -> None:
    case = started(
        engine="trtllm 0.8.1.post2",
        gpu="gb300",
        concurrency="8602",
        isl="1024",
        tp="",
        gpu_count="28",
        workers="3x(tp4ep4dp)+2x(tp8ep8dp)",
    )
    prefill, decode = (dict(pool.worker.options) for pool in case.deployment.pools)
    assert (prefill["sequences"], prefill["graphs"], prefill["memory"]) == ("8", "off", "0.1")
    assert (decode["sequences"], decode["token_budget"], decode["graph_sizes"].count(",")) == (
        "512",
        "512",
        66,
    )
    assert dict(case.engine.options) == {"kv": "fp8", "prefix_cache": "off"}
    assert any("srt-slurm" in line and "decode.sequences=512" in line for line in case.assumptions)


def test_guesses_of_a_recipe_go_before_those_of_the_engine() -> None:
    case = started(
        engine="trtllm 0.8.1.post2",
        gpu="gb300",
        concurrency="666",
        isl="1024",
        tp="",
        gpu_count="20",
        workers="1x(tp4ep4dp)+1x(tp16ep16dp)",
        spec_decoding="mtp",
    )
    assert case.deployment.pools[1].worker.draft_tokens == 3


def test_a_row_goes_before_its_facts() -> None:
    assert joined_options({"memory": "0.8", "kv": "fp8"}, "memory=0.9") == "kv=fp8 memory=0.9"
    assert (
        engine_options("memory=0.9 decode.sequences=8 prefill.graphs=off kv=fp8")
        == "memory=0.9 kv=fp8"
    )
    assert (
        options_of(engine="sglang 0.5.9", gpu="b200_sxm", isl="1024", options="memory=0.5")[
            "memory"
        ]
        == "0.5"
    )


def test_options_of_workers() -> None:
    engine = load_engine("sglang-0.5.9")
    both = parse_deployment("prefill 1x(tp4) decode 2x(tp8 memory=0.7)")
    told = with_role_options(
        both,
        engine=engine,
        options="kv=fp8 prefill.graphs=off decode.memory=0.8 decode.sequences=4",
    )
    assert (
        print_deployment(told) == "prefill 1x(tp4 graphs=off) decode 2x(tp8 memory=0.7 sequences=4)"
    )
    with pytest.raises(RuntimeModelError, match="for a role without workers"):
        with_role_options(parse_deployment("tp8"), engine=engine, options="decode.memory=0.8")
    with pytest.raises(RuntimeModelError, match="unknown engine option"):
        with_role_options(both, engine=engine, options="decode.memry=0.8")
