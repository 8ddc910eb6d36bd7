"""Files: missing, not JSON, truncated, and no input that raises anything but `ModelError`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.errors import ModelError
from shardwright.model.families.huggingface_config import (
    load_config,
    model_from_config,
    parse_config,
)
from shardwright.model.ir.config_json_field_access import Fields
from shardwright.model.ir.model_graph import Model
from tests.tiers import examples

CONFIGS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "configs").glob("*.json"))
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.sampled_from([2**31, 2**63, 10**400, -(2**70)])
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=12)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    config = dict(CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))])
    others = CONFIGS[draw(st.sampled_from(sorted(CONFIGS)))]
    for _ in range(draw(st.integers(1, 4))):
        key = draw(
            st.sampled_from(
                [
                    *config,
                    *others,
                    "layer_types",
                    "attn_config",
                    "moe_layers",
                    "no_rope_layers",
                    "mlp_only_layers",
                ]
            )
        )
        change = draw(st.sampled_from(["drop", "set", "small", "borrow"]))
        if change == "drop":
            config.pop(key, None)
        elif change == "borrow":
            config[key] = others.get(key)
        else:
            config[key] = draw(VALUES if change == "set" else st.integers(0, 130))
    return config


def outcome(config: dict[str, Any]) -> Model | ModelError:
    try:
        return model_from_config(config, name="m")
    except ModelError as error:
        return error


@examples(100, 3000)
@given(mutated())
def test_a_mutated_configuration_gives_a_model_or_a_model_error(config: dict[str, Any]) -> None:
    result = outcome(config)
    if isinstance(result, ModelError):
        assert "\n" not in str(result)
        assert result.exit_code == 3
    else:
        assert result.num_parameters > 0


@examples(40, 1000)
@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_give_an_object_or_a_model_error(content: bytes) -> None:
    try:
        value = parse_config(content, source="f")
    except ModelError:
        return
    with pytest.raises(ModelError):
        model_from_config(value, name="m")


@examples(25, 500)
@given(
    st.dictionaries(st.text(max_size=10), VALUES, max_size=6),
    st.sampled_from(["LlamaForCausalLM", "gpt2", "x"]),
)
def test_any_object_gives_a_model_error(mapping: dict[str, Any], kind: str) -> None:
    with pytest.raises(ModelError):
        model_from_config({**mapping, "model_type": kind}, name="m")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b'{"architectures": ["Llama', "the file is cut off"),
        (b'{"hidden_size": 4,', "the file is cut off"),
        (b"hello", "not valid JSON"),
        (b"[1, 2]", "a list of 2, not an object"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 200_000, "JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not usable JSON"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load_config(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path, Path("a\0b"), Path("x" * 5000)):
        with pytest.raises(ModelError):
            load_config(path)


def test_a_byte_order_mark_is_read_and_the_folder_names_the_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIGS["llama"]).encode())
    assert load_config(path).name == "tiny"


class TestFields:
    def test_spellings_and_defaults(self) -> None:
        fields = Fields({"n_layer": 3, "empty": None}, "f")
        assert fields.integer("num_layers", "n_layer") == 3
        assert fields.integer("empty", default=7) == 7
        assert fields.optional_integer("empty") is None
        assert fields.flag("empty", default=True) is False
        assert fields.flag("absent", default=True) is True
        assert not fields.present("empty")

    def test_nested_fields_carry_their_path(self) -> None:
        inner = Fields({"text_config": {"heads": 0}}, "f").section("text_config")
        with pytest.raises(ModelError, match=r"f: text_config\.heads = 0 is out of range"):
            inner.integer("heads")
        with pytest.raises(ModelError, match=r"text_config\.width"):
            inner.integer("width")

    def test_numbers(self) -> None:
        fields = Fields({"a": 1.5, "b": float("inf"), "c": True, "d": 4}, "f")
        assert fields.number("a", minimum=0, maximum=2) == 1.5
        assert fields.number("d", minimum=0, maximum=4) == 4.0
        for name in ("b", "c"):
            with pytest.raises(ModelError, match=name):
                fields.number(name, minimum=0, maximum=1e300)

    def test_lists(self) -> None:
        fields = Fields({"a": ["x", "y"], "b": [1, 2], "c": [1, "x"], "d": [True]}, "f")
        assert fields.strings("a") == ("x", "y")
        assert fields.integers("b") == (1, 2)
        assert fields.strings("none") == ()
        for name in ("c", "d"):
            with pytest.raises(ModelError, match=name):
                fields.integers(name)
        with pytest.raises(ModelError, match="supported: x"):
            fields.layer_types(layers=2, allowed=("x",), name="a")
