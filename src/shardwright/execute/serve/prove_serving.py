"""Proof that serving under a scheduling policy gives the logits of the unsplit model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from shardwright.errors import StrategyError
from shardwright.execute.device_state.stored_parameter_parts import Source, seeded
from shardwright.execute.serve.iterations_on_workers import Server, create_server
from shardwright.execute.serve.serve_requests_by_scheduling_policy import (
    ScheduledWorker,
    serve_prefill_and_decode,
    serve_requests,
)
from shardwright.execute.serve.serving_proof_result import Log, ServedProof
from shardwright.execute.serve.serving_worker import CacheSize
from shardwright.execute.serve.undivided_model_logits import unsplit_logits
from shardwright.model.ir.model_graph import Model
from shardwright.serving.policy.scheduler_state import (
    BLOCK_TOKENS,
    BLOCKS,
    INPUTS,
    PREEMPTED,
    SchedulerState,
)
from shardwright.strategy.plan.plan import Plan

SIZES = (1, 2, 4, 8)
"""Numbers of tokens that a rank's iteration is padded to: fewer sizes are fewer layouts to
derive."""
MOST_PARAMETERS = 150_000_000
"""Maximum parameters of a small model: each takes 8 bytes as drawn and once more on the devices."""


def prove_serving(
    model: Model,
    plans: Sequence[Plan],
    states: Sequence[SchedulerState],
    *,
    arrivals: Sequence[int],
    stages: Sequence[int],
    transfer_turns: int,
    simulated: Log,
    seed: int = 0,
) -> ServedProof:
    """Serve greedily on virtual devices: compare logits with an undivided model's, and the logs.

    Parameters and prompts are drawn from `seed`. Every answer reaches its maximum length.

    Args:
        plans, states, stages: for one worker, or for a prefill and a decode worker: see
            `ScheduledWorker` and `serve_prefill_and_decode`. States are those before any arrival.
        arrivals: arrival turn of each request, ascending.
        transfer_turns: number of turns of a transfer.
        simulated: log of the simulation of the same requests, worker by worker.

    Raises:
        StrategyError: the model is too large for one process (rule ``execute.size``); others of
        `create_server` and `ScheduledWorker`.
    """
    if model.num_parameters > MOST_PARAMETERS:
        raise StrategyError(
            f"the small model still has {model.num_parameters:,} parameters, more than"
            f" {MOST_PARAMETERS:,} in one process",
            hint="its widths have no large common divisor: serve another model of the family",
            rule="execute.size",
        )
    generator = torch.Generator().manual_seed(seed)
    lengths = states[0].requests[:, INPUTS].tolist()
    prompts = {
        r: torch.randint(0, model.vocab, (n,), generator=generator).tolist()
        for r, n in enumerate(lengths)
    }
    source = seeded(model, seed=seed)
    size = CacheSize(
        blocks=max(int(s.settings[BLOCKS]) for s in states),
        block_tokens=int(states[0].settings[BLOCK_TOKENS]),
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are small: threads would wait for each other
    try:
        served = create_server(model, plans, prompts=prompts, source=source, size=size, sizes=SIZES)
        workers = [
            ScheduledWorker(server=served, state=state, worker=w, stages=stages[w])
            for w, state in enumerate(states)
        ]
        for request, turn in enumerate(arrivals):
            workers[0].expect(turn, request)
        if len(workers) == 1:
            serve_requests(workers[0])
        else:
            serve_prefill_and_decode(workers[0], workers[1], transfer_turns=transfer_turns)
        difference = largest_difference(served, source)
    finally:
        torch.set_num_threads(threads)
    refused = {request for worker in workers for request in worker.refused}
    return ServedProof(
        model=model,
        devices=sum(plan.devices for plan in plans),
        tokens=tuple(
            () if request in refused else tuple(tokens) for request, tokens in served.tokens.items()
        ),
        log=tuple(part for worker in workers for part in worker.log),
        simulated=simulated,
        preempted=sum(int(state.requests[:, PREEMPTED].sum()) for state in states),
        computed=sum(
            len(times) for by_position in served.logits.values() for times in by_position.values()
        ),
        difference=difference,
    )


def largest_difference(served: Server, source: Source) -> float:
    """Largest absolute difference of served logits from the undivided model's."""
    largest = 0.0
    for request, by_position in served.logits.items():
        reference = unsplit_logits(served.workers[0].model, served.tokens[request], source=source)
        for position, times in by_position.items():
            largest = max(
                largest, *(float((logits - reference[position]).abs().max()) for logits in times)
            )
    return largest
