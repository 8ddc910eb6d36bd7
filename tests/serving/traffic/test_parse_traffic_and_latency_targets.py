"""Words of traffic and precision: what they mean, and refusals in one line with a hint."""

from collections.abc import Callable

import pytest

from shardwright.errors import UsageError
from shardwright.job.serving_arrivals_lengths_formats_and_objectives import (
    ClosedLoop,
    Diurnal,
    NumberFormat,
    OperatorPrecision,
    Poisson,
    Precision,
    Promise,
    SharedPrefix,
    Speculation,
    TokenRange,
)
from shardwright.serving.traffic.parse_traffic_and_latency_targets import (
    closed_loop,
    read_arrivals,
    read_precision,
    read_prefix,
    read_promise,
    read_speculation,
    read_tokens,
)

FP8 = OperatorPrecision(weights=NumberFormat.FP8, activations=NumberFormat.FP8)
UNPACKED = OperatorPrecision(weights=NumberFormat.MXFP4, activations=NumberFormat.BF16)


def tokens(text: str) -> TokenRange:
    return read_tokens(text, flag="--isl")


def arrivals(text: str) -> object:
    return read_arrivals(text, requests=100)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (tokens, "1024", TokenRange(low=1024, high=1024)),
        (tokens, "8k", TokenRange(low=8192, high=8192)),
        (tokens, "819-1,024", TokenRange(low=819, high=1024)),
        (arrivals, "poisson:12/s", Poisson(per_second=12.0, requests=100)),
        (arrivals, "poisson:600/min", Poisson(per_second=10.0, requests=100)),
        (
            arrivals,
            "diurnal:2/s,50%,24h",
            Diurnal(per_second=2.0, swing=0.5, period_s=86400.0, requests=100),
        ),
        (read_promise, "ttft=500ms,tpot=30ms", Promise(ttft_s=0.5, tpot_s=0.03)),
        (read_promise, "e2e=1min,share=90%", Promise(e2e_s=60.0, share=0.9)),
        (read_prefix, "2000x4", SharedPrefix(groups=4, tokens=2000)),
        (read_precision, "bf16", Precision()),
        (read_precision, "fp8", Precision(attention=FP8, mlp=FP8, experts=FP8)),
        (read_precision, "experts=mxfp4 kv=fp8", Precision(experts=UNPACKED, kv=NumberFormat.FP8)),
        (
            read_precision,
            "experts=mxfp4/fp8",
            Precision(
                experts=OperatorPrecision(weights=NumberFormat.MXFP4, activations=NumberFormat.FP8)
            ),
        ),
    ],
)
def test_meanings(read: Callable[[str], object], text: str, expected: object) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (tokens, "", "1 to 300 characters"),
        (tokens, "0", "'0' is not a number of tokens"),
        (tokens, "1e3", "'1e3' is not a number of tokens"),
        (tokens, "1024-819", "ends before it begins"),
        (arrivals, "poisson", "is no rate of requests"),
        (arrivals, "poisson:12", "'12' is no rate of requests"),
        (arrivals, "poisson:nan/s", "is no rate of requests"),
        (arrivals, "diurnal:1/s,2,24h", "'2' is not between 0 and 1"),
        (arrivals, "bursty:3/s", "is not known"),
        (read_promise, "ttft=500", "'500' is no time above 0 with a unit"),
        (read_promise, "ttft=-1ms", "no time above 0"),
        (read_promise, "ttft=1s,ttft=2s", "'ttft' is said twice"),
        (read_promise, "latency=1s", "'latency' is not known"),
        (read_promise, "share=0.9", "promises no time"),
        (read_promise, "ttft=1s,share=0", "a share of 0 promises nothing"),
        (read_prefix, "2000", "is not TOKENSxTEXTS"),
        (read_precision, "fp7", "'fp7' is no number format"),
        (read_precision, "expert=fp8", "'expert' is no class of products"),
        (read_precision, "experts=fp8/int3", "'int3' is no number format"),
    ],
)
def test_refusals(read: Callable[[str], object], text: str, message: str) -> None:
    with pytest.raises(UsageError, match="hint") as refused:
        read(text)
    assert message in str(refused.value)


def test_guesses_and_their_acceptance_go_together() -> None:
    assert read_speculation(0, "") is None
    assert read_speculation(2, "0.7") == Speculation(tokens=2, acceptance=0.7)
    assert Speculation(tokens=2, acceptance=0.7).mean_tokens == pytest.approx(2.19)
    for guesses, acceptance in ((0, "0.7"), (1, ""), (1, "1.5")):
        with pytest.raises(UsageError, match="hint"):
            read_speculation(guesses, acceptance)


def test_a_closed_loop_has_ten_requests_for_each_in_flight() -> None:
    assert closed_loop(64, requests=0) == ClosedLoop(concurrency=64, requests=640)
    assert closed_loop(64, requests=5) == ClosedLoop(concurrency=64, requests=64)
    with pytest.raises(UsageError, match="out of range"):
        closed_loop(0, requests=0)
