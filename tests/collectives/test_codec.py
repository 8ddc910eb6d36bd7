"""Wire dtypes and codecs."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.collectives.codec import allowed_codecs, block_quantised, cast, codecs_for, identity, wire_volume
from shardwright.dtype import Dtype
from shardwright.errors import ShardwrightError, UsageError


def test_identity_leaves_the_volume() -> None:
    for dtype in Dtype:
        assert wire_volume(1000.0, codec=identity(dtype)) == 1000.0
        assert cast(dtype, wire=dtype) == identity(dtype)


@pytest.mark.parametrize(
    ("source", "wire", "ratio", "lossless"),
    [
        (Dtype.FP32, Dtype.BF16, 0.5, False),
        (Dtype.FP32, Dtype.FP16, 0.5, False),
        (Dtype.BF16, Dtype.FP8, 0.5, False),
        (Dtype.BF16, Dtype.FP16, 1.0, False),
        (Dtype.FP16, Dtype.BF16, 1.0, False),
        (Dtype.BF16, Dtype.FP32, 2.0, True),
        (Dtype.FP8, Dtype.BF16, 2.0, True),
        (Dtype.FP8, Dtype.FP16, 2.0, True),
    ],
)
def test_casts(source: Dtype, wire: Dtype, ratio: float, lossless: bool) -> None:
    codec = cast(source, wire=wire)
    assert codec.ratio == ratio
    assert codec.lossless is lossless


def test_a_lossless_cast_brings_back_every_half_precision_number() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    finite = every[np.isfinite(every)]
    assert cast(Dtype.FP16, wire=Dtype.FP32).lossless
    np.testing.assert_array_equal(finite.astype(np.float32).astype(np.float16), finite)


def test_block_quantised_counts_its_scales() -> None:
    codec = block_quantised(Dtype.BF16, bits=8, block=128, scale_bits=32)
    elements = 128 * 1000
    assert wire_volume(2.0 * elements, codec=codec) == elements + 1000 * 4
    assert not codec.lossless


def test_volumes_may_be_arrays() -> None:
    np.testing.assert_array_equal(wire_volume(np.array([4.0, 8.0]), codec=cast(Dtype.FP32, wire=Dtype.BF16)), [2.0, 4.0])


def test_lossy_codecs_need_leave() -> None:
    assert allowed_codecs(Dtype.BF16) == (identity(Dtype.BF16),)
    assert [c.name for c in allowed_codecs(Dtype.BF16, allowed=("fp8-cast",))] == ["identity", "fp8-cast"]
    for dtype in Dtype:
        assert all(codec.lossless for codec in allowed_codecs(dtype))
        lossy = tuple(codec.name for codec in codecs_for(dtype) if not codec.lossless)
        assert allowed_codecs(dtype, allowed=lossy) == codecs_for(dtype)
        assert all(codec.ratio <= 1.0 for codec in codecs_for(dtype))


def test_an_unknown_codec_names_the_near_one() -> None:
    with pytest.raises(UsageError, match="did you mean fp8-cast"):
        allowed_codecs(Dtype.BF16, allowed=("fp8cast",))


@given(st.lists(st.text()), st.sampled_from(Dtype), st.integers(), st.integers(), st.integers())
def test_bad_input_stays_inside_the_error_tree(names: list[str], dtype: Dtype, bits: int, block: int, scale: int) -> None:
    with contextlib.suppress(ShardwrightError):
        allowed_codecs(dtype, allowed=names)
    with contextlib.suppress(ShardwrightError):
        assert block_quantised(dtype, bits=bits, block=block, scale_bits=scale).ratio > 0
