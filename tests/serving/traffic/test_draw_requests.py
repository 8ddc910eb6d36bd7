from __future__ import annotations

import numpy as np
import pytest

from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Diurnal,
    Poisson,
    ServingJob,
    SharedPrefix,
    Trace,
)
from shardwright.serving.traffic.draw_requests import draw_requests
from tests.serving.random_runs import lengths


def test_closed_loop_bursts() -> None:
    job = ServingJob(
        arrivals=ClosedLoop(concurrency=8, requests=1000),
        lengths=lengths((800, 1000), (80, 100)),
        seed=1,
    )
    requests = draw_requests(job, block_tokens=16)
    assert requests.concurrency == 8
    assert not requests.arrival_s.any()
    assert (requests.inputs.min(), requests.inputs.max()) == (800, 1000)
    assert requests.outputs.mean() == pytest.approx(90, abs=1)
    again = draw_requests(job, block_tokens=16)
    assert np.array_equal(requests.inputs, again.inputs)


def test_closed_loop_without_a_burst() -> None:
    loop = ClosedLoop(concurrency=4, requests=10, burst=False)
    requests = draw_requests(
        ServingJob(arrivals=loop, lengths=lengths((1, 1), (1, 1))), block_tokens=1, answer_s=2.0
    )
    assert requests.arrival_s[:4].tolist() == [0.0, 0.5, 1.0, 1.5]


def test_poisson_is_scaled_by_its_rate() -> None:
    """The same stream, faster."""

    def arrivals(rate: float) -> np.ndarray:
        job = ServingJob(
            arrivals=Poisson(per_second=rate, requests=20_000),
            lengths=lengths((1, 9), (1, 9)),
            seed=4,
        )
        return draw_requests(job, block_tokens=1).arrival_s

    slow, fast = arrivals(2.0), arrivals(8.0)
    np.testing.assert_allclose(slow, 4 * fast)
    assert slow[-1] / 19_999 == pytest.approx(0.5, rel=0.03)
    gaps = np.diff(slow)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)


def test_diurnal_swings_about_its_mean() -> None:
    arrivals = Diurnal(per_second=50.0, swing=0.8, period_s=100.0, requests=50_000)
    times = draw_requests(
        ServingJob(arrivals=arrivals, lengths=lengths((1, 9), (1, 9)), seed=2), block_tokens=1
    ).arrival_s
    assert np.all(np.diff(times) >= 0)
    assert len(times) == 50_000
    phase = times[times < 900] % 100.0
    high, low = ((phase > 15) & (phase < 35)).sum(), ((phase > 65) & (phase < 85)).sum()
    # The mean of the sine over a fifth of the period around its top is 0.935.
    assert high / low == pytest.approx((1 + 0.8 * 0.9355) / (1 - 0.8 * 0.9355), rel=0.1)


def test_prefixes_are_shared_in_blocks() -> None:
    job = ServingJob(
        arrivals=Poisson(per_second=1.0, requests=200),
        lengths=lengths((20, 400), (1, 1)),
        prefix=SharedPrefix(groups=3, tokens=100),
    )
    requests = draw_requests(job, block_tokens=16)
    counts = np.diff(requests.block_offsets)
    assert np.array_equal(counts, np.minimum(requests.inputs // 16, 6))
    assert set(requests.blocks.tolist()) <= set(range(18))
    firsts = requests.blocks[requests.block_offsets[:-1][counts > 0]]
    assert set(firsts.tolist()) == {0, 6, 12}


def test_a_trace_keeps_what_was_logged() -> None:
    trace = Trace(
        arrival_s=np.array([5.0, 6.0, 8.5]),
        inputs=np.array([1100, 1024, 20]),
        outputs=np.array([3, 4, 5]),
        blocks=((46, 47, 48), (46, 49), (7,)),
        block_tokens=512,
    )
    requests = draw_requests(ServingJob(arrivals=trace), block_tokens=16)
    assert requests.arrival_s.tolist() == [0.0, 1.0, 3.5]
    assert requests.block_tokens == 512
    # The last block of a prompt is full only if its tokens are.
    assert np.diff(requests.block_offsets).tolist() == [2, 2, 0]
    assert requests.blocks[0] == requests.blocks[2]
    assert requests.blocks[1] != requests.blocks[3]
    apart = draw_requests(ServingJob(arrivals=trace), block_tokens=48)
    assert len(apart.blocks) == 0
    assert apart.block_tokens == 48


def test_lengths_are_needed() -> None:
    with pytest.raises(ValueError, match="lengths"):
        draw_requests(ServingJob(arrivals=Poisson(per_second=1.0, requests=2)), block_tokens=1)
