"""Description of a serving engine's version: scheduler, cache, graph and kernel settings.

The serving simulator reads these switches, enumerations and sizes; each has a link to its source.
None of the numbers is fitted.
"""

from __future__ import annotations

from enum import StrEnum

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.framework_description import Fact, Options
from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceRange,
    BackendChoice,
    Captures,
    Estimate,
    Reserve,
    SizeRow,
)


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

    `engine_defaults_on_device.engine_on_device` adds the settings that depend on a device.

    Args:
        batching, admission, eviction: see `Batching`, `Admission` and `Eviction`.
        token_budget: most tokens of an iteration (of a prefill chunk, if prefill runs alone); 0 =
            by the device's memory (`sizes`).
        max_sequences: most requests that run at once; 0 = by the device.
        guessing_sequences: most requests with draft tokens where no option sets them; 0 = as many.
        stage_sequences: max_sequences is the limit of each iteration in flight, of which there are
            as many as pipeline stages. Iterations fill equally, so the sum is limited, not each
            one.
        tuned_sizes: the engine's benchmark tool chooses token budget and requests, by memory and
            mean lengths, where no option sets them.
        prompt_tokens: most prompt tokens of an iteration after its first prompt; 0 = no such limit.
        context_tokens: most tokens of a prompt and its answer together; 0 = the model's limit.
        sizes: settings by the device's memory.
        shared_budget: token_budget and max_sequences are those of all attention data-parallel ranks
            together.
        chunked_prefill: a prompt may be split over iterations.
        mixes_decode: PREFILL_FIRST runs decode in one batch with a prefill chunk.
        estimate: rule for the tokens that running requests will need (ESTIMATED); None = no rule.
        conservative: factor on the estimate.
        knows_ends: where answers have a fixed length and prefixes are not shared, admission uses
            the blocks freed at each end instead of the estimate.
        wait_iterations, wait_share: prompts wait until they fill that share of the budget, at most
            that many iterations; 0 = no wait.
        balance_iterations: with attention dp, prompts wait until every rank has one, at most that
            many iterations; 0 = no wait. Both waits are simulated for IN_FLIGHT alone
            (`serving.policy.tensorrt_llm_prompt_delay`).
        block_tokens: tokens of a KV cache block.
        prefix_cache: blocks of equal prefixes are kept and shared.
        kv_format: number format of keys and values; auto = that of the model's activations, or that
            of the checkpoint if `kv_from_checkpoint`.
        memory_rule: see `MemoryRule`.
        memory_fraction: the share of that rule; 0 = by `reserve`.
        graphs_in_share: the memory of CUDA graphs is measured and subtracted too.
        reserve: rule for the memory beside weights and cache.
        logit_bytes: most bytes held for each logit of a dry run while tokens are sampled.
        graphs: decode runs as CUDA graphs.
        full_graphs: these include the attention cores; else graphs are the pieces between them.
        captured: batch sizes of the graphs, rising; empty = by `captures`.
        captured_requests: the sizes count requests, each with all its draft tokens, not tokens.
        captures: rule for the sizes.
        pads: a batch is padded to the next size; False = only batches of exactly a captured size
            replay.
        largest_captured: largest size; 0 = by the device, or by `captures`.
        piecewise: graphs between the attention cores replay iterations with prompts too.
        piecewise_captures: rule for their own sizes, in tokens, where they have any;
        piecewise_captured: their sizes where an option sets them.
        piecewise_tokens: their largest size, 0 = that of decode, or the chunk where they have their
            own sizes;
        piecewise_latent_tokens: their largest size for models with latent attention.
        piecewise_alone: they are off with draft tokens, attention dp, pipeline stages or an
            exchange between experts, even if an option sets them.
        asynchronous: the host prepares the next iteration while the device runs;
        asynchronous_guesses: with speculative decoding too.
        stages_wait: not with pipeline stages: a rank waits for its device before it continues.
        polling: decode iterations between two checks for new requests, 1 = every iteration;
            iterations with prompts always check.
        stream_interval: tokens between two responses to the client.
        sums: ranges of the engine's all-reduce algorithms; the first range that covers an
            all-reduce counts.
        fused_all_reduce: the fused ranges of `sums` are on;
        fused_architectures: model architectures with fused all-reduces, empty = all;
        fused_generations: device generations with them, empty = all; never with attention dp.
        custom_all_reduce_bytes: largest buffer of the engine's own one- and two-shot all-reduces, 0
            = by `sums`.
        multimem: the ranges of `sums` that reduce in the NVLink switch are on.
        symmetric: the library's all-reduces run on symmetric buffers.
        attention_dp: attention may be data parallel.
        expert_parallel: experts may be distributed over ranks.
        exchange: see `ExpertExchange`;
        rack_exchange: the exchange where NVLink joins nodes and no option sets one.
        attention_kernel, expert_kernel: names of the backends, in small letters; empty = by
            `attention_choices`, `expert_choices`.
        kernel_blocks: block sizes that an attention kernel accepts; another `block_tokens` becomes
            the last of them.
        absorbed_prefill: latent attention is absorbed in prompts too.
        expanded_tokens: tokens of cached context that are expanded at once to keys and values of
            all heads; 0 = all.
        absorbed_below: number of cached tokens below which a prompt's next chunk is absorbed
            instead.
        guesses: draft tokens of multi-token prediction (MTP) where no option sets them: 0.
        multi_token: the engine can draft with MTP.
        facts: a source link for every field.
        settings: options of the engine.
        options: (option, value) of the options that are set.
        base: the engine's name without options.
        asked: the requested version, where this described version stands in for it.
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
        """True if the memory fraction is of memory free after loading, for the KV cache alone."""
        return self.memory_rule is MemoryRule.FREE

    def __hash__(self) -> int:
        # Cheap and lawful: equal engines have equal names.
        return hash((self.name, self.version))
