"""Execute a deployment on PyTorch: a small model serves random traffic under its scheduler."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

import numpy as np

from shardwright.api.simulate_deployment import serving_problem
from shardwright.errors import DataError, StrategyError, UsageError
from shardwright.execute.serve.serving_proof_result import Log, ServedProof
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.progress_callback import Progress
from shardwright.serving.deployments.engine_settings_on_worker import problem_on_worker
from shardwright.serving.deployments.scheduler_settings import SchedulerSettings, scheduler_settings
from shardwright.serving.deployments.serving_problem import ServingProblem
from shardwright.serving.deployments.worker_pools import Worker, WorkerPool
from shardwright.serving.policy.scheduler_state import (
    COMPUTES_FIRST,
    ENTRY,
    LIFE,
    ONLY_ANSWERS,
    PREEMPTED,
    TOKENS,
    SchedulerState,
    new_state,
)
from shardwright.serving.simulation.fleet_description_and_draft_acceptance import Fleet
from shardwright.serving.simulation.python_simulation_loop import serve_requests_in_python
from shardwright.serving.step_times.build_step_table import step_table
from shardwright.serving.step_times.step_table import StepTable
from shardwright.serving.traffic.requests_and_outcomes import Requests, ServedRequests
from shardwright.serving.unparsed_simulation_inputs import ServingRequest
from shardwright.strategy.grid.parallelism_grid import Grid

REQUESTS: Final = 6
MIN_REQUESTS_OF_RANK: Final = 3
"""Least number of requests of each rank that has its own cache."""
LONGEST_PROMPT: Final = 14
LONGEST_ANSWER: Final = 14
BLOCK_TOKENS: Final = 4
SPARE_BLOCKS: Final = 2
"""Blocks of a rank's cache beside those of the longest request: others are preempted, where an
engine does that."""
TOKEN_BUDGET: Final = 8
SEQUENCES: Final = 4
TRANSFER_TURNS: Final = 1
"""Iterations that a transfer from a prefill worker to a decode worker takes."""
POLLING: Final = 2
"""Most iterations between two looks at the queue: the traffic is short."""


def prove_deployment(request: ServingRequest, *, progress: Progress | None = None) -> ServedProof:
    """Serve a small model on virtual devices; DataError if logits differ from the unsplit model's.

    The model has the same structure; one worker of each pool serves it.

    The engine's scheduler is that of `serve-simulate` except for its sizes: some requests of some
    tokens, blocks of four, a cache that is too small. Leaves out: prefix caches, draft tokens,
    number formats below float64, and time.

    Raises:
        UsageError: PyTorch is not installed.
        StrategyError: the deployment or the model has a feature that is not executed.
        DataError: a logit differs, or the log of iterations is not the simulator's.
        Others as `serve_simulate`.
    """
    try:
        from shardwright.execute.serve.prove_serving import prove_serving  # PyTorch is an extra
        from shardwright.execute.serve.shrink_model_for_serving_proof import tiny_workers
    except ImportError as error:
        raise UsageError(
            "--execute needs PyTorch", hint="pip install 'shardwright[run]'"
        ) from error
    problem, deployment = serving_problem(request)
    workers = tuple(pool.worker for pool in deployment.pools)
    if any(worker.cp > 1 for worker in workers):
        raise StrategyError(
            "positions of prompts that are cut (cp) are not executed",
            hint="cp1",
            rule="serve.deployment",
        )
    report_progress = progress or (lambda phase, done, total: None)
    report_progress("make a small model", 0, 0)
    model, plans = tiny_workers(problem.model, [_grid(problem, worker) for worker in workers])
    requests = _random_requests(
        request.seed,
        count=max(REQUESTS, MIN_REQUESTS_OF_RANK * max(worker.dpa for worker in workers)),
    )
    sides = tuple(
        _small_worker(problem, pool, longest=int((requests.inputs + requests.outputs).max()))
        for pool in deployment.pools
    )
    log = _simulate_workers(requests, sides)
    report_progress(
        f"serve {sum(tokens for _, _, tokens in log):,} tokens on"
        f" {sum(plan.devices for plan in plans)} virtual devices",
        0,
        0,
    )
    proof = prove_serving(
        model,
        plans,
        [side.state(requests) for side in sides],
        arrivals=requests.arrival_s.astype(np.int64).tolist(),
        stages=[worker.pp for worker in workers],
        transfer_turns=TRANSFER_TURNS,
        simulated=log,
        seed=request.seed,
    )
    if not proof.equal:
        difference = (
            f"a logit differs by {proof.difference:.1e}"
            if proof.log == log
            else "the iterations are not the simulator's"
        )
        raise DataError(
            f"executed under the deployment {difference}",
            hint="this is an error of Shardwright: report it with the command",
        )
    return proof


@dataclass(frozen=True, slots=True, kw_only=True)
class _SmallWorker:
    """A worker of a pool with small scheduler sizes; the seconds of its table are not read."""

    worker: Worker
    scheduler: SchedulerSettings
    table: StepTable

    def state(self, requests: Requests) -> SchedulerState:
        """New scheduler state for `requests`, before any of them has arrived."""
        slots = self.worker.pp if self.worker.pp > 1 else 1 + self.scheduler.asynchronous
        return new_state(requests, self.scheduler, ranks=self.worker.dpa, slots=slots)

    def simulated(self, requests: Requests) -> tuple[Log, ServedRequests]:
        """Simulate the worker with 1 s a stage; returns (second, request, tokens) rows and outcome.

        An iteration takes a second a stage.
        """
        log: list[tuple[int, int, int]] = []

        def watch(now: float, state: SchedulerState, rank: int, slot: int) -> None:
            """Log (second, request, tokens) of an iteration's requests, except preempted ones."""
            for entry in state.batch[rank, slot, : state.batch_size[rank, slot]].tolist():
                if entry[LIFE] == state.requests[entry[ENTRY], PREEMPTED]:
                    log.append((round(now), entry[ENTRY], entry[TOKENS]))

        fleet = Fleet(scheduler=self.scheduler, ranks=self.worker.dpa)
        served = serve_requests_in_python(
            requests,
            self.table,
            fleet,
            timing=lambda state, rank, slot: float(self.worker.pp),
            watcher=watch,
        )
        return tuple(log), served


