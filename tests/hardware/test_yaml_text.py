"""Values and messages of YAML are those of PyYAML's own parser, where libyaml reads it too."""

from __future__ import annotations

from random import Random

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.errors import ClusterError
from shardwright.hardware.files import bounded_yaml
from shardwright.hardware.files.bounded_yaml import read_yaml
from tests.fuzz.mutate import mutated
from tests.hardware.test_slowdown_scenarios import FILE as SCENARIOS
from tests.hardware.test_yaml_cluster import MIXED
from tests.tiers import examples

LIBYAML = pytest.mark.skipif(bounded_yaml._LIBYAML is None, reason="PyYAML has no libyaml here")
LAUNCHED = """apiVersion: kubeflow.org/v1
spec:
  args: ["--tp=4", '--seq-length', "8192"]
  command:
  - torchrun
  - --nnodes=2  # of two
  script: |
    set -e
      python train.py \\
  note: >-
    folded
    text

    of two paragraphs
limits: {nvidia.com/gpu: 8, since: 2024-01-31, rate: 1e-4, big: 1_000, on: yes, nothing: ~}
"""
PIECES = (
    *(
        "a",
        "b: ",
        "c:",
        "- ",
        "-",
        ": ",
        ":",
        "? ",
        "?",
        "\n",
        "\n  ",
        "\n    ",
        "\n---\n",
        "---",
        "...",
        "\t",
        "\r",
        " ",
        ",",
    ),
    *(
        "[",
        "]",
        "{",
        "}",
        ", ",
        "'",
        '"',
        "|",
        "|\n",
        ">-\n",
        "#",
        " #",
        "!",
        "!!int ",
        "&a ",
        "*a",
        "%",
        "@",
        "`",
        "\\",
        "\\x41",
    ),
    *(
        "1",
        "1e3",
        "0x1f",
        "0o7",
        "1:30",
        "2020-02-31",
        "2020-01-02",
        ".inf",
        "~",
        "=",
        "<<: ",
        "yes",
        "é",
        "\x85",
        "\u2028",
        "\ufeff",
    ),
)


def _answer(text: str) -> str:
    """The value, or the message and its hint."""
    try:
        return repr(read_yaml(text))
    except ClusterError as error:
        return f"{error.message} ({error.hint})"


def _own_answer(text: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounded_yaml, "_LIBYAML", None)
        return _answer(text)


@LIBYAML
@examples(200, 4_000)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@example("a:\tb")
@example("a: |#\n  b")
@example("[?a]")
@example("a: ! b")
@example("%YAML 1.3\n---\na")
@example("[" * 20 + "\x01")
@example("[" * 20 + '*a, "\\q"')
def test_pieces_of_yaml(text: str) -> None:
    assert _answer(text) == _own_answer(text)


@LIBYAML
@examples(100, 2_000)
@given(st.integers(0, 2**32))
def test_changed_files(number: int) -> None:
    text = mutated((MIXED, SCENARIOS, LAUNCHED), Random(number))
    assert _answer(text) == _own_answer(text)


REFUSED = {
    "a: 1\nb: {c: 1,\n    c: 2}": "key 'c' is given twice in line 3, column 5",
    "a: &x 1\nb: *y": "the YAML alias *y names nothing",
    "[" * 17 + "]" * 17: "nested too deeply",
    "a: 1\nb: [1, 2": "expected ',' or ']', but got '<stream end>' in line 2, column 9",
    "a: 1\n b: 2": "mapping values are not allowed here in line 2, column 3",
    f"a: 1\nb: 0x1{'0' * 4000}": "a number is too long in line 2, column 4",
    "a: 2020-02-31": "a value cannot be read",
    "a\n---\nb": "but found another document in line 2, column 1",
    "[" + "1," * 40_000 + "]": "at most 40000 values",
}


@pytest.mark.parametrize("text", list(REFUSED), ids=range(len(REFUSED)))
@pytest.mark.parametrize("own", [False, True])
def test_what_is_refused(text: str, own: bool) -> None:
    assert REFUSED[text] in (_own_answer if own else _answer)(text)


@LIBYAML
def test_a_file_that_is_yaml_is_read_by_libyaml_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "SafeLoader", None)
    for text in (MIXED, SCENARIOS, LAUNCHED):
        assert isinstance(read_yaml(text), dict)
