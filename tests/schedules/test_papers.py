"""Bubbles of the named schedules against the closed forms of their papers, for every size up to a
limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.schedules.action_order_arrays import ActionTable
from shardwright.schedules.schedule_registry import schedule
from tests.schedules.longest_path import Run, run
from tests.tiers import examples

UNIT = {"F": 1, "I": 1, "W": 1}
MANY = examples(40, 500)
ranks_ = st.integers(1, 9)
microbatches_ = st.integers(1, 24)
time_ = st.integers(1, 9)


def table(name: str, ranks: int, chunks: int, microbatches: int, **parameters: int) -> ActionTable:
    return schedule(name).table(
        num_ranks=ranks, chunks_per_rank=chunks, num_microbatches=microbatches, **parameters
    )


def walk(
    name: str, ranks: int, chunks: int, microbatches: int, times: dict[str, int], **parameters: int
) -> Run:
    return run(table(name, ranks, chunks, microbatches, **parameters), times=times)


@given(ranks=ranks_, microbatches=microbatches_, forward=time_, backward=time_)
@MANY
def test_eager_has_the_bubble_of_1f1b(
    ranks: int, microbatches: int, forward: int, backward: int
) -> None:
    result = walk("eager-1f1b", ranks, 1, microbatches, {"F": forward, "I": backward, "W": 0})
    assert result.makespan == (microbatches + ranks - 1) * (forward + backward)


@given(
    ranks=ranks_, microbatches=microbatches_, forward=time_, backward=time_, share=st.integers(0, 8)
)
@MANY
def test_eager_hides_transfers(
    ranks: int, microbatches: int, forward: int, backward: int, share: int
) -> None:
    """A transfer of up to half a period costs its way down and up once; 1F1B is never faster
    (Zhuang et al. 2022, section 4)."""
    transfer = share * (forward + backward) // 16
    times = {"F": forward, "I": backward, "W": 0}
    eager = run(
        table("eager-1f1b", ranks, 1, microbatches), times=times, transfer=transfer
    ).makespan
    assert eager == (microbatches + ranks - 1) * (forward + backward) + 2 * (ranks - 1) * transfer
    assert (
        run(table("1f1b", ranks, 1, microbatches), times=times, transfer=transfer).makespan >= eager
    )


def test_1f1b_pays_for_transfers_in_every_period() -> None:
    """Two ranks wait two transfers a microbatch: what eager 1F1B is for."""
    times = {"F": 2, "I": 2, "W": 0}
    assert run(table("1f1b", 2, 1, 40), times=times, transfer=1).makespan >= 40 * 4 + 40
    assert run(table("eager-1f1b", 2, 1, 40), times=times, transfer=1).makespan == 41 * 4 + 2


@pytest.mark.parametrize("name", ["breadth-first", "looped-bfs"])
@given(
    ranks=ranks_,
    chunks=st.integers(1, 4),
    microbatches=microbatches_,
    forward=time_,
    backward=time_,
)
@MANY
def test_breadth_first(
    name: str, ranks: int, chunks: int, microbatches: int, forward: int, backward: int
) -> None:
    """Bubble (p - 1)(f + b) of a chunk, (p - 1)/v of a rank's share, for m >= p (Lamy-Poirier 2022,
    section 3)."""
    result = walk(name, ranks, chunks, microbatches, {"F": forward, "I": backward, "W": 0})
    steps = max(ranks, microbatches) * chunks + min(ranks, microbatches) - 1
    assert result.makespan == steps * (forward + backward)


@pytest.mark.parametrize("name", ["terapipe", "seq-1f1b"])
@given(
    ranks=ranks_,
    microbatches=st.integers(1, 8),
    slices=st.integers(1, 5),
    forward=time_,
    backward=time_,
)
@MANY
def test_slices(
    name: str, ranks: int, microbatches: int, slices: int, forward: int, backward: int
) -> None:
    """Bubble (p - 1)(f + b) of one slice (Li et al. 2021, section 3;
    Sun et al. 2024, section 3)."""
    result = walk(
        name, ranks, 1, microbatches, {"F": forward, "I": backward, "W": 0}, slices=slices
    )
    assert result.makespan == (microbatches * slices + ranks - 1) * (forward + backward)


def test_slices_by_hand() -> None:
    """The last rank of two on two sequences of two slices: backwards from the last slice."""
    found = table("seq-1f1b", 2, 1, 2, slices=2)
    row = slice(int(found.row_start[1]), int(found.row_start[2]))
    told = [
        "FIWBR"[k] + f"{m}.{s}"
        for k, m, s in zip(found.kind[row], found.microbatch[row], found.slice[row], strict=True)
    ]
    assert told == ["F0.0", "F0.1", "B0.1", "F1.0", "B0.0", "F1.1", "B1.1", "B1.0"]


@pytest.mark.parametrize("ranks", range(1, 10))
def test_zb_h1(ranks: int) -> None:
    """Bubble (p - 1)(F + I - W) (Qi et al. 2023, section 2.1, table 1), for m >= p and W no longer
    than F and I."""
    for microbatches in range(ranks, 3 * ranks + 2):
        for forward, inputs, weights in ((1, 1, 1), (3, 3, 3), (3, 3, 2), (5, 5, 1)):
            result = walk(
                "zb-h1", ranks, 1, microbatches, {"F": forward, "I": inputs, "W": weights}
            )
            work = microbatches * (forward + inputs + weights)
            assert result.makespan == work + (ranks - 1) * (forward + inputs - weights)


@pytest.mark.parametrize("ranks", range(1, 10))
def test_zb_h2(ranks: int) -> None:
    """No rank waits inside its row (Qi et al. 2023, section 2.2): (p - 1)(F + I - 2 W) = 0; starts
    and ends are one F apart."""
    for microbatches in range(2 * ranks - 1, 4 * ranks):
        result = walk("zb-h2", ranks, 1, microbatches, UNIT)
        assert result.idle == [0] * ranks
        assert result.makespan == 3 * microbatches + ranks - 1


@pytest.mark.parametrize("ranks", range(1, 10))
def test_zb_v(ranks: int) -> None:
    """No rank waits inside its row; peak of p microbatches (Qi et al. 2023, section 6)."""
    for microbatches in range(2 * ranks - 1, 4 * ranks):
        result = walk("zb-v", ranks, 2, microbatches, UNIT)
        assert result.idle == [0] * ranks
        assert result.first == list(range(ranks))


@pytest.mark.parametrize("ranks", range(1, 17))
def test_v_half_and_v_min(ranks: int) -> None:
    """Memory (p + 2) // 2 and (p + 4) // 3 microbatches (Qi et al. 2024, table 1), and our bubbles
    beside the paper's ratios."""
    for microbatches in (2 * ranks, 2 * ranks + 5):
        half, least = (walk(name, ranks, 2, microbatches, UNIT) for name in ("v-half", "v-min"))
        assert max(half.held) == 2 * ((ranks + 2) // 2)
        assert max(least.held) == 2 * ((ranks + 4) // 3)
        if ranks > 1:
            assert 2 * (half.makespan - 6 * microbatches) == 7 * ranks - (9 if ranks % 2 else 6)
            assert least.makespan - 6 * microbatches == 4 * ranks - (5 if ranks % 3 else 4)
            assert least.makespan - 6 * microbatches <= 2 / 3 * 6 * (ranks - 1)


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10])
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 4, 3)])
def test_dualpipe(ranks: int, times: tuple[int, int, int]) -> None:
    """Bubble (p/2 - 1)(F&B + B - 3 W) (DeepSeek-AI 2024, table 2), for pairs as long as their
    parts."""
    forward, inputs, weights = times
    for microbatches in (ranks, ranks + 1, 2 * ranks, 2 * ranks + 5):
        result = walk("dualpipe", ranks, 1, microbatches, dict(zip("FIW", times, strict=True)))
        whole = inputs + weights
        bubble = (ranks // 2 - 1) * (forward + whole + whole - 3 * weights)
        assert result.makespan == 2 * microbatches * (forward + whole) + bubble


@pytest.mark.parametrize("ranks", range(1, 8))
@pytest.mark.parametrize("times", [(1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 4, 3)])
def test_dualpipe_v(ranks: int, times: tuple[int, int, int]) -> None:
    """The same with 2 p stages on p ranks: bubble (p - 1)(F&B + B - 3 W)."""
    forward, inputs, weights = times
    for microbatches in (2 * ranks, 2 * ranks + 1, 3 * ranks + 4):
        result = walk("dualpipe-v", ranks, 2, microbatches, dict(zip("FIW", times, strict=True)))
        whole = inputs + weights
        assert result.makespan == 2 * microbatches * (forward + whole) + (ranks - 1) * (
            forward + 2 * whole - 3 * weights
        )


def test_overlapped_pairs_shorten_dualpipe() -> None:
    """A pair that takes less than its parts saves in every period of the main phase."""
    found = table("dualpipe", 4, 1, 20)
    assert found.overlapped is not None
    apart = run(found, times=UNIT).makespan
    together = run(found, times=UNIT, pair=lambda a, b: max(a, b)).makespan
    assert together <= apart - min(
        int(found.overlapped[a:b].sum())
        for a, b in zip(found.row_start, found.row_start[1:], strict=False)
    )


@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 10])
def test_chimera(ranks: int) -> None:
    """2 N + p - 2 slots for N microbatches of both lanes when F = B (Li and Hoefler 2021, section
    3.1)."""
    for units in (1, 2, 3):
        microbatches = units * ranks // 2
        result = walk("chimera", ranks, 1, microbatches, {"F": 1, "I": 1, "W": 0})
        assert result.makespan == 2 * 2 * microbatches + ranks - 2
        assert min(result.held) == ranks // 2 + 1
        assert max(result.held) == ranks


