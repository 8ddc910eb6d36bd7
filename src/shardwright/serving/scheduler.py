"""What a scheduler of a rank is told: the numbers of an engine's version and of a worker that its policy depends on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from shardwright.arrays import IntArray
from shardwright.runtime.engines.engine import Batching, Engine, Eviction
from shardwright.serving.deployment import Role, Worker


class Admission(IntEnum):
    """Whose blocks must be there before a request is admitted. CHUNK: those of what it computes next. PROMPT: of its whole prompt. ANSWER:
    of its longest answer too. ESTIMATE: of the part of all answers that is expected.
    """

    CHUNK = 0
    PROMPT = 1
    ANSWER = 2
    ESTIMATE = 3


_BATCHING = tuple(Batching)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Settings of a rank's scheduler.

    Args:
        batching: which policy. token_budget: most tokens of an iteration (of prompts, where they run alone). max_sequences: that run at
            once. prompt_tokens: most tokens of prompts that are admitted together, where that is another number (SGLang's
            max_prefill_tokens); 0 = the budget.
        block_tokens, blocks: of the rank's cache. chunked_prefill, mixes_decode, prefix_cache, polling: see `Engine`. admission: see there.
        chunk_unit: a part of a prompt that is not its last is a multiple of as many tokens. guesses: checked in each iteration beside the
            token. lookahead: tokens for which blocks are taken beyond those. asynchronous: an iteration is planned while the one before it
            runs. only_prompts: a request is done with its first token (a worker that prefills).
    """

    batching: Batching
    token_budget: int
    max_sequences: int
    block_tokens: int
    blocks: int
    prompt_tokens: int = 0
    chunked_prefill: bool = True
    mixes_decode: bool = False
    prefix_cache: bool = False
    admission: Admission = Admission.CHUNK
    chunk_unit: int = 1
    guesses: int = 0
    lookahead: int = 0
    polling: int = 1
    asynchronous: bool = False
    only_prompts: bool = False

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_sequences", "block_tokens", "blocks", "chunk_unit", "polling"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")

    def settings(self, *, key_tokens: int, seed: int = 0) -> IntArray:
        """As the columns of `policy.state` name them; `key_tokens`: of a hashed block of the prompts."""
        if key_tokens % self.block_tokens:
            raise ValueError(f"hashes of {key_tokens} tokens for blocks of {self.block_tokens}")
        return np.array(
            [
                _BATCHING.index(self.batching),
                self.token_budget,
                self.max_sequences,
                self.block_tokens,
                self.blocks,
                self.chunked_prefill,
                self.mixes_decode,
                self.admission,
                self.prefix_cache,
                key_tokens,
                self.guesses,
                self.lookahead,
                self.polling,
                self.chunk_unit,
                self.only_prompts,
                self.prompt_tokens or self.token_budget,
                self.asynchronous,
                seed,
            ],
            dtype=np.int64,
        )


_ADMISSION = {Eviction.PREEMPT: Admission.CHUNK, Eviction.RETRACT: Admission.ESTIMATE, Eviction.RESERVE: Admission.ANSWER}


def scheduler_of(engine: Engine, worker: Worker, *, blocks: int, role: Role = Role.AGGREGATED) -> Scheduler:
    """Of each rank of `worker`, with `blocks` blocks of cache. MTP modules keep a cache too, so guesses have lookahead in it (vLLM)."""
    mixed = engine.batching is Batching.MIXED
    return Scheduler(
        batching=engine.batching,
        token_budget=worker.chunk or engine.token_budget,
        max_sequences=worker.sequences or engine.max_sequences,
        block_tokens=engine.block_tokens,
        blocks=blocks,
        chunked_prefill=engine.chunked_prefill,
        mixes_decode=engine.mixes_decode,
        prefix_cache=engine.prefix_cache,
        admission=_ADMISSION[engine.eviction],
        chunk_unit=1 if mixed else engine.block_tokens,
        guesses=0 if role is Role.PREFILL else worker.guesses,
        lookahead=worker.guesses if mixed else 0,
        polling=engine.polling,
        asynchronous=engine.asynchronous,
        only_prompts=role is Role.PREFILL,
    )
