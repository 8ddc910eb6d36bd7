"""A device list is the tuple that it stands for in every operation, and has one form."""

from __future__ import annotations

import pickle
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.hardware.strided_device_list import EMPTY, DeviceList, are_disjoint, union
from tests.tiers import examples

LEVELS = st.lists(st.tuples(st.integers(1, 4), st.integers(-3, 24)), max_size=3)
"""(count, step), outermost first: some nest, some rise, some have a device twice."""


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, ...]:
    """Patterns, patterns with some devices changed, left out or in another order, several patterns
    in a row, and any numbers."""
    found: list[int] = []
    for _ in range(draw(st.integers(1, 2))):
        found += written_out(draw(st.integers(0, 40)) + 72, draw(LEVELS))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 60))
    kept = draw(st.integers(0, len(found)))
    return tuple(
        draw(
            st.sampled_from(
                (found, found, found[:kept], sorted(found), found[::-1], sorted(set(found)))
            )
        )
    )


def written_out(first: int, levels: list[tuple[int, int]]) -> list[int]:
    """The devices of a pattern, one after another."""
    return [
        first + sum(i * step for i, (_, step) in zip(place, levels, strict=True))
        for place in product(*(range(n) for n, _ in levels))
    ]


@given(row=rows(), by=st.integers(-9, 99), low=st.integers(-5, 150), high=st.integers(-5, 150))
@examples(100, 2000)
def test_a_list_is_its_tuple(row: tuple[int, ...], by: int, low: int, high: int) -> None:
    found = DeviceList.of(row)
    assert tuple(found) == row
    assert len(found) == len(row)
    assert bool(found) == bool(row)
    assert [found[i] for i in range(-len(row), len(row))] == [*row, *row]
    assert tuple(reversed(found)) == row[::-1]
    assert found.array.tolist() == list(row) == np.asarray(found).tolist()
    assert found.array.dtype == np.int64
    assert tuple(found.shifted(by)) == tuple(device + by for device in row)
    assert tuple(found.by_number()) == tuple(sorted(row))
    assert found.rises == all(a < b for a, b in pairwise(row))
    assert not row or found.is_run == (row == tuple(range(row[0], row[0] + len(row))))
    assert found.within(low, high) == sum(low <= device < high for device in row)
    assert all(isinstance(device, int) for device in found)
    for device in range(-5, 150):
        assert (device in found) == (device in row)
        assert found.count(device) == row.count(device)
        if device in row:
            assert found.index(device) == row.index(device)
    assert found.has(np.arange(-5, 150)).tolist() == [device in row for device in range(-5, 150)]


@given(row=rows(), part=st.slices(12))
@examples(50, 1000)
def test_parts_are_those_of_the_tuple(row: tuple[int, ...], part: slice) -> None:
    assert DeviceList.of(row)[part] == DeviceList.of(row[part])
    assert tuple(DeviceList.of(row)[part]) == row[part]


@given(one=rows(), other=rows())
@examples(75, 1500)
def test_two_lists_compare_as_their_tuples(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    a, b = DeviceList.of(one), DeviceList.of(other)
    assert (a == b) == (one == other)
    assert (a < b) == (one < other)
    assert (a > b) == (one > other)
    assert tuple(a.common(b)) == tuple(device for device in one if device in other)
    assert tuple(union((a, b))) == tuple(sorted({*one, *other}))
    assert are_disjoint((a, b)) == (len({*one, *other}) == len(one) + len(other))


@given(row=rows(), by=st.integers(0, 50))
@examples(50, 1000)
def test_equal_rows_have_one_form_and_one_hash(row: tuple[int, ...], by: int) -> None:
    found = DeviceList.of(row)
    for again in (
        DeviceList.of(np.array(row, dtype=np.int64)),
        DeviceList.of(iter(row)),
        found.shifted(by).shifted(-by),
        found[:],
    ):
        assert (again, hash(again)) == (found, hash(found))
    assert pickle.loads(pickle.dumps(found)) == found
    assert found != row


@given(first=st.integers(72, 90), levels=LEVELS)
@examples(75, 1500)
def test_a_mesh_is_what_its_devices_are(first: int, levels: list[tuple[int, int]]) -> None:
    found = DeviceList.mesh(first, levels)
    assert tuple(found) == tuple(written_out(first, levels))
    assert found == DeviceList.of(written_out(first, levels))
    assert not found.offsets


@given(
    levels=LEVELS,
    firsts=st.lists(st.integers(72, 120), min_size=1, max_size=4, unique=True),
    row=rows(),
)
@examples(50, 1000)
def test_unions_of_several_lists(
    levels: list[tuple[int, int]], firsts: list[int], row: tuple[int, ...]
) -> None:
    """Rows of one pattern, which may lie between each other, and one that is not."""
    for several in (
        [written_out(first, levels) for first in firsts],
        [*(written_out(first, levels) for first in firsts), list(row)],
    ):
        found = [DeviceList.of(one) for one in several]
        every = [device for one in several for device in one]
        assert tuple(union(found)) == tuple(sorted(set(every)))
        assert are_disjoint(found) == (len(set(every)) == len(every))


def test_lists_without_devices() -> None:
    assert (
        DeviceList.of(())
        == EMPTY
        == DeviceList.run(3, 0)
        == DeviceList.of((1, 2))[2:]
        == EMPTY.shifted(4)
        == union(())
    )
    assert are_disjoint(())
    with pytest.raises(IndexError):
        EMPTY[0]
    with pytest.raises(ValueError, match="device 3 is not in the list"):
        DeviceList.run(0, 3).index(3)


def test_a_million_devices_are_a_few_numbers() -> None:
    """Every second pair of devices: no array is made of them."""
    found = DeviceList.mesh(2, ((2**20, 4), (2, 1)))
    assert (len(found), found[-1], found[2**20]) == (2**21, 4 * 2**20 - 1, 2 + 4 * 2**19)
    assert found.within(0, 4 * 2**10) == 2**11
    assert 4 * 2**19 + 2 in found
    assert 4 * 2**19 + 1 not in found
    assert (found.levels, found.offsets) == (((2**20, 4), (2, 1)), b"")
    others = found.shifted(-2)
    assert union((found, others)) == DeviceList.run(0, 2**22)
