"""Ranks of torch.distributed that are started once and train every small plan; what they find is
written to files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from shardwright.errors import DataError, StrategyError
from shardwright.execute.device_state.stored_parameter_parts import seeded
from shardwright.execute.interpreter.step_recorder import Recorder, gather_trace
from shardwright.execute.launch.train_rank_by_interpreter import run_rank
from shardwright.execute.training.device_training_state import create_device_state
from shardwright.execute.training.training_loop import StepReport, step_task, train_rank
from shardwright.execute.transport.communication_requests import Answer, Task
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.execute.transport.torch_distributed_collectives import GLOO
from shardwright.program.step_trace import StepTrace
from tests.execute.served import moving
from tests.execute.small_plans import PLANS, Small
from tests.execute.started import started
from tests.tiers import in_proof, many

RANKS = many(4, 8)
STEPS = many(2, 4)
RESUMED_STEPS = 3
"""Of two plans, the first one's the first: what it left changes parameters in the second step, and
that the loss of the third."""
SOME = (
    "ring",
    "experts",
    "zb-v",
    "recomputed early",
    "hybrid zero-3",
    "two lanes",
    "lanes of pairs shard for themselves",
    "tied",
    "encoder and decoder",
)
"""One plan of every form of messages, beside those that are resumed; a proof trains them all."""
GROUPED = (
    PLANS
    if in_proof()
    else {name: PLANS[name] for name in ("ring", "experts", "hybrid zero-3", "unequal duplicates")}
)
"""Of these, requests of groups are gloo's collectives."""
TRAINED = PLANS if in_proof() else {name: PLANS[name] for name in SOME}
SERVING = 4
"""Ranks that serve."""
SAVED, RESUMED = (
    ("hybrid zero-3 of eight", "tp, pp and dp") if in_proof() else ("hybrid zero-3", "tp2 then dp2")
)
KILLED, STOPPED = many(1, 4), many(3, 5)
"""Ranks that end in the middle of a step of ENDED: one by a signal, one by an error of its own."""
ENDED = RESUMED
MIDDLE = 20
"""Requests of that step that such a rank has asked by then: more are to come."""


def train_all(
    rank: int, plans: Mapping[str, Small], *, backend: str = ""
) -> tuple[dict[str, list[StepReport]], dict[str, StepTrace]]:
    """Steps of every plan that has a device on this rank; and the last one's trace, of all
    ranks."""
    found, traces = {}, {}
    with DistributedTransport(
        {d: d for d in range(RANKS)}, timeout_s=240, backend=backend
    ) as network:
        for name, small in plans.items():
            recorder = Recorder()
            if rank < small.devices:
                known = small.known()
                members = {
                    rank: create_device_state(rank, known, source=seeded(small.model, seed=0))
                }
                found[name] = list(
                    train_rank(
                        network, members, known, map(small.batches, range(STEPS)), recorder=recorder
                    )
                )
            traces[name] = gather_trace(recorder.trace(plan=name) if name in found else None)
    return found, traces


def serve(
    rank: int,
) -> tuple[dict[int, list[int]], dict[int, dict[int, list[torch.Tensor]]]] | None:
    """Tokens, and logits of this rank's device, of `served.moving`; None of ranks that are not of
    it."""
    with DistributedTransport({d: d for d in range(RANKS)}, timeout_s=240) as network:
        if rank >= SERVING:
            return None
        served = moving(network.run_tasks, frozenset({rank}))
        return served.tokens, served.logits


def connected(rank: int, folder: Path) -> bool:
    """Whether this rank enters a network only when the last one has connected. Nobody sends
    anything there."""
    last = folder / "all have connected"
    create, created = dist.new_group, count(1)

    def late(*args: Any, **options: Any) -> dist.ProcessGroup | None:
        group = create(*args, **options)
        if rank == 0 and next(created) == 2:
            sleep(0.2)
            last.touch()
        return group

    with (
        patch.object(dist, "new_group", late),
        DistributedTransport({d: d for d in range(RANKS)}, timeout_s=240),
    ):
        return last.exists()


def resume(folder: Path) -> dict[str, object]:
    """A step under one plan, the others under another; and a plan for another number of ranks."""
    found: dict[str, object] = {}
    for name, steps in ((SAVED, 1), (RESUMED, RESUMED_STEPS)):
        small = PLANS[name]
        found[name] = run_rank(
            small.known(),
            source=seeded(small.model, seed=0),
            batches=small.batches,
            steps=steps,
            checkpoints=folder / "checkpoints",
            every=steps,
        )
    if dist.get_rank() == 0:
        path = folder / "checkpoints" / f"step-{RESUMED_STEPS:08d}" / "__1_0.distcp"
        path.write_bytes(path.read_bytes()[:-10])
    dist.barrier()
    small = PLANS[RESUMED]
    try:
        run_rank(
            small.known(),
            source=seeded(small.model, seed=0),
            batches=small.batches,
            steps=1,
            checkpoints=folder / "checkpoints",
        )
    except DataError as error:
        found["damaged"] = str(error)
    try:
        run_rank(
            small.known(),
            source=seeded(small.model, seed=0),
            batches=small.batches,
            steps=1,
            checkpoints=folder / "meet" / "no folder",
        )
    except DataError as error:
        found["unwritable"] = str(error)
    small = PLANS["hidden"]
    try:
        run_rank(small.known(), source=seeded(small.model, seed=0), batches=small.batches, steps=1)
    except StrategyError as error:
        found["world"] = str(error)
    return found


def ended(rank: int, *, by: Callable[[], None], who: int, backend: str = "") -> str:
    """What a rank says of a step in whose middle another one ended; groups of a backend have met in
    a step before."""
    small = PLANS[ENDED]
    known = small.known()
    own = create_device_state(rank, known, source=seeded(small.model, seed=0))

    def halfway(task: Task[StepReport]) -> Task[StepReport]:
        answer: Answer = None
        for asked in count():
            if rank == who and asked == MIDDLE:
                by()
            try:
                request = task.send(answer)
            except StopIteration as done:
                report: StepReport = done.value
                return report
            answer = yield request
        raise AssertionError

    met = not backend
    try:
        with DistributedTransport(
            {d: d for d in range(RANKS)}, timeout_s=240, backend=backend
        ) as network:
            if backend:
                network.run_tasks({rank: step_task(own, known, batch=small.batches(0))})
                met = True
            network.run_tasks({rank: halfway(step_task(own, known, batch=small.batches(0)))})
    except StrategyError as error:
        if not met:
            raise
        return str(error)
    return ""


def _stop() -> None:
    raise StrategyError("this rank's data end here", hint="give it more", rule="run.data")


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=240),
    )
    trained, traces = train_all(rank, TRAINED)
    result = {
        "trained": trained,
        "traces": traces,
        "grouped": train_all(rank, GROUPED, backend=GLOO)[0],
        "connected": connected(rank, Path(folder)),
        "served": serve(rank),
        "resumed": resume(Path(folder)),
        "stopped": ended(rank, by=_stop, who=STOPPED),
        "stopped in groups": ended(rank, by=_stop, who=STOPPED, backend=GLOO),
    }
    torch.save(result, Path(folder) / f"rank{rank}")
    dist.barrier()
    result["killed"] = ended(rank, by=_kill, who=KILLED)
    torch.save(result, Path(folder) / f"rank{rank}")
    # The process group ends with the process: rank KILLED is not there to leave it.


def start(folder: Path) -> list[BaseProcess]:
    """Ranks as processes."""
    return started(_work, ranks=RANKS, arguments=(str(folder),))
