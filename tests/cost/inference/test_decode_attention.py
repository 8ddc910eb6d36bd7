"""Attention of sequences that decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.inference.decode_attention import decode_columns
from shardwright.hardware.catalog.serving_kernel_constants_where_unmeasured import DECODE_BANDWIDTH
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import NumberFormat
from shardwright.model.absorbed_latent_attention_sizes import LatentSizes
from shardwright.model.ir.operator import AttentionShape
from tests.cost.inference.serving_machines import (
    DEVICES,
    decode_attention,
    machine,
    slower,
    untabled,
)
from tests.tiers import examples

KV = st.sampled_from((NumberFormat.BF16, NumberFormat.FP8))
LIBRARIES = st.sampled_from(("vllm", "sglang", "trtllm", ""))
SEQUENCES = st.integers(1, 3000)
HEADS = st.sampled_from(((1, 1), (8, 1), (8, 8), (12, 2), (64, 8), (40, 40)))
FEW = examples(40)


def shape_of(dim: int = 128, **more: int) -> AttentionShape:
    return AttentionShape(heads=64, kv_heads=8, head_dim=dim, value_dim=dim, **more)


def spent(
    name: str,
    *,
    n: int,
    context: float,
    heads: tuple[int, int] = (64, 8),
    dim: int = 128,
    **more: object,
) -> float:
    given_ = {"kv": NumberFormat.BF16, "queries": 1, "library": "vllm", **more}
    shape = given_.pop("shape", shape_of(dim))
    found = decode_attention(
        machine(name),
        shape,  # type: ignore[arg-type]
        heads=heads[0],
        kv_heads=heads[1],
        sequences=np.array([n]),
        context=np.array([context]),
        **given_,  # type: ignore[arg-type]
    )
    return float(found[0])


@FEW
@given(
    name=st.sampled_from(DEVICES),
    kv=KV,
    library=LIBRARIES,
    n=SEQUENCES,
    more=SEQUENCES,
    context=st.floats(0, 2e5),
    heads=HEADS,
)
def test_never_falls_with_sequences_contexts_queries_and_heads(
    name: str,
    kv: NumberFormat,
    library: str,
    n: int,
    more: int,
    context: float,
    heads: tuple[int, int],
) -> None:
    given_ = {"kv": kv, "library": library}
    least = spent(name, n=n, context=context, heads=heads, **given_) * (1 - 1e-12)
    assert spent(name, n=n + more, context=context, heads=heads, **given_) >= least
    assert spent(name, n=n, context=context + more, heads=heads, **given_) >= least
    if (
        heads[0] > heads[1]
    ):  # one query head for each key head may run a slower kernel than several do
        assert spent(name, n=n, context=context, heads=heads, queries=2, **given_) >= least
        assert spent(name, n=n, context=context, heads=(2 * heads[0], heads[1]), **given_) >= least
    assert spent(name, n=n, context=context, heads=(2 * heads[0], 2 * heads[1]), **given_) >= least


@FEW
@given(
    name=st.sampled_from(DEVICES),
    kv=KV,
    n=SEQUENCES,
    context=st.floats(0, 2e5),
    times=st.floats(0.01, 100),
)
def test_seconds_rescale_with_the_machine(
    name: str, kv: NumberFormat, n: int, context: float, times: float
) -> None:
    def price(scale: float) -> float:
        found = decode_attention(
            slower(machine(name), scale),
            shape_of(),
            kv=kv,
            heads=64,
            kv_heads=8,
            sequences=np.array([n]),
            context=np.array([context]),
        )
        return float(found[0])

    assert price(times) == pytest.approx(times * price(1.0), rel=1e-12)


def test_half_the_bytes_at_half_the_bandwidth_take_as_long() -> None:
    """Where bytes bound the formula."""
    fast, slow = untabled(machine("h200-sxm")), slower(untabled(machine("h200-sxm")), 2.0)
    for kv, one in ((NumberFormat.BF16, fast), (NumberFormat.FP8, slow)):
        _, slope = decode_columns(
            one, shape_of(), kv=kv, heads=8, kv_heads=8, sequences=np.array([16])
        )
        assert slope[0] == pytest.approx(8 * 256 * 2.0 / DECODE_BANDWIDTH / 4.8e12)


@pytest.mark.parametrize("name", DEVICES)
def test_limits(name: str) -> None:
    """No sequence takes nothing, no context a start of a few launches, a long one what reading its
    keys takes, a window no more."""
    assert spent(name, n=0, context=0.0) == 0.0
    assert 3e-6 < spent(name, n=1, context=0.0) < 4e-5
    long = spent(name, n=64, context=131072.0)
    reading = 64 * 131072 * 8 * 256 * 2.0 / machine(name).accelerator.memory_bandwidth
    assert 0.8 * reading < long < 1.5 * reading
    windowed = shape_of(window=1024)
    assert spent(name, n=64, context=131072.0, shape=windowed) == spent(name, n=64, context=1024.0)
    chosen = shape_of(selected=2048)
    assert spent(name, n=64, context=131072.0, shape=chosen) == spent(name, n=64, context=2048.0)


def test_absorbed_latents_are_bound_by_products_on_hopper() -> None:
    """128 heads on one key of 576: 242 FLOPs a byte, where the device has 206 at peak; 16 heads
    read faster than they multiply."""
    shape = LatentSizes(heads=128, width=512, rope=64).core()
    assert (shape.head_dim, shape.value_dim, shape.kv_heads) == (576, 512, 1)
    one = machine("h200-sxm")
    slopes = []
    for heads in (16, 128):
        _, slope = decode_columns(
            one, shape, kv=NumberFormat.BF16, heads=heads, kv_heads=1, sequences=np.array([64])
        )
        slopes.append(float(slope[0]) * one.accelerator.memory_bandwidth / (576 * 2))
    assert 1.0 < slopes[0] < 1.4
    assert 242 / 206 < slopes[1] < 2.5


def test_an_engine_takes_its_own_kernels() -> None:
    spent_by = {
        library: spent("h200-sxm", n=1, context=512.0, library=library)
        for library in ("sglang", "vllm", "trtllm", "")
    }
    assert len({spent_by[library] for library in ("sglang", "vllm", "trtllm")}) == 3
    assert spent_by[""] == spent_by["sglang"]


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "b200-sxm"])
def test_one_long_sequence_is_read_from_memory(name: str) -> None:
    """Rows of one sequence never leave the device's cache; an engine's keys do."""
    for shape, heads, elements in (
        (shape_of(), (64, 8), 2048),
        (LatentSizes(heads=16, width=512, rope=64).core(), (16, 1), 576),
    ):
        reading = 65536 * elements * 2.0 / machine(name).accelerator.memory_bandwidth
        assert (
            0.9 * reading
            < spent(name, n=1, context=65536.0, shape=shape, heads=heads)
            < 3.0 * reading + 2e-5
        )


def test_guesses_beyond_the_measured_rows_multiply_on() -> None:
    """128 heads and 1 guess are 256 rows of a latent, where 128 were measured: bound by products,
    they take twice as long."""
    shape = LatentSizes(heads=128, width=512, rope=64).core()
    slopes = [
        float(
            decode_columns(
                machine("h200-sxm"),
                shape,
                kv=NumberFormat.BF16,
                heads=128,
                kv_heads=1,
                sequences=np.array([64]),
                queries=q,
            )[1][0]
        )
        for q in (1, 2, 4)
    ]
    assert slopes[1] / slopes[0] == pytest.approx(2.0, rel=0.15)
    assert slopes[2] / slopes[1] == pytest.approx(2.0, rel=1e-9)
