"""What is to be served: lengths and arrivals of requests, number formats, shared prefixes, and what
is promised of the answers.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRange:
    """Numbers of tokens that are equally likely, from `low` to `high`; one where they are equal."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise ValueError(f"tokens from {self.low} to {self.high}")

    @property
    def mean(self) -> float:
        """Of all of them."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of a request's prompt (`inputs`) and of its answer (`outputs`, the first token among
    them), drawn apart.
    """

    inputs: TokenRange
    outputs: TokenRange


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """As many requests are in flight as `concurrency` says: all of those at once at the start, and
    another as soon as one is done.

    Args:
        requests: in all.
        burst: the first `concurrency` arrive together; False = one after another over the mean time
            of an answer.
    """

    concurrency: int
    requests: int
    burst: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Requests arrive independently of one another, `per_second` in the mean."""

    per_second: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A Poisson stream whose rate swings as a sine over `period_s`, from (1 - swing) to (1 + swing)
    times `per_second`; it begins at its mean.
    """

    per_second: float
    swing: float
    period_s: float
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Requests as somebody logged them, in the order of arrival.

    Args:
        arrival_s: (n,) from the first one's.
        inputs, outputs: (n,) tokens.
        blocks: (n,) of hashes of the prompt's blocks of `block_tokens` tokens, equal where all
            tokens up to there are; empty = nothing is known to be shared.
        source: file name or words that say where it is from.
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
    """Prompts begin with one of `groups` texts of `tokens` tokens (a system prompt), each as
    likely.
    """

    groups: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is promised of requests (an SLO): seconds at most, and of which share of them; None =
    nothing.

    Args:
        ttft_s: to the first token.
        tpot_s: of each further token in the mean of a request.
        e2e_s: to the last.
        share: of the requests.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    share: float = 0.99


class NumberFormat(StrEnum):
    """How numbers are stored: with the scales that groups of them share."""

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
        """Bytes an element, its share of the scales among them.

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
    """Formats of one class of products: how `weights` are stored, and in what they are multiplied
    (`activations`: what the tokens are cast to).
    """

    weights: NumberFormat = NumberFormat.BF16
    activations: NumberFormat = NumberFormat.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Formats by class of operators, and of keys and values.

    Args:
        attention: projections around the core.
        output: the last of them, behind the core, where it differs; None = as `attention`.
        mlp: dense feed-forward and shared experts.
        experts: routed ones.
        head: logits; the embedding is stored alike.
        kv: what is cached.
    """

    attention: OperatorPrecision = OperatorPrecision()
    output: OperatorPrecision | None = None
    mlp: OperatorPrecision = OperatorPrecision()
    experts: OperatorPrecision = OperatorPrecision()
    head: OperatorPrecision = OperatorPrecision()
    kv: NumberFormat = NumberFormat.BF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Tokens are guessed ahead and verified together.

    Args:
        tokens: guessed in each iteration by the model's own further-token modules (MTP).
        acceptance: share of guesses that are right, given that all before them are.
    """

    tokens: int
    acceptance: float

    @property
    def mean_tokens(self) -> float:
        """Tokens that an iteration yields in the mean: 1 + a + a^2 + ... + a^tokens; 2 guesses at
        0.7 yield 1 + 0.7 + 0.49 = 2.19.
        """
        return sum(self.acceptance**i for i in range(self.tokens + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJob:
    """Traffic to serve.

    Args:
        lengths: None where the arrivals are a trace, which has its own.
        expert_skew: tokens of the device with the busiest experts over the mean, >= 1.
        seed: of all that is drawn.
    """

    arrivals: Arrivals
    lengths: Lengths | None = None
    precision: Precision = Precision()
    prefix: SharedPrefix | None = None
    promise: Promise = Promise()
    speculation: Speculation | None = None
    expert_skew: float = 1.0
    seed: int = 0
