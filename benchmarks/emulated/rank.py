"""One rank: reads commands as lines of JSON, does them together with the other ranks, answers with
a line each."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, cast

import torch
import torch.distributed as dist

from benchmarks.emulated.settings import HOSTS, SETTINGS
from benchmarks.emulated.waits import Seconds, Waiting, run_promptly, wait_until
from shardwright.execute.device_state.parameter_views_of_flat_buckets import (
    BucketBox,
    FlatBucket,
    PartOfBox,
)
from shardwright.execute.device_state.stored_parameter_parts import (
    Key,
    ParameterStore,
    StoredParameter,
)
from shardwright.execute.device_state.zero_bucket_collectives import (
    Bucket,
    all_gather_bucket,
    reduce_scatter_bucket,
)
from shardwright.execute.interpreter.gather_and_reduce_hooks import bucket_gradients
from shardwright.execute.interpreter.run_device_actions_of_step import device_task
from shardwright.execute.numerics.base.run_precision import uniform_precision
from shardwright.execute.training.device_training_state import PreparedTraining, prepare_training
from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Post,
    Reduce,
    Take,
    Task,
)
from shardwright.execute.transport.torch_distributed import DistributedTransport
from shardwright.strategy.text.parse_plan import parse_plan

DTYPE: Final = torch.float32
PRECISION: Final = uniform_precision(DTYPE)
_STEP_AHEAD_S, _MESSAGE_AHEAD_S = 0.15, 0.03


def begin(ahead_s: float) -> float:
    """A moment so far ahead, the same on all ranks (namespaces of one machine share its clock)."""
    dist.barrier()
    soon = torch.tensor([time.perf_counter() + ahead_s], dtype=torch.float64)
    dist.broadcast(soon, 0)
    wait_until(float(soon))
    return float(soon)


def steps(
    network: DistributedTransport, rank: int, command: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Run steps of a setting: beginning and end of each, and how late this rank began."""
    setting = SETTINGS[command["setting"]]
    known = prepare_training(
        setting.model, setting.job, parse_plan(command["plan"]), precision=PRECISION
    )
    active = rank in known.devices
    seconds: Seconds = {(a, b, c, d): s for a, b, c, d, s in command["seconds"]}
    store = ParameterStore(
        model=setting.model, source=_never, settings=known.settings, precision=PRECISION
    )
    parts = {b.number: _flat(b) for b in known.buckets if rank in b.devices and len(b.devices) > 1}
    for _ in range(command["steps"]):
        gc.collect()
        gc.disable()
        started = begin(_STEP_AHEAD_S)
        late_s = time.perf_counter() - started
        if active:
            network.run_tasks({rank: _step(rank, known, store, parts, seconds, command["update"])})
        ended = time.perf_counter()
        gc.enable()
        yield {"began": started, "late": late_s, "ended": ended}


def _never(key: Key) -> torch.Tensor:
    raise AssertionError(f"{key}: no operator reads a parameter here")


def _flat(bucket: Bucket) -> FlatBucket:
    """A bucket's gradient as an accelerator would have it: one piece of memory."""
    held = StoredParameter(
        box=(((0, bucket.elements),),), value=torch.zeros(bucket.elements, dtype=DTYPE)
    )
    part = PartOfBox(held=held, rows=(slice(None),), is_all=True)
    found = FlatBucket(boxes=(BucketBox(shape=(bucket.elements,), parts=(part,)),))
    found.allocate_gradients(DTYPE)
    return found


def _step(
    rank: int,
    known: PreparedTraining,
    store: ParameterStore,
    parts: Mapping[int, FlatBucket],
    seconds: Seconds,
    update_s: float,
) -> Task[None]:
    """A step as `train.step_task` runs it by messages: actions, sums, norm, update, gathers; the
    update waits."""
    yield from device_task(
        rank, known.work, batch={}, store=store, make_walker=partial(Waiting, seconds=seconds)
    )
    shared = [b for b in known.buckets if b.number in parts]
    totals = {}
    for bucket in shared:
        own = bucket_gradients(parts[bucket.number], PRECISION)
        totals[bucket.number] = yield from reduce_scatter_bucket(
            rank, bucket, own, precision=PRECISION
        )
    yield Reduce(group=known.devices, tensor=torch.zeros(2, dtype=torch.float64), key="norm")
    wait_until(time.perf_counter() + update_s)
    for bucket in shared:
        yield from all_gather_bucket(rank, bucket, totals[bucket.number], have=1, want=0, key="new")


def measure(network: DistributedTransport, rank: int, command: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a message there and back, or of a collective, by bytes."""
    group = tuple(range(command["devices"]))
    found = {}
    for size in command["sizes"]:
        spent = []
        for _ in range(command["times"]):
            started = begin(_MESSAGE_AHEAD_S)
            if rank in group:
                network.run_tasks(
                    {rank: _once(command["kind"], rank, group, size // DTYPE.itemsize)}
                )
            spent.append(time.perf_counter() - started)
        found[size] = spent
    return found


def _once(kind: str, rank: int, group: tuple[int, ...], elements: int) -> Task[None]:
    if kind == "send":
        other = group[1 - group.index(rank)]
        tensor = torch.zeros(elements, dtype=DTYPE)
        if rank == group[0]:
            yield Post(to=other, tensor=tensor, key="there")
            yield Take(source=other, shape=(elements,), key="back", dtype=DTYPE)
        else:
            yield Take(source=other, shape=(elements,), key="there", dtype=DTYPE)
            yield Post(to=other, tensor=tensor, key="back")
    elif kind == "all_reduce":
        yield Reduce(group=group, tensor=torch.zeros(elements, dtype=DTYPE), key="sum")
    else:
        piece = torch.zeros(elements // len(group), dtype=DTYPE)
        others = [d for d in group if d != rank]
        sends, receives = dict.fromkeys(others, piece), dict.fromkeys(others, tuple(piece.shape))
        yield GroupExchange(
            group=group,
            sends=sends,
            receives=receives,
            key="all",
            kind="all_gather",
            elements=elements,
            dtype=DTYPE,
        )


def _answer(found: Mapping[Any, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Commands until there are no more."""
    rank, address = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    run_promptly()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address}",
        rank=rank,
        world_size=HOSTS,
        timeout=timedelta(seconds=120),
    )
    with DistributedTransport({d: d for d in range(HOSTS)}, timeout_s=120) as network:
        for line in sys.stdin:
            command = cast(dict[str, Any], json.loads(line))
            if command["do"] == "steps":
                for found in steps(network, rank, command):
                    _answer(found)
            else:
                _answer(measure(network, rank, command))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
