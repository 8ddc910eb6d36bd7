"""Settings of a serving engine that follow from the device, the parallel degrees and the model."""

from __future__ import annotations

from dataclasses import replace

from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.serving_engines.default_rules_by_device import (
    AllReduceKind,
    BackendChoice,
    Estimate,
    first_matching_backend,
    reserved_bytes,
    row_largest_captured,
    size_row,
    unreserved_share,
)
from shardwright.runtime.serving_engines.serving_engine import Engine, ExpertExchange


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSite:
    """Device, parallel degrees and model for which an engine chooses its settings.

    Args:
        memory_bytes: memory of the device as its driver reports it.
        generation: major number of its compute capability (9 Hopper, 10 Blackwell).
        tp, pp: degrees of a worker.
        dpa: data parallel degree of attention.
        draft_tokens: draft tokens of each iteration.
        latent: the model's attention is latent.
        spread: the model's experts are spread over devices.
        rack: NVLink joins the worker's nodes.
        architecture: the model's name in a Hugging Face config.
        weights: number format of the model's matrix multiplications (bf16, fp8, nvfp4, mxfp4,
            int4).
    """

    memory_bytes: float
    generation: int
    tp: int = 1
    pp: int = 1
    dpa: int = 1
    draft_tokens: int = 0
    latent: bool = False
    spread: bool = False
    rack: bool = False
    architecture: str = ""
    weights: str = ""


