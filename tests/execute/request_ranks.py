"""Ranks of torch.distributed that are started once and run many cases; what they find is written to
files."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from traceback import format_exc

import torch
import torch.distributed as dist

from shardwright.errors import StrategyError
from shardwright.execute.redistribution.run_layout_transition import Tensors
from shardwright.execute.transport.communication_record import CommunicationRecord, SentElements
from shardwright.execute.transport.communication_requests import (
    GroupExchange,
    Post,
    Reduce,
    Reduction,
    Take,
    Task,
    begin_side_task,
    end_side_task,
)
from shardwright.execute.transport.gloo_message_threads_between_ranks import DTYPES
from shardwright.execute.transport.torch_distributed import DistributedTransport
from tests.execute.layouts import devices_of, held, two_sided, whole_tasks
from tests.execute.started import started
from tests.program.test_transition import case_of
from tests.tiers import numbers

Tasks = dict[int, Task[Tensors]]


def random_layouts(seed: int) -> Tasks:
    source, wanted, keywords, random = case_of(seed)
    return whole_tasks(held(source, random)[0], source, wanted, keywords, key=("whole", seed))


def both_sides(seed: int) -> Tasks:
    source, wanted, keywords, random = case_of(seed)
    keywords.pop("across")
    tensors, _ = held(source, random)
    return {
        d: two_sided(tensors, source, wanted, keywords, device=d, key=("sides", seed))
        for d in devices_of(source, wanted)
    }


def noisy_sums(seed: int) -> Tasks:
    """Float reductions of many sizes and dtypes whose result depends on the order of the terms."""

    def task(device: int, devices: int) -> Task[Tensors]:
        generator = torch.Generator().manual_seed(100 * seed + device)
        found = []
        for size in ((), (1,), (devices - 1,), (7, 5), (0, 3)):
            for dtype in (torch.float32, torch.float64, torch.bfloat16):
                tensor = torch.randn(size, generator=generator).to(dtype)
                for reduction in Reduction:
                    key = ("noise", seed, size, str(dtype), reduction.value)
                    found.append(
                        (
                            yield Reduce(
                                group=tuple(range(devices)),
                                tensor=tensor,
                                key=key,
                                reduction=reduction,
                            )
                        )
                    )
        return tuple(found)  # type: ignore[arg-type]

    devices = Random(seed).randint(2, 7)
    return {d: task(d, devices) for d in range(devices)}


def dtypes(seed: int) -> Tasks:
    """Messages of every dtype, a scalar, and one of no elements."""

    def gives() -> Task[Tensors]:
        for i, dtype in enumerate(DTYPES):
            yield Post(to=1, tensor=torch.arange(6).reshape(2, 3).to(dtype), key=(seed, i))
        yield Post(to=1, tensor=torch.tensor(4.0), key=(seed, "scalar"))
        yield Post(to=1, tensor=torch.zeros(0, 2), key=(seed, "nothing"))
        return ()

    def takes() -> Task[Tensors]:
        found = []
        for i, dtype in enumerate(DTYPES):
            found.append((yield Take(source=0, shape=(2, 3), key=(seed, i), dtype=dtype)).float())  # type: ignore[union-attr]
        found.append((yield Take(source=0, shape=(), key=(seed, "scalar"))))  # type: ignore[arg-type]
        found.append((yield Take(source=0, shape=(0, 2), key=(seed, "nothing"))))  # type: ignore[arg-type]
        return tuple(found)

    return {0: gives(), 1: takes()}


def ring(seed: int) -> Tasks:
    """Everyone sends a large tensor both ways before anyone receives, then takes in the reverse
    order."""

    def task(device: int, devices: int) -> Task[Tensors]:
        tensor = torch.full((1 << 18,), float(device))
        for i in range(3):
            for to in ((device + 1) % devices, (device - 1) % devices):
                yield Post(to=to, tensor=tensor + i, key=("ring", seed, i, device, to))
        found = []
        for i in reversed(range(3)):
            for source in ((device + 1) % devices, (device - 1) % devices):
                found.append(
                    (
                        yield Take(
                            source=source,
                            shape=(1 << 18,),
                            key=("ring", seed, i, source, device),
                            dtype=torch.float32,
                        )
                    )
                )
        return tuple(found)  # type: ignore[arg-type]

    return {d: task(d, 4) for d in range(4)}


def beside(seed: int) -> Tasks:
    """Sums and gathers of random groups in one order, some begun earlier or ended later than it
    says. Sums of small integers are exact."""
    random = Random(seed)
    devices = tuple(range(4))
    asked = [tuple(sorted(random.sample(devices, random.randint(2, 4)))) for _ in range(24)]
    gathers = [random.random() < 0.5 for _ in asked]
    begins, ends = list(range(len(asked))), list(range(len(asked)))
    for i in range(len(asked)):
        match random.randrange(3):
            case 0:
                begins[i] = max(i - random.randint(0, 3), 0)
            case 1:
                ends[i] = min(i + random.randint(1, 4), len(asked) - 1)
    apart = [random.random() < 0.75 for _ in asked]

    def one(device: int, number: int) -> Task[torch.Tensor]:
        group = asked[number]
        tensor = torch.arange(5, dtype=torch.float64) + 10 * device + number
        if not gathers[number]:
            return (yield Reduce(group=group, tensor=tensor, key=("beside", seed, number)))  # type: ignore[no-any-return]
        others = [d for d in group if d != device]
        receives = dict.fromkeys(others, (5,))
        key = ("beside", seed, number)
        sends = dict.fromkeys(others, tensor)
        found = yield GroupExchange(
            group=group,
            sends=sends,
            receives=receives,
            key=key,
            kind="all_gather",
            elements=5 * len(group),
        )
        return torch.cat([tensor if d == device else found[d] for d in group])

    def task(device: int) -> Task[Tensors]:
        going, found = {}, {}
        for now in range(len(asked)):
            for i in (
                i for i in range(len(asked)) if apart[i] and begins[i] == now and device in asked[i]
            ):
                going[i] = yield from begin_side_task(one(device, i), late=begins[i] < i)
            if not apart[now] and device in asked[now]:
                found[now] = yield from one(device, now)
            for i in (
                i for i in range(len(asked)) if apart[i] and ends[i] == now and device in asked[i]
            ):
                found[i] = yield from end_side_task(going.pop(i))
        assert not going
        return tuple(found[i] for i in sorted(found))  # type: ignore[return-value]

    return {d: task(d) for d in devices}


CASES: dict[str, tuple[Callable[[int], Tasks], list[int]]] = {
    "random layouts": (random_layouts, numbers(12, 100)),
    "both sides": (both_sides, numbers(12, 100)),
    "noisy sums": (noisy_sums, numbers(2, 20)),
    "dtypes": (dtypes, [0]),
    "ring": (ring, [0, 1]),
    "beside": (beside, numbers(4, 40)),
}
GROUPED = ("beside",)
"""Cases of one device a rank that run over the backend's groups, too."""

