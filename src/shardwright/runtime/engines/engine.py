"""What a serving engine and version does, with its options: booleans, enumerations and sizes, each with a link. No fitted number."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from shardwright.runtime.runtime import Fact, Options


class Batching(StrEnum):
    """What an iteration is filled with.

    MIXED: a token of each running request first, then parts of waiting prompts up to the token budget, in one batch. PREFILL_FIRST: prompts
    alone, as long as any can be admitted, else a token of each running request. IN_FLIGHT: both in one batch, prompts in whole or in
    chunks,
    as a capacity scheduler admits them.
    """

    MIXED = "mixed"
    PREFILL_FIRST = "prefill-first"
    IN_FLIGHT = "in-flight"


class Eviction(StrEnum):
    """What happens where the cache is full.

    PREEMPT: the request that came last loses its blocks and is computed anew. RETRACT: those with the fewest tokens generated go back to
    the queue.
    RESERVE: nobody is admitted whose longest answer might not fit.
    """

    PREEMPT = "preempt"
    RETRACT = "retract"
    RESERVE = "reserve"


class ExpertExchange(StrEnum):
    """How tokens of ranks with attention of their own reach their experts.

    GATHERED: all tokens to all ranks, and their sums back (all-gather, reduce-scatter). ALL_TO_ALL: a collective of the library. DEEPEP: a
    copy a device or node, kernels for throughput in prefill and for latency in decode. ONE_SIDED: the engine's own kernels over NVLink.
    """

    GATHERED = "all-gather"
    ALL_TO_ALL = "all-to-all"
    DEEPEP = "deepep"
    ONE_SIDED = "one-sided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine's version.

    Args:
        batching: see there. token_budget: most tokens of an iteration (a chunk of prompts at most, where they run alone). max_sequences:
            most
            requests that run at once. chunked_prefill: a prompt may be cut over iterations. mixes_decode: PREFILL_FIRST runs decode beside
            a chunk.
        eviction: see there. block_tokens: of a block of the cache. prefix_cache: blocks of equal prefixes are kept and shared.
        memory_fraction: share of the device's memory for all; of_free: of what is free after weights are loaded, for the cache alone.
        captured: batch sizes (tokens) that captured graphs replay, rising; a batch is padded to the next one. piecewise: graphs between the
            attention cores replay iterations with prompts in them too, up to the largest size.
        asynchronous: the host prepares the next iteration while the device runs. polling: iterations between two looks at new requests;
            1 = every one. stream_interval: tokens between two answers to the client.
        fused_all_reduce: the sum over ranks, the residual and the norm behind it are one kernel. custom_all_reduce_bytes: largest buffer
            that
            the engine's own one- and two-shot sums take; 0 = the library's only. multimem: sums inside the switch.
        exchange: of experts. attention_kernel, expert_kernel: names of the backends. absorbed_prefill: latent attention is absorbed in
            prompts too.
    """

    name: str
    engine: str
    version: str
    released: str = ""
    batching: Batching
    token_budget: int
    max_sequences: int
    chunked_prefill: bool
    mixes_decode: bool = False
    eviction: Eviction
    block_tokens: int
    prefix_cache: bool
    memory_fraction: float
    of_free: bool = False
    captured: tuple[int, ...]
    piecewise: bool = False
    asynchronous: bool
    polling: int = 1
    stream_interval: int = 1
    fused_all_reduce: bool = False
    custom_all_reduce_bytes: int = 0
    multimem: bool = False
    exchange: ExpertExchange = ExpertExchange.GATHERED
    attention_kernel: str = ""
    expert_kernel: str = ""
    absorbed_prefill: bool = False
    facts: tuple[Fact, ...] = ()
    options: Options = ()
