"""An engine on a device: every number that it sets by itself, set."""

from __future__ import annotations

from dataclasses import replace

from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.engine import Engine, ExpertExchange
from shardwright.runtime.engines.rules import (
    Choice,
    Estimate,
    Kind,
    choice,
    largest_of,
    reserved_bytes,
    share,
    size_row,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where an engine runs.

    Args:
        memory_bytes: of the device, all of it, as its driver reports.
        generation: major number of its compute capability (9 Hopper, 10 Blackwell).
        tp, pp: degrees of a worker.
        dpa: its ranks with attention of their own.
        guesses: tokens guessed ahead.
        latent: the model's attention is latent.
        spread: its experts are spread over devices.
        rack: NVLink joins the worker's nodes.
        architecture: the model's name in a Hugging Face config.
        weights: number format of its products (bf16, fp8, nvfp4, mxfp4, int4).
    """

    memory_bytes: float
    generation: int
    tp: int = 1
    pp: int = 1
    dpa: int = 1
    guesses: int = 0
    latent: bool = False
    spread: bool = False
    rack: bool = False
    architecture: str = ""
    weights: str = ""


def on_device(engine: Engine, site: Site) -> Engine:
    """`engine` with what it sets by the device, its ranks and the model: budget, sequences,
    captured sizes, memory share, sums, kernels.

    What a user set stays. `token_budget` and `max_sequences` are then those of one rank with
    attention of its own, and `captured` counts tokens: sizes that count requests stand for (guesses
    + 1) tokens each.
    """
    row = size_row(engine.sizes, memory_bytes=site.memory_bytes, generation=site.generation)
    budget = engine.token_budget or (row.token_budget if row else 0)
    guessing = engine.guessing_sequences if site.guesses else 0
    sequences = engine.max_sequences or guessing or (row.max_sequences if row else 0)
    # An engine whose ranks share a budget counts them all in its tp.
    tp = site.tp * (site.dpa if engine.shared_budget else 1)
    largest = _largest(
        engine, site, row_largest=largest_of(row, tp=tp), sequences=sequences, budget=budget
    )
    pieces = _pieces(engine, site, chunk=budget)
    ranks = site.dpa if engine.shared_budget else 1
    attention = engine.attention_kernel or _kernel(engine.attention_choices, site)
    return replace(
        engine,
        token_budget=max(1, budget // ranks),
        max_sequences=max(1, sequences // ranks),
        memory_fraction=engine.memory_fraction
        or _share(engine, site, chunk=budget, largest=largest, pieces=len(pieces)),
        captured=_captured(engine, site, largest=largest, sequences=sequences // ranks),
        largest_captured=largest,
        piecewise=_is_piecewise(engine, site),
        piecewise_tokens=pieces[-1] if pieces else 0,
        estimate=_estimate(engine, site),
        exchange=_exchange(engine, site),
        polling=1 if site.dpa > 1 else engine.polling,
        asynchronous=engine.asynchronous
        and (engine.asynchronous_guesses or site.guesses == 0)
        and not (engine.stages_wait and site.pp > 1),
        fused_all_reduce=_is_fused(engine, site),
        custom_all_reduce_bytes=engine.custom_all_reduce_bytes or _own_sum_bytes(engine, site),
        block_tokens=_block(engine, attention),
        attention_kernel=attention,
        expert_kernel=engine.expert_kernel or _kernel(engine.expert_choices, site),
        guesses=site.guesses,
    )


def _kernel(choices: tuple[Choice, ...], site: Site) -> str:
    return choice(
        choices,
        generation=site.generation,
        latent=site.latent,
        spread=site.spread,
        weights=site.weights,
        architecture=site.architecture,
    )


def _estimate(engine: Engine, site: Site) -> Estimate | None:
    """What running requests are expected to need, with the factors that hold here."""
    rule = engine.estimate
    return rule and rule.times(engine.conservative * (rule.shared if site.dpa > 1 else 1.0))


def _exchange(engine: Engine, site: Site) -> ExpertExchange:
    return (
        engine.rack_exchange
        if site.rack and "exchange" not in dict(engine.options)
        else engine.exchange
    )


def _block(engine: Engine, attention: str) -> int:
    """Tokens of a block that the attention kernel takes."""
    taken = dict(engine.kernel_blocks).get(attention, ())
    return taken[-1] if taken and engine.block_tokens not in taken else engine.block_tokens


def _largest(engine: Engine, site: Site, *, row_largest: int, sequences: int, budget: int) -> int:
    """The largest captured size, in the engine's own unit; 0 = nothing is captured."""
    if not engine.graphs:
        return 0
    if engine.captured:
        return max(engine.captured)
    rule = engine.captures
    largest = engine.largest_captured or row_largest or rule.largest
    if not engine.largest_captured and rule.a_sequence:
        tokens = 1 if engine.captured_requests else site.guesses + 1
        largest = min(largest, rule.a_sequence * sequences * (tokens if rule.guessed else 1))
    return largest if engine.captured_requests else min(largest, budget)


def _captured(engine: Engine, site: Site, *, largest: int, sequences: int) -> tuple[int, ...]:
    """Sizes in tokens. Of sizes that are set, those of more requests than may run are left out;
    where batches are padded and `ends` holds, the most that may run stand for them.
    """
    if largest == 0:
        return ()
    sizes = engine.captured or engine.captures.sizes(largest, guessing=site.guesses > 0)
    if engine.captured and engine.captured_requests and 0 < sequences < sizes[-1]:
        sizes = tuple(size for size in sizes if size <= sequences)
        sizes += (sequences,) if engine.pads and engine.captures.ends else ()
    tokens = site.guesses + 1 if engine.captured_requests else 1
    return tuple(sorted({size * tokens for size in sizes if size <= largest}))


def _is_piecewise(engine: Engine, site: Site) -> bool:
    plain = (
        site.guesses == 0
        and site.dpa == 1
        and site.pp == 1
        and engine.exchange is ExpertExchange.GATHERED
    )
    return engine.graphs and engine.piecewise and (plain or not engine.piecewise_alone)


def _pieces(engine: Engine, site: Site, *, chunk: int) -> tuple[int, ...]:
    """Sizes, in tokens, of graphs that are captured in pieces for prompts, where they have sizes of
    their own.
    """
    if engine.piecewise_captures is None or not _is_piecewise(engine, site):
        return ()
    if engine.piecewise_captured:
        return engine.piecewise_captured
    latent = engine.piecewise_latent_tokens if site.latent else 0
    return engine.piecewise_captures.sizes(engine.piecewise_tokens or latent or chunk)


def _share(engine: Engine, site: Site, *, chunk: int, largest: int, pieces: int) -> float:
    if engine.reserve is None:
        return 0.0
    kept = reserved_bytes(
        engine.reserve,
        memory_bytes=site.memory_bytes,
        chunk=chunk,
        largest_captured=largest,
        devices=site.tp * site.dpa * site.pp,
        ranks=site.dpa,
        pieces=pieces,
        latent=site.latent,
        guessing=site.guesses > 0,
    )
    return share(engine.reserve, memory_bytes=site.memory_bytes, kept=kept)


def _is_fused(engine: Engine, site: Site) -> bool:
    fits = not engine.fused_architectures or site.architecture in engine.fused_architectures
    device = not engine.fused_generations or site.generation in engine.fused_generations
    return engine.fused_all_reduce and fits and device and site.tp > 1 and site.dpa == 1


def _own_sum_bytes(engine: Engine, site: Site) -> int:
    """The largest buffer that one- and two-shot sums of `site.tp` ranks take."""
    own = (Kind.ONE_SHOT, Kind.TWO_SHOT)
    limits = [
        one
        for one in engine.sums
        if one.kind in own
        and not one.fused
        and one.ranks in (0, site.tp)
        and one.generation in (0, site.generation)
    ]
    return max((one.most_bytes for one in limits), default=0)
