"""YAML with anchors and aliases: read as if they were written out, and small whatever they would
expand to."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.errors import ClusterError
from shardwright.hardware.files.bounded_yaml import read_yaml
from shardwright.hardware.files.read_cluster_file import cluster_from_yaml
from shardwright.hardware.files.yaml_alias_limit import MAX_ALIASES, MAX_DEPTH, MAX_EVENTS

leaves = st.one_of(st.integers(-5, 5), st.text("abc", max_size=3), st.booleans(), st.none())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
)


@given(first=values, second=values)
def test_aliases_are_what_they_name(first: object, second: object) -> None:
    """PyYAML writes what it meets again as an alias."""
    shared = [first, {"again": first}]
    value = {"a": shared, "b": [shared, second], "c": {"d": second, "e": shared}}
    text = yaml.safe_dump(value)
    assert "*id" in text
    assert read_yaml(text) == value


def test_own_keys_come_before_merged_ones_and_earlier_mappings_before_later() -> None:
    text = (
        "a: &a {lr: 1, batch: 2}\nb: &b {<<: *a, lr: 3}\nc: {<<: *b}\nd: {<<: [*a, *b]}\ne: {<<:"
        " [*b, *a], batch: 5}\n"
    )
    found = read_yaml(text)
    assert isinstance(found, dict)
    assert found["b"] == found["c"] == {"lr": 3, "batch": 2}
    assert (found["d"], found["e"]) == ({"lr": 1, "batch": 2}, {"lr": 3, "batch": 5})
    with pytest.raises(ClusterError, match="<< names no mapping"):
        read_yaml("a: &a {lr: 1}\nb: {<<: [*a, 5]}\n")


def test_a_merged_mapping_may_be_written_before_it_is_merged_on() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {q: &b {<<: *a, x: 3}}\nc: {<<: *b, z: 4}\n"
    assert read_yaml(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"q": {"x": 3, "y": 2}},
        "c": {"x": 3, "y": 2, "z": 4},
    }
    with pytest.raises(ClusterError, match="key 'x' is given twice"):
        read_yaml("a: &a {x: 1, y: 2}\nb: {q: &b {<<: *a, x: 3, x: 5}}\nc: {<<: *b, z: 4}\n")


@given(width=st.integers(1, 12), levels=st.integers(1, 12), merged=st.booleans())
@example(width=9, levels=10, merged=False)
@example(width=9, levels=10, merged=True)
def test_no_text_expands_beyond_the_limit(width: int, levels: int, merged: bool) -> None:
    """Each line names the one before it several times: the text is small, what it says is not."""

    def line(n: int) -> str:
        inside = ",".join([f"*a{n - 1}" if n else "1"] * width)
        return (
            f"a{n}: &a{n} {{<<: [{inside}]}}\n"
            if merged and n
            else f"a{n}: &a{n} {{x: 1}}\n"
            if merged
            else f"a{n}: &a{n} [{inside}]\n"
        )

    text = "".join(line(n) for n in range(levels))
    # Nodes of a line: a mapping and its key and value, then the mapping, its merge key, the list
    # and what it names.
    size, total, deep = 0, 0, levels + 1 if not merged else 2 * levels
    for n in range(levels):
        size = 3 if merged and not n else (3 if merged else 1) + width * (size if n else 1)
        total += size + 1
    if total + 1 <= MAX_EVENTS and deep <= MAX_DEPTH:
        assert set(read_yaml(text)) == {f"a{n}" for n in range(levels)}  # type: ignore[call-overload]
    else:
        with pytest.raises(ClusterError, match=r"too (long|deeply)") as caught:
            read_yaml(text)
        assert "\n" not in str(caught.value)


def test_too_many_aliases_are_refused() -> None:
    assert read_yaml("a: &a 1\nb: [" + "*a," * MAX_ALIASES + "]\n")["b"] == [1] * MAX_ALIASES  # type: ignore[index]
    with pytest.raises(ClusterError, match="too many YAML aliases"):
        read_yaml("a: &a 1\nb: [" + "*a," * (MAX_ALIASES + 1) + "]\n")


def test_a_cluster_may_repeat_its_nodes() -> None:
    node = "{accelerator: h100-sxm, count: 2, nic: {bandwidth_gbps: 400}}"
    assert cluster_from_yaml(f"nodes: [&n {node}, *n]\n") == cluster_from_yaml(
        f"nodes: [{node}, {node}]\n"
    )
