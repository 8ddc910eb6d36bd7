"""Profile files: the same bytes for the same profile, and nothing but the project's errors for any
other text."""

import json
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import DataError, ShardwrightError
from shardwright.files.canonical_json import to_text
from shardwright.files.profile_file import parse_profile, profile_document, read_profile
from shardwright.hardware.profile.apply_profile import profiled_cluster
from shardwright.hardware.profile.measured_rates import Profile
from tests.calibrate.profiles import profile
from tests.tiers import examples

TEXT = to_text(profile_document(profile()))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("bf16"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("given_profile", [profile(), Profile(accelerator="x")])
def test_a_profile_is_read_back_and_written_as_the_same_bytes(given_profile: Profile) -> None:
    text = to_text(profile_document(given_profile))
    again = parse_profile(text)
    assert to_text(profile_document(again)) == text
    assert again.accelerator == given_profile.accelerator
    assert len(again.collectives) == len(given_profile.collectives)


def test_exact_numbers_survive() -> None:
    read = parse_profile(TEXT)
    assert read.elements == profile().elements
    assert read.attention == profile().attention
    assert read.host == profile().host
    assert read.method == profile().method
    assert read.collectives == profile().collectives
    assert read.reference == "profile of h100-sxm (Some Device), 2026-11-21, torch 2.13.0"


def _without(document: dict[str, Any], name: str) -> None:
    del document[name]


def _put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        target: Any = document
        for key in path[:-1]:
            target = target[key]
        target[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: _without(d, "gemm"), "gemm is missing"),
        (_put("schema", value="shardwright.plan"), "is not a profile"),
        (_put("version", value=2), "version 2 is not 1"),
        (_put("version", value=True), "version True is not 1"),
        (_put("accelerator", value=""), "accelerator is ''"),
        (_put("accelerator", value="a\nb"), "accelerator is"),
        (_put("gemm", 0, "dtype", value="bf17"), "dtype is 'bf17', not fp32 or"),
        (
            _put("gemm", 0, "flops_per_second", value=0),
            "flops_per_second is 0, not a number above 0",
        ),
        (_put("gemm", 0, "sustained", value=0.5), "sustained is 0.5, not a number of at least 1"),
        (_put("gemm", 0, "exponent", value=float("nan")), "exponent is nan"),
        (_put("gemm", 0, "points", 0, value=[1, 2, 3]), "points is"),
        (_put("gemm", 0, "points", 0, 0, value=0), "not a whole number of at least 1"),
        (_put("attention", 0, "curve", value=[[4096, 1e12], [1024, 1e12]]), "rising"),
        (_put("attention", 0, "curve", value=[]), "rising"),
        (_put("collectives", 1, "collective", value="all_reduce"), "each collective once"),
        (_put("collectives", 0, "num_devices", value=1), "num_devices is 1"),
        (_put("collectives", 0, "evidence", value="guessed"), "evidence is 'guessed'"),
        (_put("host", "num_devices", value=0), "num_devices is 0"),
        (_put("method", "libraries", value=[["torch"]]), "libraries is"),
        (_put("memory_bytes", value=1e400), "memory_bytes is inf"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    change: Callable[[dict[str, Any]], None], says: str
) -> None:
    document = deepcopy(json.loads(TEXT))
    change(document)
    with pytest.raises(DataError) as raised:
        parse_profile(json.dumps(document), name="p.json")
    assert says in raised.value.message
    assert raised.value.message.startswith("p.json") or "row" in raised.value.message
    assert raised.value.hint
    assert raised.value.exit_code == 7


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read profile"):
        read_profile(tmp_path / "none.json")
    path = tmp_path / "bytes.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not text"):
        read_profile(path)
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="not JSON"):
        read_profile(path)


@examples(25, 500)
@given(
    st.text(max_size=50)
    | st.sampled_from(["{", "[]", "null", '{"schema": "shardwright.profile", "version": 1}'])
)
def test_any_text_is_a_profile_or_a_data_error(text: str) -> None:
    with pytest.raises(DataError):
        parse_profile(text)


@examples(25, 500)
@given(data=st.data())
def test_any_change_of_a_profile_is_a_profile_or_an_error_of_the_project(
    data: st.DataObject,
) -> None:
    document = json.loads(TEXT)
    for _ in range(data.draw(st.integers(1, 3))):
        target: Any = document
        while True:
            keys = list(target) if isinstance(target, dict) else list(range(len(target)))
            key = data.draw(st.sampled_from(keys))
            inner = target[key]
            if not (isinstance(inner, dict | list) and inner) or data.draw(st.booleans()):
                break
            target = inner
        target[key] = data.draw(json_values)
    with suppress(ShardwrightError):
        found = parse_profile(json.dumps(document))
        assert parse_profile(to_text(profile_document(found))).accelerator == found.accelerator
        assert profiled_cluster("h100-sxm:8", found).num_devices == 8
