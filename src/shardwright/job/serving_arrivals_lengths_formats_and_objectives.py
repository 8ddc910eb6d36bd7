"""A serving job: lengths and arrivals of requests, number formats, shared prefixes and SLO."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRange:
    """Numbers of tokens that are equally likely, from `low` to `high`."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"tokens from {self.low} to {self.high}")

    @property
    def mean(self) -> float:
        """Mean number of tokens, (low + high) / 2."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a request's prompt (`inputs`) and output (`outputs`), drawn independently."""

    inputs: TokenRange
    outputs: TokenRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Arrivals in a closed loop: `concurrency` requests in flight, each replaced when it ends.

    Args:
        requests: number of requests of the run.
        burst: the first `concurrency` requests arrive together; False = they are spread over the
            mean time of a request.
    """

    concurrency: int
    requests: int
    burst: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Poisson arrivals, `per_second` requests a second on average."""

    per_second: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """Poisson arrivals whose rate swings as a sine around `per_second`.

    The rate is from (1 - swing) to (1 + swing) times `per_second`, with the period `period_s`, and
    begins at its mean.
    """

    per_second: float
    swing: float
    period_s: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Logged requests to replay, with arrival times and token counts, in the order of arrival.

    Args:
        arrival_s: (n,) seconds after the first arrival.
        inputs, outputs: (n,) tokens.
        blocks: (n,) hashes of the prompt's blocks of `block_tokens` tokens; equal hashes mean equal
            tokens up to the end of the block; empty = no sharing is known.
        source: file name or description of the origin.
    """

    arrival_s: FloatArray
    inputs: IntArray
    outputs: IntArray
    blocks: tuple[tuple[int, ...], ...] = ()
    block_tokens: int = 0
    source: str = ""


Arrivals: TypeAlias = ClosedLoop | Poisson | Diurnal | Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """Prompts that begin with one of `groups` shared texts (system prompts) of `tokens` tokens.

    Each text is equally likely.
    """

    groups: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Service level objective: latency limits in seconds and the share of requests within them.

    None = no limit.

    Args:
        ttft_s: to the first token.
        tpot_s: for each output token after the first, as the mean of a request.
        e2e_s: to the last token.
        share: share of requests that must keep the limits.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = 0.99


class NumberFormat(StrEnum):
    """Stored number formats, with the scales that groups of numbers share."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"
    INT4_GROUP_32 = "int4-group32"
    MXFP4 = "mxfp4"
    NVFP4 = "nvfp4"

    @property
    def bytes(self) -> float:
        """Bytes of an element, with its share of the scales (FP8 and INT8 scales are left out).

        MXFP4: 4 bits and an 8-bit scale for 32; NVFP4: 4 bits and an 8-bit scale for 16; INT4: 4
        bits and a 16-bit scale for 128 (AWQ, GPTQ), so 0.531, 0.5625 and 0.516; for 32 (Kimi K2
        Thinking, K2.5) 0.5625. FP8 and INT8: scales of 128 x 128 blocks or of channels, left out.
        """
        return _BYTES[self]


_BYTES = {
    NumberFormat.FP32: 4.0,
    NumberFormat.BF16: 2.0,
    NumberFormat.FP16: 2.0,
    NumberFormat.FP8: 1.0,
    NumberFormat.INT8: 1.0,
    NumberFormat.INT4: 0.5 + 2 / 128,
    NumberFormat.INT4_GROUP_32: 0.5 + 2 / 32,
    NumberFormat.MXFP4: 0.5 + 1 / 32,
    NumberFormat.NVFP4: 0.5 + 1 / 16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPrecision:
    """Number formats of one class of GEMMs: stored weights, and activations when multiplied."""

    weights: NumberFormat = NumberFormat.BF16
    activations: NumberFormat = NumberFormat.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Number formats of a served model by operator class, and of the KV cache.

    Args:
        attention: projections of attention.
        output: output projection of attention, where it differs; None = as `attention`.
        mlp: dense feed-forward layers and shared experts.
        experts: routed experts.
        head: output head; the embedding has the same format.
        kv: KV cache.
    """

    attention: OperatorPrecision = OperatorPrecision()
    output: OperatorPrecision | None = None
    mlp: OperatorPrecision = OperatorPrecision()
    experts: OperatorPrecision = OperatorPrecision()
    head: OperatorPrecision = OperatorPrecision()
    kv: NumberFormat = NumberFormat.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Speculative decoding: draft tokens that are verified together.

    Args:
        tokens: draft tokens of each iteration, from the model's multi-token prediction modules.
        acceptance: probability that a draft token is accepted, given that those before it were.
    """

    tokens: int
    acceptance: float

    @property
    def mean_tokens(self) -> float:
        """Mean tokens that an iteration yields: 1 + a + a^2 + ... + a^tokens.

        Two draft tokens at an acceptance of 0.7 yield 1 + 0.7 + 0.49 = 2.19.
        """
        return sum(self.acceptance**i for i in range(self.tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJob:
    """A serving workload: arrivals, lengths, number formats, prefixes, SLO and speculation.

    Args:
        lengths: None where the arrivals are a trace, which has lengths of its own.
        expert_skew: tokens of the device with the busiest experts over the mean, >= 1.
        seed: random seed for lengths and arrivals.
    """

    arrivals: Arrivals
    lengths: Lengths | None = None
    precision: Precision = Precision()
    prefix: SharedPrefix | None = None
    promise: Promise = Promise()
    speculation: Speculation | None = None
    expert_skew: float = 1.0
    seed: int = 0
