"""What a scheduler of a rank is told: the numbers of an engine's version and of a worker that its
policy depends on.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from shardwright.arrays import FloatArray, IntArray
from shardwright.lazy_dataclass import dataclass
from shardwright.runtime.engines.engine import Admission, Batching, Engine, Eviction
from shardwright.runtime.engines.rules import Estimate
from shardwright.serving.deployments.workers import Role, Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduler:
    """Settings of a rank's scheduler.

    Args:
        batching, admission, eviction, estimate, knows_ends: see `Engine`.
        token_budget: most tokens of an iteration (of prompts, where they run alone).
        max_sequences: that run at once.
        prompt_tokens: most tokens of prompts that are admitted together beyond a first one; 0 = no
            other limit than the budget.
        block_tokens, blocks: of the rank's cache, those that can be used.
        chunked_prefill, mixes_decode, prefix_cache, polling: see `Engine`.
        watermark: blocks that are free behind an admission, where others run.
        guesses: checked in each iteration beside the token.
        lookahead: tokens for which blocks are taken beyond those.
        asynchronous: an iteration is planned while the one before it runs.
        only_prompts: a request is done with its first token (a worker that prefills).
        only_answers: its prompt's cache comes from elsewhere, and needs blocks but no time.
        wait_iterations, wait_tokens: prompts wait until the iteration has so many tokens, answers'
            among them, at most so many iterations.
        balance_iterations: prompts wait until all ranks of the worker have one, at most so many
            iterations. Both only of batches in flight, 0 = they do not; not both.
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
    guesses: int = 0
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
            raise ValueError("prompts wait for company in batches in flight alone")
        if self.wait_iterations and self.balance_iterations:
            raise ValueError("prompts wait either for tokens or for other ranks")
        if self.admission is Admission.ESTIMATED and self.estimate is None:
            raise ValueError("nothing to estimate answers with")

    def settings(self, *, key_tokens: int, seed: int = 0) -> IntArray:
        """As the columns of `policy.state` name them; `key_tokens`: of a hashed block of the
        prompts.
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
                self.guesses,
                self.lookahead,
                self.polling,
                self.watermark,
                self.only_prompts,
                self.prompt_tokens,
                self.asynchronous,
                seed,
                self.knows_ends and not self.prefix_cache,
                self._answers_alone(),
                self.wait_iterations,
                self.wait_tokens,
                self.balance_iterations,
            ],
            dtype=np.int64,
        )

    def _answers_alone(self) -> int:
        """0 = it does prompts too. vLLM's worker that decodes computes a prompt's last token, and
        so the first of the answer, itself (`COMPUTES_FIRST`); with the others' the first token
        comes along (`BRINGS_FIRST`).
        """
        if not self.only_answers:
            return 0
        return 2 if self.batching is Batching.MIXED else 1

    def shares(self) -> FloatArray:
        """Of answers that are expected: at first, at least, less in each iteration; tokens granted
        to each where some were sent back, longest answer, tokens kept free.
        """
        if self.estimate is None:
            return np.array([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
        of = self.estimate
        fall = (of.first - of.least) / of.steps
        return np.array(
            [of.first, of.least, fall, of.retract_steps, of.clip, of.kept_tokens], dtype=np.float64
        )


BATCHINGS = (Batching.MIXED, Batching.PREFILL_FIRST, Batching.IN_FLIGHT)
ADMISSIONS = (Admission.CHUNK, Admission.PROMPT, Admission.WHOLE, Admission.ESTIMATED)


def running_at_once(engine: Engine, worker: Worker) -> int:
    """Requests of a rank that may run at once, in all its iterations under way together."""
    return (worker.sequences or engine.max_sequences) * (worker.pp if engine.stage_sequences else 1)


def scheduler_of(
    engine: Engine, worker: Worker, *, blocks: int, role: Role = Role.AGGREGATED
) -> Scheduler:
    """Of each rank of `worker`, with `blocks` blocks of cache that can be used; `engine` as it is
    on the worker, where its budget and its sequences are those of one rank (`on_worker`).

    Blocks are taken ahead for guesses where they have a cache of their own (vLLM:
    num_lookahead_tokens).
    """
    # The executor balances ranks where they have attention of their own, and fills batches where
    # not.
    flying = engine.batching is Batching.IN_FLIGHT and role is not Role.DECODE
    alone = worker.dpa == 1
    return Scheduler(
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
        guesses=0 if role is Role.PREFILL else worker.guesses,
        lookahead=worker.guesses if engine.batching is Batching.MIXED else 0,
        polling=engine.polling,
        asynchronous=engine.asynchronous,
        only_prompts=role is Role.PREFILL,
        only_answers=role is Role.DECODE,
        wait_iterations=engine.wait_iterations if flying and alone else 0,
        wait_tokens=ceil(engine.wait_share * engine.token_budget) if flying and alone else 0,
        balance_iterations=engine.balance_iterations if flying and not alone else 0,
    )
