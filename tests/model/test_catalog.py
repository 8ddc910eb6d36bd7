"""The catalog: published parameter counts, names, typos."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ModelError
from shardwright.model.catalog.load_model_by_name import ENTRIES, catalog_entry, load_model
from tests.tiers import examples


def test_parameters_agree_with_the_published_count() -> None:
    apart = [
        entry.names[0]
        for entry in ENTRIES
        if load_model(entry.names[0]).num_parameters != pytest.approx(entry.parameters, rel=0.005)
    ]
    assert not apart


def test_there_are_enough_models_with_the_usual_names() -> None:
    assert len(ENTRIES) >= 40
    usual = (
        "llama-3.1-405b llama-3-8b llama-2-70b gpt3-175b mixtral-8x7b deepseek-v3 qwen3-235b-a22b"
        " gpt-oss-120b kimi-k2 megatron-1t"
    )
    assert set(usual.split()) <= {entry.names[0] for entry in ENTRIES}


def test_no_two_entries_share_a_name() -> None:
    names = [name for entry in ENTRIES for name in entry.names]
    assert len(names) == len(set(names))
    assert all(name == name.lower() and "_" not in name and " " not in name for name in names)


def test_every_entry_says_where_it_comes_from() -> None:
    assert not [entry.names[0] for entry in ENTRIES if len(entry.source) <= 10]


@pytest.mark.parametrize(
    "spelling", ["Llama-3.1-405B", "meta-llama/Meta-Llama-3.1-405B", " llama_3.1_405b "]
)
def test_spellings(spelling: str) -> None:
    assert catalog_entry(spelling).names[0] == "llama-3.1-405b"
    assert load_model(spelling).name == "llama-3.1-405b"


@pytest.mark.parametrize(
    ("typo", "near"),
    [
        ("lama-3.1-405b", "llama-3.1-405b"),
        ("deepseek-v33", "deepseek-v3"),
        ("org/mixtral-8x7", "mixtral-8x7b"),
    ],
)
def test_typos_suggest(typo: str, near: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(typo)
    assert near in caught.value.hint


def test_a_path_is_read(tmp_path: Path) -> None:
    source = Path(__file__).parent / "configs" / "llama.json"
    copy = tmp_path / "config.json"
    copy.write_bytes(source.read_bytes())
    assert (
        load_model(str(copy)).num_parameters == load_model(str(tmp_path)).num_parameters == 80_688
    )
    with pytest.raises(ModelError, match="No such file"):
        load_model(str(tmp_path / "other.json"))


def refusal(name: str) -> ModelError | None:
    try:
        load_model(name)
    except ModelError as error:
        return error
    return None


@examples(25, 500)
@given(st.text(max_size=30).filter(lambda text: "." not in text and "/" not in text))
def test_any_name_is_a_model_or_a_model_error(name: str) -> None:
    error = refusal(name)
    assert error is None or ("\n" not in str(error) and error.hint)


def test_active_parameters_of_the_mixtures() -> None:
    # Names of the models state them: 22 B, 3 B (3.3), 12.9 B (Mixtral paper), 5.1 B without
    # embedding (gpt-oss card).
    for name, billions in (
        ("qwen3-235b-a22b", 22.2),
        ("qwen3-30b-a3b", 3.35),
        ("mixtral-8x7b", 12.9),
        ("deepseek-v2-lite", 2.66),
    ):
        assert load_model(name).num_active_parameters == pytest.approx(billions * 1e9, rel=0.02)
