"""Options of serving engines: they change what is there, and say what is wrong."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardwright.errors import RuntimeModelError
from shardwright.runtime.serving_engines.engine_options import (
    BY_NAME,
    OPTIONS,
    Form,
    engine_with_options,
    flag_of,
    option_setting,
    word_setting,
)
from shardwright.runtime.serving_engines.engine_registry import all_engines, load_engine
from shardwright.runtime.serving_engines.serving_engine import (
    Admission,
    Engine,
    EngineSetting,
    Eviction,
    ExpertExchange,
)
from tests.registries import place, require_same_members
from tests.tiers import examples

ENGINES = all_engines()
FIELDS = {field.name for field in fields(Engine)}
VALUES = {
    Form.NUMBER: "8192",
    Form.SHARE: "0.5",
    Form.FACTOR: "2.5",
    Form.SIZES: "1,2,8",
    Form.WORD: "some",
    Form.SWITCH: "on",
}


def value_of(setting: EngineSetting) -> str:
    """A value that it may have."""
    return setting.words[-1].word if setting.words else VALUES[BY_NAME[setting.option].form]


@pytest.mark.parametrize("made", ENGINES, ids=lambda one: one.name)
def test_every_option_changes_fields_that_are_there(made: Engine) -> None:
    names = [setting.option for setting in made.settings]
    assert len(names) == len(set(names))
    for setting in made.settings:
        new = engine_with_options(made, [(setting.option, value_of(setting))])
        changed = (
            {setting.field}
            if setting.field
            else {name for word in setting.words for name, _ in word.values}
        )
        assert changed <= FIELDS
        assert setting.flag
        assert setting.link.startswith("https://")
        assert new.name == f"{made.name} {setting.option}={value_of(setting)}"
        different = {field for field in FIELDS if getattr(new, field) != getattr(made, field)}
        assert different <= changed | {"name", "base", "options", "facts"}
        assert {fact.field for fact in new.facts} == {fact.field for fact in made.facts}


def test_every_option_of_the_vocabulary_is_somebodys() -> None:
    require_same_members(
        (option.name for option in OPTIONS),
        {setting.option for made in ENGINES for setting in made.settings},
        place("src/shardwright/runtime/serving_engines/engine_options.py", "OPTIONS"),
    )


def test_values_are_read() -> None:
    made = load_engine(
        "sglang-0.5.9 token_budget=32768 memory=0.82 graph_sizes=8,1,8 conservative=3.33"
        " prefix_cache=off kv=fp8"
    )
    assert (made.token_budget, made.memory_fraction, made.captured) == (32768, 0.82, (1, 8))
    assert (made.conservative, made.prefix_cache, made.kv_format) == (3.33, False, "fp8")
    assert made.options == (
        ("token_budget", "32768"),
        ("memory", "0.82"),
        ("kv", "fp8"),
        ("prefix_cache", "off"),
        ("conservative", "3.33"),
        ("graph_sizes", "8,1,8"),
    )
    assert (
        next(fact.note for fact in made.facts if fact.field == "token_budget")
        == "set by --chunked-prefill-size"
    )


def test_words_change_what_goes_together() -> None:
    made = load_engine("trtllm-1.2 admission=max-utilization exchange=mnnvl")
    assert (made.admission, made.eviction, made.exchange) == (
        Admission.PROMPT,
        Eviction.PAUSE,
        ExpertExchange.ONE_SIDED,
    )


def test_options_add_up_in_any_order() -> None:
    base = load_engine("vllm-0.12")
    one = engine_with_options(
        engine_with_options(base, [("async", "on")]), [("token_budget", "4096")]
    )
    assert one == engine_with_options(base, [("token_budget", "4096"), ("async", "on")])
    assert one.name == "vllm-0.12 token_budget=4096 async=on"
    assert (
        engine_with_options(one, [("async", "off")]).name == "vllm-0.12 token_budget=4096 async=off"
    )
    assert engine_with_options(base, []) is base


def test_a_flag_for_each_engine() -> None:
    flags = {made.engine: flag_of(made, "token_budget") for made in ENGINES}
    assert flags == {
        "vllm": "--max-num-batched-tokens",
        "sglang": "--chunked-prefill-size",
        "tensorrt-llm": "--max_num_tokens",
    }


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "vllm-0.12 token_bugdet=1",
            "unknown engine option 'token_bugdet'",
            "did you mean token_budget?",
        ),
        (
            "vllm-0.12 polling=10",
            "vllm-0.12 has no option polling",
            "it has token_budget, sequences",
        ),
        (
            "vllm-0.12 token_budget=0",
            "vllm-0.12 cannot have token_budget=0",
            "a whole number of at least 1, such as token_budget=8192 (--max",
        ),
        (
            "vllm-0.12 token_budget=many",
            "vllm-0.12 cannot have token_budget=many",
            "a whole number of at least 1",
        ),
        (
            "vllm-0.12 memory=1.5",
            "vllm-0.12 cannot have memory=1.5",
            "a share above 0, at most 1, such as memory=0.9",
        ),
        ("vllm-0.12 memory=nan", "vllm-0.12 cannot have memory=nan", "a share above 0"),
        (
            "sglang-0.5.9 conservative=-1",
            "sglang-0.5.9 cannot have conservative=-1",
            "above 0, at most 100",
        ),
        ("vllm-0.12 graphs=maybe", "vllm-0.12 cannot have graphs=maybe", "it is on or off"),
        (
            "vllm-0.12 exchange=magic",
            "vllm-0.12 cannot have exchange=magic",
            "it is allgather-reducescatter or naive",
        ),
        ("vllm-0.12 graph_sizes=1,,2", "vllm-0.12 cannot have graph_sizes=1,,2", "whole numbers"),
        ("vllm-0.12 async=on async=off", "option async is set twice", "async=on or async=off"),
        (
            "vllm-0.12 graphs=on exchange=deepep-high-throughput",
            "option exchange=deepep-high-throughput contradicts",
            "leave one",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(RuntimeModelError) as caught:
        load_engine(text)
    assert str(caught.value).startswith(message)
    assert (caught.value.hint or "").startswith(hint)
    assert "\n" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: option_setting("nothing", "--a", "https://a"),
        lambda: option_setting("own_sums", "--a", "https://a"),
        lambda: word_setting("exchange", "--a", "https://a", one={"no_such_field": 1}),
    ],
)
def test_mistakes_in_an_engines_file(make: object) -> None:
    with pytest.raises(ValueError, match="sets "):
        make()  # type: ignore[operator]


@examples(50, 500)
@given(made=st.sampled_from(ENGINES), data=st.data())
def test_an_engine_is_found_again_by_its_name(made: Engine, data: st.DataObject) -> None:
    settings = data.draw(
        st.lists(st.sampled_from(made.settings), unique_by=lambda one: one.option, max_size=5)
    )
    pairs = [(setting.option, value_of(setting)) for setting in settings]
    fields = [setting.field or setting.words[0].values[0][0] for setting in settings]
    assume(len({*fields, "graphs", "sums", "fused_all_reduce"}) == len(fields) + 3)
    new = engine_with_options(made, pairs)
    assert load_engine(new.name) == new
