"""Serving engines: complete, cited, and found by name and version."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError, ShardwrightError
from shardwright.runtime.serving_engines.engine_from_sourced_statements import (
    IDENTITY,
    derive,
    engine,
    identity_fields,
    read,
    stated,
)
from shardwright.runtime.serving_engines.engine_registry import (
    DYNAMO,
    all_engines,
    engine_names,
    load_engine,
    version_notice,
)
from shardwright.runtime.serving_engines.serving_engine import Engine
from tests.tiers import examples

FIELDS = {field.name for field in fields(Engine)} - {*IDENTITY}
ENGINES = all_engines()
ROWS = (
    "vllm 0.11.2",
    "vllm 0.12.0",
    "vllm 0.15.1",
    "vllm 0.16.0",
    "vllm 0.18.0",
    "sglang 0.5.1.post1",
    "sglang 0.5.6",
    "sglang 0.5.6.post2",
    "sglang 0.5.8.post1",
    "sglang 0.5.9",
    "sglang 0.5.10.post1",
    "trtllm 0.8.1.post1",
    "trtllm 1.0.0rc3",
    "trtllm 1.1.0rc2.post2",
    "trtllm 1.2.0rc2",
    "trtllm 1.2.0rc6.post3",
    "trtllm 1.3.0rc5",
    "TensorRT-LLM v1.0",
)
"""Versions of measured rows."""


@pytest.mark.parametrize("made", ENGINES, ids=lambda one: one.name)
def test_every_field_has_one_fact_with_a_link(made: Engine) -> None:
    cited = [fact.field for fact in made.facts]
    assert {*cited} == FIELDS
    assert len(cited) == len(set(cited))
    assert all(fact.link.startswith("https://") for fact in made.facts)
    assert any(fact.checked for fact in made.facts)


@pytest.mark.parametrize("made", ENGINES, ids=lambda one: one.name)
def test_what_is_not_a_number_comes_from_a_rule(made: Engine) -> None:
    assert made.token_budget or made.sizes
    assert made.max_sequences or made.sizes
    assert made.memory_fraction or made.reserve
    assert made.attention_kernel or made.attention_choices
    assert made.expert_kernel or made.expert_choices
    assert made.captures.sizes(64)


def test_there_are_two_versions_of_each_engine() -> None:
    for word in ("vllm", "sglang", "tensorrt-llm"):
        assert sum(one.engine == word for one in ENGINES) >= 2


def test_names_are_apart_and_in_order() -> None:
    assert len({*engine_names()}) == len(ENGINES)
    for before, after in pairwise(ENGINES):
        if before.engine == after.engine:
            assert load_engine(f"{after.engine} {after.version}") is not load_engine(
                f"{before.engine} {before.version}"
            )
            assert before.released <= after.released


@pytest.mark.parametrize("text", ROWS)
def test_versions_of_rows_are_answered(text: str) -> None:
    found = load_engine(text)
    assert bool(version_notice(found)) == bool(found.asked)


@pytest.mark.parametrize(
    ("text", "name", "asked"),
    [
        ("vllm-0.12", "vllm-0.12", ""),
        ("vLLM 0.12.0", "vllm-0.12", ""),
        ("vllm 0.14.1", "vllm-0.12", "0.14.1"),
        ("vllm v0.9", "vllm-0.11", "0.9"),
        ("vllm 99.0", "vllm-0.18", "99.0"),
        ("vllm", "vllm-0.18", ""),
        ("sglang 0.5.6.post2", "sglang-0.5.6", "0.5.6.post2"),
        ("sglang 0.5.10", "sglang-0.5.10", ""),
        ("sglang-0.5.9", "sglang-0.5.9", ""),
        ("trtllm 1.0", "tensorrt-llm-1.0", ""),
        ("trtllm 1.0.0rc3", "tensorrt-llm-1.0", "1.0.0rc3"),
        ("trtllm-1.1.0rc2.post2", "tensorrt-llm-1.0", "1.1.0rc2.post2"),
        ("TensorRT-LLM v1.0", "tensorrt-llm-1.0", ""),
        ("trtllm 1.2.0rc6.post3", "tensorrt-llm-1.2", "1.2.0rc6.post3"),
        ("trtllm 1.2.0", "tensorrt-llm-1.2", "1.2.0"),
    ],
)
def test_the_nearest_described_version_before_answers(text: str, name: str, asked: str) -> None:
    found = load_engine(text)
    assert (found.name, found.asked) == (name, asked)


def test_a_containers_tag_stands_for_the_version_that_it_holds() -> None:
    for tag, version in DYNAMO.items():
        inside = load_engine(f"trtllm {version}")
        assert load_engine(f"trtllm {tag}").name == inside.name == "tensorrt-llm-1.2"
    assert (
        version_notice(load_engine("trtllm 0.8.1.post2"))
        == "tensorrt-llm-1.2 answers for 0.8.1.post2, which is not described"
    )


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("vlm-0.12", "unknown serving engine 'vlm-0.12'", "did you mean vllm-0.12"),
        ("tgi 2.0", "unknown serving engine 'tgi 2.0'", "known: "),
        ("vllm 0.x", "'0.x' is not a version of vllm", "such as 0.12.0 or 1.2.0rc6.post2"),
        ("", "unknown serving engine ''", "known: "),
        (
            "vllm-0.12 token_budget=1 loud",
            "'loud' behind vllm-0.12 is not option=value",
            "such as token_budget=8192",
        ),
    ],
)
def test_errors_have_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(RuntimeModelError) as caught:
        load_engine(text)
    assert str(caught.value).startswith(message)
    assert (caught.value.hint or "").startswith(hint)


@examples(100, 1000)
@given(st.text(max_size=60))
def test_any_text_is_an_engine_or_one_line(text: str) -> None:
    lines = 1
    try:
        load_engine(text)
    except ShardwrightError as error:
        lines = len(str(error).splitlines())
    assert lines == 1


def test_an_engine_must_be_complete() -> None:
    with pytest.raises(ValueError, match="engine half: no fact for "):
        engine(
            identity_fields("half", "1", engine="vllm"),
            read("https://a", token_budget=1),
            settings=(),
        )


def test_a_field_is_stated_once() -> None:
    base = ENGINES[0]
    with pytest.raises(ValueError, match="stated twice: polling"):
        derive(
            base,
            identity_fields("twice", "1"),
            read("https://a", polling=1),
            stated("https://b", polling=2),
        )


@pytest.mark.parametrize("wrong", [{"on": "polling"}, {"off": "batching"}, {"nothing": 1}])
def test_what_cannot_be_stated_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cannot state"):
        stated("https://a", **wrong)  # type: ignore[arg-type]


def test_a_derived_version_keeps_the_rest() -> None:
    base = ENGINES[0]
    new = derive(base, identity_fields("new", "9"), read("https://a", polling=7))
    assert new.polling == 7
    assert new.sizes == base.sizes
    assert {fact.field for fact in new.facts} == FIELDS
    assert next(fact.link for fact in new.facts if fact.field == "polling") == "https://a"
