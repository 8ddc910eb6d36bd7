"""Description of a serving engine's version: scheduler, cache, graph and kernel settings.

The serving simulator reads these switches, enumerations and sizes; each has a link to its source.
None of the numbers is fitted.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.automatic_settings import (
    AllReduceRange,
    BackendChoice,
    Captures,
    Estimate,
    Reserve,
    SizeRow,
)
from shardwright.runtime.runtime import Fact, Options


class Batching(StrEnum):
    """Composition of an iteration's batch from prompts and decoding requests.

    MIXED: a token of each running request first, then parts of waiting prompts up to the token
    budget, in one batch. PREFILL_FIRST: prompts alone, as long as any can be admitted, else a token
    of each running request. IN_FLIGHT: both in one batch, prompts in whole or in chunks, as a
    capacity scheduler admits them.
    """

    MIXED = "mixed"
    PREFILL_FIRST = "prefill-first"
    IN_FLIGHT = "in-flight"


class Admission(StrEnum):
    """Condition under which the scheduler admits a waiting request.

    CHUNK: blocks for the tokens that it computes in this iteration are free. ESTIMATED: the cache
    holds its prompt, its longest answer and the expected needs of running requests
    (`Engine.estimate`). WHOLE: blocks for its prompt and its longest answer are free beside those
    that running requests may still need. PROMPT: blocks for its prompt are free.
    """

    CHUNK = "chunk"
    ESTIMATED = "estimated"
    WHOLE = "whole"
    PROMPT = "prompt"


class Eviction(StrEnum):
    """Treatment of running requests where the KV cache is full.

    PREEMPT: the request that came last loses its blocks and is computed anew. RETRACT: those with
    the fewest tokens generated go back to the queue. RESERVE: no request is admitted whose longest
    answer might not fit. PAUSE: a request waits, with its blocks freed, until others end.
    """

    PREEMPT = "preempt"
    RETRACT = "retract"
    RESERVE = "reserve"
    PAUSE = "pause"


class MemoryRule(StrEnum):
    """Memory of which `Engine.memory_fraction` is a share.

    TOTAL: of the device's memory, for weights, the allocations of a dry run of `token_budget`
    tokens, and the cache; graphs lie outside, unless `graphs_in_share`. STATIC: of the memory that
    was free before loading, for weights and cache alone: activations and graphs live in the rest.
    FREE: of the memory that is free after weights and the peak of a dry run of `token_budget`
    tokens, for the cache alone.
    """

    TOTAL = "total"
    STATIC = "static"
    FREE = "free"


class ExpertExchange(StrEnum):
    """Transport of tokens to their experts under data parallel attention.

    GATHERED: all tokens to all ranks, and their sums back (all-gather, reduce-scatter). ALL_TO_ALL:
    a collective of the library. DEEPEP: a copy a device or node, with kernels for throughput in
    prefill and for latency in decode. ONE_SIDED: the engine's own kernels over NVLink.
    """

    GATHERED = "all-gather"
    ALL_TO_ALL = "all-to-all"
    DEEPEP = "deepep"
    ONE_SIDED = "one-sided"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingWord:
    """A word that an engine's option accepts, and the fields of `Engine` that it changes."""

    word: str
    values: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """An option of the vocabulary as one engine has it: its flag and the field it sets.

    Args:
        option: name in the vocabulary (`engine_options.OPTIONS`).
        flag: the flag that sets the option in a launch script.
        link, checked: as in `Fact`.
        field: field of `Engine` that a number, share or list is written to; empty where the option
            is one of `words`.
    """

    option: str
    flag: str
    link: str
    checked: bool
    field: str = ""
    words: tuple[SettingWord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A serving engine's version with its default settings.

    `engine_on_device.engine_on_device` adds those that depend on a device.

    Args:
        batching, admission, eviction: see there.
        token_budget: most tokens of an iteration (of a chunk of prompts, where they run alone); 0 =
            by the device's memory (`sizes`).
        max_sequences: most requests that run at once; 0 = by the device.
        guessing_sequences: most where tokens are guessed ahead and none is set, 0 = as many.
        stage_sequences: max_sequences are those of each iteration under way, of which there are as
            many as stages; they fill alike, so that all together are limited, not each.
        tuned_sizes: budget and requests are what the engine's own benchmark chooses by memory and
            mean lengths, where none is set.
        prompt_tokens: most tokens of prompts in an iteration, beyond a first one; 0 = no such
            limit.
        context_tokens: longest prompt and answer together that is accepted; 0 = the model's.
        sizes: what is set by the device's memory.
        shared_budget: token_budget and max_sequences are those of all ranks with attention of their
            own together.
        chunked_prefill: a prompt may be cut over iterations.
        mixes_decode: PREFILL_FIRST runs decode beside a chunk.
        estimate: of what running requests will need (ESTIMATED); None = not made.
        conservative: factor on it.
        knows_ends: where answers have a fixed length and prefixes are not shared, admission follows
            what is freed at each end instead.
        wait_iterations, wait_share: prompts wait until they fill that share of the budget, at most
            so many iterations; 0 = they do not.
        balance_iterations: with attention dp, prompts wait until every rank has one, at most so
            many iterations; 0 = they do not. Both are simulated for IN_FLIGHT alone
            (`serving.policy.prompt_delay`).
        block_tokens: of a block of the cache.
        prefix_cache: blocks of equal prefixes are kept and shared.
        kv_format: of keys and values; auto = the model's activations', or what its checkpoint says
            if `kv_from_checkpoint`.
        memory_rule: see there.
        memory_fraction: that share; 0 = by `reserve`.
        graphs_in_share: graphs are measured and taken off too.
        reserve: what is kept free of weights and cache.
        logit_bytes: held at most of each logit of a dry run while tokens are chosen.
        graphs: whether decode is captured at all.
        full_graphs: with its attention cores; else pieces between them.
        captured: batch sizes that graphs replay, rising; empty = by `captures`.
        captured_requests: they count requests, each with all its guesses, not tokens.
        captures: how sizes are laid.
        pads: a batch is padded to the next size; False = only batches of just that size replay.
        largest_captured: 0 = by the device, or by `captures`.
        piecewise: graphs between the attention cores replay iterations with prompts in them too.
        piecewise_captures: their own sizes, in tokens, where they have any;
        piecewise_captured: those that are set.
        piecewise_tokens: their largest, 0 = that of decode, or the chunk where they have their own;
        piecewise_latent_tokens: that of models with latent attention.
        piecewise_alone: not with guesses, ranks with attention of their own, stages or an exchange
            between experts, whatever is set.
        asynchronous: the host prepares the next iteration while the device runs;
        asynchronous_guesses: with speculative decoding too.
        stages_wait: with pipeline stages it does not: a rank waits for its device before it goes
            on.
        polling: iterations of decode between two looks at new requests, 1 = every one; those with
            prompts always look.
        stream_interval: tokens between two answers to the client.
        sums: how ranks add up, the first that takes a sum first.
        fused_all_reduce: those of `sums` that are fused are on;
        fused_architectures: for models whose code has it, empty = all;
        fused_generations: on devices, empty = all; never for ranks with attention of their own.
        custom_all_reduce_bytes: largest buffer that the engine's own one- and two-shot sums take, 0
            = by `sums`.
        multimem: those of `sums` that the switch adds are on.
        symmetric: the library's sums run on symmetric buffers.
        attention_dp: ranks may have attention of their own.
        expert_parallel: experts may be spread.
        exchange: see there;
        rack_exchange: where NVLink joins nodes and nothing is set.
        attention_kernel, expert_kernel: names of the backends, in small letters; empty = by
            `attention_choices`, `expert_choices`.
        kernel_blocks: blocks of the cache that an attention kernel takes; another `block_tokens`
            becomes the last of them.
        absorbed_prefill: latent attention is absorbed in prompts too.
        expanded_tokens: of cached context, expanded at once to keys and values of all heads; 0 =
            all.
        absorbed_below: cached tokens under which a prompt's next chunk is absorbed instead.
        guesses: tokens guessed ahead (MTP) where nothing is set: 0.
        multi_token: it can.
        facts: a link for every field.
        settings: options that it has.
        options: those that are set.
        base: the name without options.
        asked: the version that was asked for, where this one only answers for it.
    """

    name: str
    engine: str
    version: str
    released: str = ""
    batching: Batching
    admission: Admission
    eviction: Eviction
    token_budget: int = 0
    max_sequences: int = 0
    guessing_sequences: int = 0
    stage_sequences: bool = False
    tuned_sizes: bool = False
    prompt_tokens: int = 0
    context_tokens: int = 0
    sizes: tuple[SizeRow, ...] = ()
    shared_budget: bool = False
    chunked_prefill: bool
    mixes_decode: bool = False
    estimate: Estimate | None = None
    conservative: float = 1.0
    knows_ends: bool = False
    wait_iterations: int = 0
    wait_share: float = 0.0
    balance_iterations: int = 0
    block_tokens: int
    prefix_cache: bool
    kv_format: str = "auto"
    kv_from_checkpoint: bool = False
    memory_rule: MemoryRule
    memory_fraction: float
    graphs_in_share: bool = False
    reserve: Reserve | None = None
    logit_bytes: int = 6
    graphs: bool = True
    full_graphs: bool = True
    captured: tuple[int, ...] = ()
    captured_requests: bool = False
    captures: Captures
    pads: bool = True
    largest_captured: int = 0
    piecewise: bool = False
    piecewise_captures: Captures | None = None
    piecewise_captured: tuple[int, ...] = ()
    piecewise_tokens: int = 0
    piecewise_latent_tokens: int = 0
    piecewise_alone: bool = False
    asynchronous: bool
    asynchronous_guesses: bool = False
    stages_wait: bool = False
    polling: int = 1
    stream_interval: int = 1
    sums: tuple[AllReduceRange, ...] = ()
    fused_all_reduce: bool = False
    fused_architectures: tuple[str, ...] = ()
    fused_generations: tuple[int, ...] = ()
    custom_all_reduce_bytes: int = 0
    multimem: bool = False
    symmetric: bool = False
    attention_dp: bool = False
    expert_parallel: bool = False
    exchange: ExpertExchange = ExpertExchange.GATHERED
    rack_exchange: ExpertExchange = ExpertExchange.GATHERED
    attention_kernel: str = ""
    attention_choices: tuple[BackendChoice, ...] = ()
    kernel_blocks: tuple[tuple[str, tuple[int, ...]], ...] = ()
    expert_kernel: str = ""
    expert_choices: tuple[BackendChoice, ...] = ()
    absorbed_prefill: bool = False
    expanded_tokens: int = 0
    absorbed_below: int = 0
    guesses: int = 0
    multi_token: bool = False
    facts: tuple[Fact, ...] = ()
    settings: tuple[EngineSetting, ...] = ()
    options: Options = ()
    base: str = ""
    asked: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def of_free(self) -> bool:
        """True if the memory fraction is a share of the free memory, for the cache alone."""
        return self.memory_rule is MemoryRule.FREE

    def __hash__(self) -> int:
        # Cheap and lawful: equal engines have equal names.
        return hash((self.name, self.version))