def test_chimera_by_hand() -> None:
    """Four ranks, two microbatches a lane: 10 slots with B = F, 16 with B = 2 F."""
    assert walk("chimera", 4, 1, 2, {"F": 1, "I": 1, "W": 0}).makespan == 10
    assert walk("chimera", 4, 1, 2, {"F": 1, "I": 2, "W": 0}).makespan == 16


@given(ranks=ranks_, microbatches=st.integers(1, 9), forward=time_, longer=st.integers(0, 9))
@MANY
def test_gems(ranks: int, microbatches: int, forward: int, longer: int) -> None:
    """N p B + (N + p - 1) F; one microbatch alive (Jain et al. 2020;
    Li and Hoefler 2021, table 2)."""
    result = walk("gems", ranks, 1, microbatches, {"F": forward, "I": forward + longer, "W": 0})
    both = 2 * microbatches
    assert result.makespan == both * ranks * (forward + longer) + (both + ranks - 1) * forward
    assert result.held == [1] * ranks


@pytest.mark.parametrize("ranks", range(1, 13))
def test_hanayo(ranks: int) -> None:
    """One wave and p microbatches wait 4 (p - 1) slots of F = 1, B = 2; with W waves the share of
    waiting falls."""
    bubbles = []
    for waves in (1, 2, 4):
        result = walk("hanayo", ranks, 2 * waves, ranks, UNIT)
        work = 6 * waves * ranks
        bubbles.append((result.makespan - work) / result.makespan)
        assert max(result.held) <= 2 * waves * ranks
    assert bubbles[0] == 4 * (ranks - 1) / (6 * ranks + 4 * (ranks - 1))
    assert bubbles == sorted(bubbles, reverse=True)