def engine_on_device(engine: Engine, site: EngineSite) -> Engine:
    """Fill an engine's unset settings with its defaults for a device, degrees and model.

    These are the token budget, sequences, captured sizes, memory share, all-reduce kernels and
    kernel backends.

    Values that a user set stay. `token_budget` and `max_sequences` are then those of one rank with
    data parallel attention, and `captured` counts tokens: a size that counts requests stands for
    (draft tokens + 1) tokens each.
    """
    row = size_row(engine.sizes, memory_bytes=site.memory_bytes, generation=site.generation)
    budget = engine.token_budget or (row.token_budget if row else 0)
    guessing = engine.guessing_sequences if site.draft_tokens else 0
    sequences = engine.max_sequences or guessing or (row.max_sequences if row else 0)
    # An engine whose ranks share a budget counts them all in its tp.
    tp = site.tp * (site.dpa if engine.shared_budget else 1)
    largest = _largest_captured(
        engine,
        site,
        row_largest=row_largest_captured(row, tp=tp),
        sequences=sequences,
        budget=budget,
    )
    pieces = _piece_sizes(engine, site, chunk=budget)
    ranks = site.dpa if engine.shared_budget else 1
    attention = engine.attention_kernel or _first_backend(engine.attention_choices, site)
    return replace(
        engine,
        token_budget=max(1, budget // ranks),
        max_sequences=max(1, sequences // ranks),
        memory_fraction=engine.memory_fraction
        or _memory_share(engine, site, chunk=budget, largest=largest, pieces=len(pieces)),
        captured=_captured_sizes(engine, site, largest=largest, sequences=sequences // ranks),
        largest_captured=largest,
        piecewise=_is_piecewise(engine, site),
        piecewise_tokens=pieces[-1] if pieces else 0,
        estimate=_scaled_estimate(engine, site),
        exchange=_expert_exchange(engine, site),
        polling=1 if site.dpa > 1 else engine.polling,
        asynchronous=engine.asynchronous
        and (engine.asynchronous_guesses or site.draft_tokens == 0)
        and not (engine.stages_wait and site.pp > 1),
        fused_all_reduce=_is_fused(engine, site),
        custom_all_reduce_bytes=engine.custom_all_reduce_bytes
        or _custom_all_reduce_limit(engine, site),
        block_tokens=_block_tokens(engine, attention),
        attention_kernel=attention,
        expert_kernel=engine.expert_kernel or _first_backend(engine.expert_choices, site),
        guesses=site.draft_tokens,
    )


def _first_backend(choices: tuple[BackendChoice, ...], site: EngineSite) -> str:
    """Name of the first kernel backend whose conditions the site meets; empty if none."""
    return first_matching_backend(
        choices,
        generation=site.generation,
        latent=site.latent,
        spread=site.spread,
        weights=site.weights,
        architecture=site.architecture,
    )


def _scaled_estimate(engine: Engine, site: EngineSite) -> Estimate | None:
    """Estimate rule of running requests' needs, with this site's factors; None without a rule."""
    rule = engine.estimate
    return rule and rule.times(engine.conservative * (rule.shared if site.dpa > 1 else 1.0))


def _expert_exchange(engine: Engine, site: EngineSite) -> ExpertExchange:
    """Token exchange between experts: the rack's where NVLink joins nodes and no option is set."""
    return (
        engine.rack_exchange
        if site.rack and "exchange" not in dict(engine.options)
        else engine.exchange
    )


def _block_tokens(engine: Engine, attention: str) -> int:
    """Tokens of a KV cache block: the engine's size, or the last that the kernel accepts."""
    sizes = dict(engine.kernel_blocks).get(attention, ())
    return sizes[-1] if sizes and engine.block_tokens not in sizes else engine.block_tokens


def _largest_captured(
    engine: Engine, site: EngineSite, *, row_largest: int, sequences: int, budget: int
) -> int:
    """Largest batch with a captured graph, in requests or tokens as the engine counts; 0 = none."""
    if not engine.graphs:
        return 0
    if engine.captured:
        return max(engine.captured)
    rule = engine.captures
    largest = engine.largest_captured or row_largest or rule.largest
    if not engine.largest_captured and rule.a_sequence:
        tokens = 1 if engine.captured_requests else site.draft_tokens + 1
        largest = min(largest, rule.a_sequence * sequences * (tokens if rule.guessed else 1))
    return largest if engine.captured_requests else min(largest, budget)


def _captured_sizes(
    engine: Engine, site: EngineSite, *, largest: int, sequences: int
) -> tuple[int, ...]:
    """Captured graph sizes in tokens: set by the user, or the engine's rule, up to `largest`.

    Of sizes that are set, those of more requests than may run are left out; where batches are
    padded and `ends` holds, the most that may run stands for them.
    """
    if largest == 0:
        return ()
    sizes = engine.captured or engine.captures.sizes(largest, guessing=site.draft_tokens > 0)
    if engine.captured and engine.captured_requests and 0 < sequences < sizes[-1]:
        sizes = tuple(size for size in sizes if size <= sequences)
        sizes += (sequences,) if engine.pads and engine.captures.ends else ()
    tokens = site.draft_tokens + 1 if engine.captured_requests else 1
    return tuple(sorted({size * tokens for size in sizes if size <= largest}))


def _is_piecewise(engine: Engine, site: EngineSite) -> bool:
    """True if the engine captures pieces between attention cores, so that prompts replay graphs."""
    plain = (
        site.draft_tokens == 0
        and site.dpa == 1
        and site.pp == 1
        and engine.exchange is ExpertExchange.GATHERED
    )
    return engine.graphs and engine.piecewise and (plain or not engine.piecewise_alone)


def _piece_sizes(engine: Engine, site: EngineSite, *, chunk: int) -> tuple[int, ...]:
    """Token counts of captured prompt pieces; empty if none or if decode graphs' sizes serve."""
    if engine.piecewise_captures is None or not _is_piecewise(engine, site):
        return ()
    if engine.piecewise_captured:
        return engine.piecewise_captured
    latent = engine.piecewise_latent_tokens if site.latent else 0
    return engine.piecewise_captures.sizes(engine.piecewise_tokens or latent or chunk)


def _memory_share(
    engine: Engine, site: EngineSite, *, chunk: int, largest: int, pieces: int
) -> float:
    """Share of the device's memory for weights and cache by the reserve rule; 0.0 without one."""
    if engine.reserve is None:
        return 0.0
    reserved = reserved_bytes(
        engine.reserve,
        memory_bytes=site.memory_bytes,
        chunk=chunk,
        largest_captured=largest,
        devices=site.tp * site.dpa * site.pp,
        ranks=site.dpa,
        pieces=pieces,
        latent=site.latent,
        guessing=site.draft_tokens > 0,
    )
    return unreserved_share(engine.reserve, memory_bytes=site.memory_bytes, reserved=reserved)


def _is_fused(engine: Engine, site: EngineSite) -> bool:
    """True if all-reduces are fused with the norm on this site."""
    fits = not engine.fused_architectures or site.architecture in engine.fused_architectures
    device_fits = not engine.fused_generations or site.generation in engine.fused_generations
    return engine.fused_all_reduce and fits and device_fits and site.tp > 1 and site.dpa == 1


def _custom_all_reduce_limit(engine: Engine, site: EngineSite) -> int:
    """Largest buffer in bytes that the engine's own one- and two-shot all-reduces take; else 0."""
    custom_kinds = (AllReduceKind.ONE_SHOT, AllReduceKind.TWO_SHOT)
    limits = [
        limit
        for limit in engine.sums
        if limit.kind in custom_kinds
        and not limit.fused
        and limit.ranks in (0, site.tp)
        and limit.generation in (0, site.generation)
    ]
    return max((limit.most_bytes for limit in limits), default=0)
