"""A worker of a deployment, executed on PyTorch: a small model serves random traffic as the engine's scheduler would."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import numpy as np

from shardwright.api.problems import Progress
from shardwright.api.serving import serving_problem
from shardwright.errors import DataError, StrategyError, UsageError
from shardwright.execute.serve.served import ServedProof
from shardwright.serving.deployment import Worker
from shardwright.serving.fleet import Fleet
from shardwright.serving.on_worker import on_worker
from shardwright.serving.policy.state import ENTRY, LIFE, PREEMPTED, TOKENS, State, new_state
from shardwright.serving.problem import ServingProblem
from shardwright.serving.request import ServingRequest
from shardwright.serving.requests import Requests
from shardwright.serving.scheduler import Scheduler, scheduler_of
from shardwright.serving.step_prices import step_table
from shardwright.serving.unfolded import serve_unfolded
from shardwright.strategy.grid.axes import Grid

REQUESTS: Final = 6
EACH_RANK: Final = 3
"""Requests at least for each rank with a cache of its own."""
LONGEST_PROMPT: Final = 14
LONGEST_ANSWER: Final = 14
BLOCK_TOKENS: Final = 4
SPARE_BLOCKS: Final = 2
"""Blocks of a rank's cache beside those of the longest request: others are preempted, where an engine does that."""
TOKEN_BUDGET: Final = 8
SEQUENCES: Final = 4
POLLING: Final = 2
"""Iterations between two looks at who came, at most: traffic is short."""


def served_execution(request: ServingRequest, *, progress: Progress | None = None) -> ServedProof:
    """Serve a small model of the same structure on one worker of the deployment, and hold its logits against the unsplit model's.

    The engine's scheduler is as `serve-simulate` has it but for its sizes: some requests of some tokens, blocks of four, a cache that is
    too small. Leaves out: caches of prefixes, guesses, number formats below float64, and time.

    Raises:
        UsageError: PyTorch is not installed. StrategyError: the deployment or the model holds what is not executed.
        DataError: a logit differs, or the log of iterations is not the simulator's. Others as `serve_simulate`.
    """
    try:
        from shardwright.execute.serve.prove import prove_served  # PyTorch is an extra
        from shardwright.execute.serve.tiny import tiny_worker
    except ImportError as error:
        raise UsageError("--execute needs PyTorch", hint="pip install 'shardwright[run]'") from error
    problem, deployment = serving_problem(request)
    if len(deployment.pools) > 1 or deployment.pools[0].worker.cp > 1:
        raise StrategyError(
            "only workers that serve whole requests, without cp, are executed by this verb",
            hint="agg 1x(tp2)",
            rule="serve.deployment",
        )
    worker = deployment.pools[0].worker
    tell = progress or (lambda phase, done, total: None)
    tell("make a small model", 0, 0)
    model, plan = tiny_worker(problem.model, _grid(problem, worker))
    requests = _requests(request.seed, count=max(REQUESTS, EACH_RANK * worker.dpa))
    scheduler = _small_scheduler(problem, worker, longest=int((requests.inputs + requests.outputs).max()))
    log = _simulated(problem, worker, scheduler, requests)
    slots = worker.pp if worker.pp > 1 else 1 + scheduler.asynchronous
    state = new_state(requests, scheduler, ranks=worker.dpa, slots=slots)
    tell(f"serve {sum(tokens for _, _, tokens in log):,} tokens on {plan.devices} virtual devices", 0, 0)
    arrivals = requests.arrival_s.astype(np.int64).tolist()
    found = prove_served(model, plan, state, arrivals=arrivals, stages=worker.pp, simulated=log, seed=request.seed)
    if not found.equal:
        what = f"a logit differs by {found.difference:.1e}" if found.log == log else "the iterations are not the simulator's"
        raise DataError(f"executed under the deployment {what}", hint="this is an error of Shardwright: report it with the command")
    return found


def _small_scheduler(problem: ServingProblem, worker: Worker, *, longest: int) -> Scheduler:
    """The engine's scheduler of a rank of `worker`, with small sizes; `longest`: tokens of a request."""
    blocks = -(-longest // BLOCK_TOKENS) + SPARE_BLOCKS
    whole = scheduler_of(on_worker(problem, worker).engine, worker, blocks=blocks)
    return replace(
        whole,
        token_budget=TOKEN_BUDGET if whole.chunked_prefill else LONGEST_PROMPT + LONGEST_ANSWER,
        max_sequences=SEQUENCES,
        block_tokens=BLOCK_TOKENS,
        prefix_cache=False,
        guesses=0,
        lookahead=0,
        polling=min(whole.polling, POLLING),
    )


def _grid(problem: ServingProblem, worker: Worker) -> Grid:
    experts = any(o.experts is not None for block in problem.model.blocks for o in block.operators)
    return Grid(tp=worker.tp, dp=worker.dpa, pp=worker.pp, ep=worker.ep if experts else 1, etp=worker.etp if experts else 1)


def _requests(seed: int, *, count: int) -> Requests:
    """Traffic of a proof: arrivals are turns."""
    random = Random(seed)
    return Requests(
        arrival_s=np.array(sorted(random.randrange(2 * REQUESTS) for _ in range(count)), dtype=np.float64),
        inputs=np.array([random.randint(1, LONGEST_PROMPT) for _ in range(count)], dtype=np.int64),
        outputs=np.array([random.randint(1, LONGEST_ANSWER) for _ in range(count)], dtype=np.int64),
        concurrency=0,
        block_offsets=np.zeros(count + 1, dtype=np.int64),
        blocks=np.zeros(0, dtype=np.int64),
        block_tokens=0,
    )


def _simulated(problem: ServingProblem, worker: Worker, scheduler: Scheduler, requests: Requests) -> tuple[tuple[int, int, int], ...]:
    """(second, request, tokens) of all parts of a simulation whose iterations take a second a stage."""
    log: list[tuple[int, int, int]] = []

    def watch(now: float, state: State, rank: int, slot: int) -> None:
        for entry in state.batch[rank, slot, : state.batch_size[rank, slot]].tolist():
            if entry[LIFE] == state.requests[entry[ENTRY], PREEMPTED]:
                log.append((round(now), entry[ENTRY], entry[TOKENS]))

    table = step_table(on_worker(problem, worker), worker)
    fleet = Fleet(scheduler=scheduler, ranks=worker.dpa)
    serve_unfolded(requests, table, fleet, timing=lambda state, rank, slot: float(worker.pp), watcher=watch)
    return tuple(log)
