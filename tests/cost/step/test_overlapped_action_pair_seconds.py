"""Two actions that run overlapped: what one hides of the other, and what communication takes from
kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.cost.step.overlapped_action_pair_seconds import (
    CommunicationShare,
    Spent,
    communication_share,
    pair_seconds,
    pair_share,
)
from tests.search.problems import real_problem
from tests.tiers import examples

PARTS = st.tuples(*(st.floats(0.0, 4.0) for _ in range(3)))
TAKEN = st.builds(CommunicationShare, share=st.floats(0.0, 0.5), reserved=st.booleans())


def spent(products: float, others: float, moved: float) -> Spent:
    return np.array(products + others + moved), np.array(moved), np.array(products)


@examples(70, 1000)
@given(one=PARTS, other=PARTS, taken=TAKEN)
def test_a_pair_is_no_longer_than_its_actions_and_no_shorter_than_what_it_needs(
    one: tuple[float, float, float], other: tuple[float, float, float], taken: CommunicationShare
) -> None:
    a, b = spent(*one), spent(*other)
    together = float(pair_seconds(a, b, taken))
    assert together <= float(a[0] + b[0]) + 1e-12
    assert (
        together
        >= max(float(a[0]), float(b[0]), one[2] + other[2], sum(one[:2]) + sum(other[:2])) - 1e-12
    )
    assert float(pair_share(a, b, taken) + pair_share(b, a, taken)) == pytest.approx(together)
    assert (
        together
        <= float(
            pair_seconds(
                a, b, CommunicationShare(share=min(taken.share + 0.1, 0.6), reserved=taken.reserved)
            )
        )
        + 1e-12
    )


@pytest.mark.parametrize(
    ("one", "other", "reserved", "seconds"),
    [
        # Kernels lose a quarter of the device for the 2 s of communication, or products of 6 s take
        # 8 beside it.
        ((3, 1, 1), (3, 1, 1), False, 8 + 0.5),
        ((3, 1, 1), (3, 1, 1), True, 8 + 2),
        # More is lost to a reservation than communication takes alone: one after the other.
        ((3, 1, 0.5), (3, 1, 0.5), True, 8 + 1),
        # Communication outlasts the kernels.
        ((1, 0, 4), (1, 0, 4), False, 8),
        # One alone has more than both together.
        ((4, 0, 4), (0, 0, 0), False, 8),
        ((2, 2, 0), (2, 2, 0), True, 8),
    ],
)
def test_by_hand(
    one: tuple[float, float, float],
    other: tuple[float, float, float],
    reserved: bool,
    seconds: float,
) -> None:
    assert float(
        pair_seconds(spent(*one), spent(*other), CommunicationShare(share=0.25, reserved=reserved))
    ) == pytest.approx(seconds)


def test_the_runtime_says_what_is_reserved() -> None:
    def taken(runtime: str) -> CommunicationShare:
        return communication_share(
            real_problem(
                "llama-3.2-1b", "h800-sxm:8", seq_len=2048, global_batch=8, runtime=runtime
            )
        )

    assert taken("deepseek-v3") == CommunicationShare(share=20 / 132, reserved=True)
    assert taken("deepseek-v3 dispatch_sms=6") == CommunicationShare(share=6 / 132, reserved=True)
    assert taken("megatron-core-0.12") == CommunicationShare(share=20 / 132, reserved=False)
