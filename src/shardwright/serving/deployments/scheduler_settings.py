"""Scheduler settings of a rank, from an engine's version and a worker."""

from __future__ import annotations

from math import ceil

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.serving_engines.default_rules_by_device import Estimate
from shardwright.runtime.serving_engines.serving_engine import Admission, Batching, Engine, Eviction
from shardwright.serving.deployments.worker_pools import Worker, WorkerRole


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Settings of a rank's scheduler: batching, admission, token budget and cache blocks.

    Args:
        batching, admission, eviction, estimate, knows_ends: see `Engine`.
        token_budget: most tokens of an iteration (of prompts, where prompts run alone).
        max_sequences: most requests that run at once.
        prompt_tokens: most tokens of prompts admitted together after the first prompt; 0 = no limit
            but the budget.
        block_tokens, blocks: tokens of a block, and usable blocks of the rank's cache.
        chunked_prefill, mixes_decode, prefix_cache, polling: see `Engine`.
        watermark: blocks that stay free after an admission, while others run.
        draft_tokens: draft tokens checked in each iteration.
        lookahead: tokens for which blocks are taken in advance.
        asynchronous: an iteration is planned while the previous iteration runs.
        only_prompts: a request is done with its first token (a prefill worker).
        only_answers: the prompt's cache comes from a prefill worker: it needs blocks but no time.
        wait_iterations, wait_tokens: prompts wait until the iteration has `wait_tokens` tokens,
            with the decode tokens, for at most `wait_iterations` iterations.
        balance_iterations: prompts wait until all ranks of the worker have one, for at most this
            many iterations. Both waits are for batches in flight only, 0 = no wait; not both.
    """

    batching: Batching
    admission: Admission = Admission.CHUNK
    eviction: Eviction = Eviction.PREEMPT
    estimate: Estimate | None = None
    knows_ends: bool = False
    token_budget: int
    max_sequences: int
    prompt_tokens: int = 0
    block_tokens: int
    blocks: int
    chunked_prefill: bool = True
    mixes_decode: bool = False
    prefix_cache: bool = False
    watermark: int = 0
    draft_tokens: int = 0
    lookahead: int = 0
    polling: int = 1
    asynchronous: bool = False
    only_prompts: bool = False
    only_answers: bool = False
    wait_iterations: int = 0
    wait_tokens: int = 0
    balance_iterations: int = 0

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_sequences", "block_tokens", "blocks", "polling"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}")
        if (
            self.wait_iterations or self.balance_iterations
        ) and self.batching is not Batching.IN_FLIGHT:
            raise ValueError("prompts are delayed in in-flight batching alone")
        if self.wait_iterations and self.balance_iterations:
            raise ValueError("prompts wait either for tokens or for other ranks")
        if self.admission is Admission.ESTIMATED and self.estimate is None:
            raise ValueError("nothing to estimate answers with")

    def settings(self, *, key_tokens: int, seed: int = 0) -> IntArray:
        """(NUM_SETTINGS,) settings as the integers that compiled policies read.

        In the order of the columns of `policy.scheduler_state`.

        Args:
            key_tokens: tokens of a hashed block of the prompts.
            seed: random seed of the accepted draft tokens.
        """
        if key_tokens % self.block_tokens:
            raise ValueError(f"hashes of {key_tokens} tokens for blocks of {self.block_tokens}")
        return np.array(
            [
                BATCHINGS.index(self.batching),
                self.token_budget,
                self.max_sequences,
                self.block_tokens,
                self.blocks,
                self.chunked_prefill,
                self.mixes_decode,
                ADMISSIONS.index(self.admission),
                self.prefix_cache,
                key_tokens,
                self.draft_tokens,
                self.lookahead,
                self.polling,
                self.watermark,
                self.only_prompts,
                self.prompt_tokens,
                self.asynchronous,
                seed,
                self.knows_ends and not self.prefix_cache,
                self._decode_only_mode(),
                self.wait_iterations,
                self.wait_tokens,
                self.balance_iterations,
            ],
            dtype=np.int64,
        )

    def _decode_only_mode(self) -> int:
        """Decode-only mode as an integer: 0 NEVER, 1 BRINGS_FIRST, 2 COMPUTES_FIRST.

        NEVER for workers that compute prompts too. vLLM's decode worker computes a prompt's last
        token, and so the first of the answer, itself (`COMPUTES_FIRST`); with the other engines the
        first token comes with the cache (`BRINGS_FIRST`).
        """
        if not self.only_answers:
            return 0
        return 2 if self.batching is Batching.MIXED else 1

    def shares(self) -> FloatArray:
        """(6,) SGLang's new-token ratio: first, least, fall; retract steps, clip, kept tokens."""
        if self.estimate is None:
            return np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        estimate = self.estimate
        fall = (estimate.first - estimate.least) / estimate.steps
        return np.array(
            [
                estimate.first,
                estimate.least,
                fall,
                estimate.retract_steps,
                estimate.clip,
                estimate.kept_tokens,
            ],
            dtype=np.float64,
        )


BATCHINGS = (Batching.MIXED, Batching.PREFILL_FIRST, Batching.IN_FLIGHT)
ADMISSIONS = (Admission.CHUNK, Admission.PROMPT, Admission.WHOLE, Admission.ESTIMATED)


def running_at_once(engine: Engine, worker: Worker) -> int:
    """Most requests of a rank that run at once, in all its iterations under way together."""
    return (worker.sequences or engine.max_sequences) * (worker.pp if engine.stage_sequences else 1)


def scheduler_settings(
    engine: Engine, worker: Worker, *, blocks: int, role: WorkerRole = WorkerRole.AGGREGATED
) -> SchedulerSettings:
    """Create the scheduler settings of each rank of a worker.

    Blocks are taken ahead for draft tokens where these have a cache of their own (vLLM:
    num_lookahead_tokens).

    Args:
        engine: the engine on the worker, with budget and sequences of one rank
            (`problem_on_worker`).
        blocks: blocks of the rank's cache that can be used.
    """
    # TensorRT-LLM's executor balances ranks with data parallel attention, and fills batches
    # otherwise.
    in_flight = engine.batching is Batching.IN_FLIGHT and role is not WorkerRole.DECODE
    single_rank = worker.dpa == 1
    return SchedulerSettings(
        batching=engine.batching,
        admission=engine.admission,
        eviction=engine.eviction,
        estimate=engine.estimate,
        knows_ends=engine.knows_ends,
        token_budget=engine.token_budget,
        max_sequences=running_at_once(engine, worker),
        prompt_tokens=engine.prompt_tokens,
        block_tokens=engine.block_tokens,
        blocks=blocks,
        chunked_prefill=engine.chunked_prefill,
        mixes_decode=engine.mixes_decode,
        prefix_cache=engine.prefix_cache,
        draft_tokens=0 if role is WorkerRole.PREFILL else worker.draft_tokens,
        lookahead=worker.draft_tokens if engine.batching is Batching.MIXED else 0,
        polling=engine.polling,
        asynchronous=engine.asynchronous,
        only_prompts=role is WorkerRole.PREFILL,
        only_answers=role is WorkerRole.DECODE,
        wait_iterations=engine.wait_iterations if in_flight and single_rank else 0,
        wait_tokens=ceil(engine.wait_share * engine.token_budget)
        if in_flight and single_rank
        else 0,
        balance_iterations=engine.balance_iterations if in_flight and not single_rank else 0,
    )