def _small_worker(problem: ServingProblem, pool: WorkerPool, *, longest: int) -> _SmallWorker:
    """A pool's worker with the scheduler's limits replaced by small ones, for a small model.

    Args:
        longest: tokens of the longest request.
    """
    pool_problem = problem_on_worker(problem, pool.worker)
    blocks = -(-longest // BLOCK_TOKENS) + SPARE_BLOCKS
    full_size = scheduler_settings(pool_problem.engine, pool.worker, blocks=blocks, role=pool.role)
    scheduler = replace(
        full_size,
        token_budget=TOKEN_BUDGET if full_size.chunked_prefill else LONGEST_PROMPT + LONGEST_ANSWER,
        max_sequences=SEQUENCES,
        block_tokens=BLOCK_TOKENS,
        prefix_cache=False,
        draft_tokens=0,
        lookahead=0,
        polling=min(full_size.polling, POLLING),
    )
    return _SmallWorker(
        worker=pool.worker, scheduler=scheduler, table=step_table(pool_problem, pool.worker)
    )


def _simulate_workers(requests: Requests, sides: tuple[_SmallWorker, ...]) -> Log:
    """Simulate prefill and decode workers in order; returns joined (turn, request, tokens) rows.

    A prefilled request comes to the decode worker `TRANSFER_TURNS` later, the lowest number first.
    """
    log, served = sides[0].simulated(requests)
    if len(sides) == 1:
        return log
    decodes_first = sides[1].state(requests).settings[ONLY_ANSWERS] == COMPUTES_FIRST
    continuing = np.flatnonzero(~np.isnan(served.last_s) & ((requests.outputs > 1) | decodes_first))
    decode_arrival = served.last_s[continuing] + requests.arrival_s[0] + TRANSFER_TURNS
    order = np.argsort(decode_arrival, kind="stable")
    ordered = continuing[order]
    decode_requests = replace(
        requests,
        arrival_s=decode_arrival[order],
        inputs=requests.inputs[ordered],
        outputs=requests.outputs[ordered],
        block_offsets=np.zeros(len(ordered) + 1, dtype=np.int64),
    )
    decode_log, _ = sides[1].simulated(decode_requests)
    return (*log, *((turn, int(ordered[index]), tokens) for turn, index, tokens in decode_log))


def _grid(problem: ServingProblem, worker: Worker) -> Grid:
    """The grid with a worker's tp, attention dp, pp, and for experts ep and etp."""
    experts = any(o.experts is not None for block in problem.model.blocks for o in block.operators)
    return Grid(
        tp=worker.tp,
        dp=worker.dpa,
        pp=worker.pp,
        ep=worker.ep if experts else 1,
        etp=worker.etp if experts else 1,
    )


def _random_requests(seed: int, *, count: int) -> Requests:
    """Random requests: arrivals in whole turns, prompt and answer lengths up to small maxima."""
    random = Random(seed)
    return Requests(
        arrival_s=np.array(
            sorted(random.randrange(2 * REQUESTS) for _ in range(count)), dtype=np.float64
        ),
        inputs=np.array([random.randint(1, LONGEST_PROMPT) for _ in range(count)], dtype=np.int64),
        outputs=np.array([random.randint(1, LONGEST_ANSWER) for _ in range(count)], dtype=np.int64),
        concurrency=0,
        block_offsets=np.zeros(count + 1, dtype=np.int64),
        blocks=np.zeros(0, dtype=np.int64),
        block_tokens=0,
    )
