"""Array types for annotations, and set operations on arrays of integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
Int32Array = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Int8Array = npt.NDArray[np.int8]
RecordArray = npt.NDArray[np.void]
_N = TypeVar("_N", bound=np.generic)


def as_int_array(sequence: Sequence[int]) -> IntArray:
    """Convert a sequence of integers to an int64 array; a range without a list between."""
    if isinstance(sequence, range):
        return np.arange(sequence.start, sequence.stop, sequence.step, dtype=np.int64)
    return np.asarray(sequence, dtype=np.int64)


def distinct(values: npt.NDArray[_N]) -> npt.NDArray[_N]:
    """Distinct values of an array, sorted.

    `numpy.unique`, which hashes, takes three times as long for arrays of thousands.
    """
    if is_increasing(values):
        return values
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    result: npt.NDArray[_N] = ordered[first]
    return result


def is_increasing(values: npt.NDArray[_N]) -> bool:
    """True if a one-dimensional array is strictly increasing."""
    return values.ndim == 1 and bool(np.greater(values[1:], values[:-1]).all())


def split_by(values: IntArray, numbers: IntArray) -> list[IntArray]:
    """Split `values` by their group number in `numbers`; groups in order of first appearance."""
    _, first, place = np.unique(numbers, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[place.reshape(-1)]
    order = np.argsort(place, kind="stable")
    return np.split(values[order], np.flatnonzero(np.diff(place[order])) + 1)


def distinct_rows(rows: npt.NDArray[_N]) -> npt.NDArray[_N]:
    """Array of the distinct rows, sorted by their columns from left to right.

    Rows of whole numbers of a small range are compared as one number each, in a tenth of the time.
    `numpy.unique` imports masked arrays where it is asked for no indices; this function does not.
    """
    if rows.dtype == np.int64 and rows.ndim == 2 and rows.size:
        low = rows.min(axis=0)
        sizes = [int(size) + 1 for size in rows.max(axis=0).astype(object) - low]
        if prod(sizes) < 2**63:
            numbers = np.zeros(len(rows), dtype=np.int64)
            for column, least, size in zip(rows.T, low, sizes, strict=True):
                numbers = numbers * size + (column - least)
            numbers = distinct(numbers)
            found = np.empty((len(numbers), len(sizes)), dtype=rows.dtype)
            for place in reversed(range(len(sizes))):
                numbers, digit = np.divmod(numbers, sizes[place])
                found[:, place] = digit + low[place]
            return found
    result: npt.NDArray[_N] = np.unique(rows, axis=0, return_index=True)[0]
    return result


def membership_mask(numbers: IntArray, size: int) -> BoolArray:
    """Boolean array of length `size`: true at each index that is in `numbers`."""
    found = np.zeros(size, dtype=np.bool_)
    found[numbers] = True
    return found


def numbered_rows(rows: IntArray) -> IntArray:
    """Number each row from 0 in order of first appearance; equal rows have equal numbers.

    `numpy.unique`, which sorts rows field by field, takes ten times as long.
    """
    count, width = rows.shape
    if not width:
        return np.zeros(count, dtype=np.int64)
    bytes_of, each, numbers = rows.tobytes(), width * rows.itemsize, dict[bytes, int]()
    return np.array(
        [
            numbers.setdefault(bytes_of[at : at + each], len(numbers))
            for at in range(0, count * each, each)
        ],
        dtype=np.int64,
    )