Found = dict[tuple[str, int], dict[int, Tensors]]


def rank_of(device: int, *, ranks: int) -> int:
    return device % ranks


def run_all(
    rank: int, *, spread: int, devices: int = 32, backend: str = ""
) -> tuple[Found, list[SentElements]]:
    found: Found = {}
    trace = CommunicationRecord()
    with DistributedTransport(
        {device: rank_of(device, ranks=spread) for device in range(devices)},
        timeout_s=240,
        backend=backend,
    ) as network:
        for name, (tasks_of, seeds) in CASES.items():
            for seed in seeds if not backend or name in GROUPED else ():
                own = {
                    d: task
                    for d, task in tasks_of(seed).items()
                    if rank_of(d, ranks=spread) == rank
                }
                found[name, seed] = network.run_tasks(own, trace=trace)
    return found, trace.records


def errors(rank: int) -> dict[str, str]:
    """Rules of errors, by what went wrong; each on a network of its own."""
    found: dict[str, str] = {}

    def caught(
        name: str,
        devices: dict[int, int],
        tasks: dict[int, Task[None]],
        *,
        strangers: Tasks | None = None,
        timeout_s: float = 240,
    ) -> None:
        try:
            with DistributedTransport(devices, timeout_s=timeout_s) as network:
                # A rank that gives up at once would break off the other's connecting.
                dist.barrier()
                network.run_tasks(
                    {
                        **{d: task for d, task in tasks.items() if devices[d] == rank},
                        **(strangers or {}),
                    }
                )
        except StrategyError as error:
            found[name] = str(error)

    def gives(tensor: torch.Tensor, *, times: int = 1) -> Task[None]:
        for _ in range(times):
            yield Post(to=0, tensor=tensor, key="m")

    def takes(source: int, *, key: str = "m") -> Task[None]:
        yield Take(source=source, shape=(3,), key=key, dtype=torch.float32)

    apart = {0: 0, 1: 1}
    caught("shape", apart, {0: takes(1), 1: gives(torch.zeros(4))}, timeout_s=30)
    caught(
        "dtype", apart, {0: takes(1), 1: gives(torch.zeros(3, dtype=torch.float64))}, timeout_s=30
    )
    caught("silent", apart, {0: takes(1), 1: takes(0)}, timeout_s=1 + 30 * rank)
    caught("deadlock", {0: 0, 1: 1, 2: 0}, {0: takes(2), 2: takes(0)})
    caught("world", {0: 0, 1: 5}, {})
    caught("left", apart, {0: takes(1, key="n"), 1: gives(torch.zeros(3))})
    caught("untaken", apart, {0: takes(1), 1: gives(torch.zeros(3), times=2)})
    caught("place", apart, {0: takes(1), 1: gives(torch.zeros(3))}, strangers={1 - rank: takes(0)})
    return found


def dying(rank: int) -> str:
    """Rank 1 is killed between two messages; what rank 0 says."""

    def gives() -> Task[None]:
        yield Post(to=0, tensor=torch.zeros(3), key="a")
        yield Take(source=0, shape=(1,), key="thanks")
        os.kill(os.getpid(), signal.SIGKILL)

    def takes() -> Task[None]:
        yield Take(source=1, shape=(3,), key="a")
        yield Post(to=1, tensor=torch.zeros(1), key="thanks")
        yield Take(source=1, shape=(3,), key="b")

    try:
        with DistributedTransport({0: 0, 1: 1}, timeout_s=240) as network:
            network.run_tasks({rank: takes() if rank == 0 else gives()})
    except StrategyError as error:
        return str(error)
    return ""


def _work(rank: int, ranks: int, folder: str) -> None:
    try:
        _found(rank, ranks, folder)
    except BaseException:
        torch.save({"raised": format_exc()}, Path(folder) / f"rank{rank}")
        raise


def _found(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=240),
    )
    result: dict[str, object] = {}
    if ranks > 2:
        result |= {"cases": run_all(rank, spread=ranks), "fewer": run_all(rank, spread=2)}
        result["groups"] = run_all(rank, spread=ranks, devices=ranks, backend="gloo")
        dist.destroy_process_group()
    else:
        result["errors"] = errors(rank)
        torch.save(result, Path(folder) / f"rank{rank}")
        dist.barrier()
        result["dying"] = dying(rank)
    torch.save(result, Path(folder) / f"rank{rank}")


def start(ranks: int, folder: Path) -> list[BaseProcess]:
    """Ranks as processes; each writes what it found to a file of the folder."""
    return started(_work, ranks=ranks, arguments=(ranks, str(folder)))
