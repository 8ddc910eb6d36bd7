"""Memory of every pipeline rank, itemised, with equal ranks in one row."""

from __future__ import annotations

from itertools import groupby

from shardwright.report.tables import PlainTable, plain_table
from shardwright.simulator.prediction import HostMemory, Prediction, StageMemory
from shardwright.units import GIB, format_percent

FEW_ROWS = 6
FEW_ITEMS = 5
_SHORT = {
    "parameters": "params",
    "gradients": "grads",
    "optimizer": "optim",
    "workspace": "work",
    "activations": "acts",
    "logits": "logits",
    "temporary": "temp",
    "fragmentation": "frag",
    "communication": "comm",
    "context": "ctx",
}
"""Titles of the columns, in their order."""


def memory_table(prediction: Prediction, *, all_stages: bool = False, classes: tuple[str, ...] = ()) -> PlainTable:
    """A row for every run of equal ranks; of many rows the first, the last, the worst and their neighbours, unless `all_stages`.

    A narrow screen leaves out the smallest items, then their sum, which the title has.

    Args:
        classes: devices of each class as text, for general plans: they stand in the place of the stages' numbers.
    """
    runs = equal_ranks(prediction.stages)
    chosen = runs if all_stages else _few(runs)
    found = dict.fromkeys(name for stage in prediction.stages for name, _ in stage.items)
    names = tuple(sorted(found, key=lambda name: list(_SHORT).index(name) if name in _SHORT else len(_SHORT)))
    rows: list[tuple[str, ...]] = []
    before = -1
    for run in chosen:
        if run[0].rank > before + 1:
            rows.append(("...", *("" for _ in range(len(names) + 4))))
        before = run[-1].rank
        rows.append(_row(run, names=names, capacity=prediction.capacity_bytes, classes=classes))
    header = ("devices" if classes else "stage", "holds", *(_SHORT.get(name, name) for name in names), "allocated", "reserved", "full")
    largest = {name: max(dict(stage.items).get(name, 0) for stage in prediction.stages) for name in names}
    columns = [2 + names.index(name) for name in sorted(names, key=lambda name: largest[name])]
    few = max(len(columns) - FEW_ITEMS, 0)
    spare = (*columns[:few], header.index("allocated"), *columns[few:])
    return plain_table(header, rows, right=range(2, len(header)), whole=() if classes else (0,), spare=spare)


def host_table(hosts: tuple[HostMemory, ...]) -> PlainTable:
    """A row for nodes that need the same in host memory, itemised. A narrow screen leaves out the smallest items."""
    names = tuple(dict.fromkeys(name for host in hosts for name, _ in host.items))
    rows = [_host_row(host, names=names) for host in hosts[:FEW_ROWS]]
    rows += [("...", *("" for _ in range(len(names) + 4)))] if len(hosts) > FEW_ROWS else []
    header = ("nodes", "devices", *(_SHORT.get(name, name) for name in names), "needed", "capacity", "full")
    largest = {name: max(dict(host.items).get(name, 0) for host in hosts) for name in names}
    spare = [2 + names.index(name) for name in sorted(names, key=lambda name: largest[name])]
    return plain_table(header, rows, right=range(1, len(header)), whole=(0,), spare=spare)


def _host_row(host: HostMemory, *, names: tuple[str, ...]) -> tuple[str, ...]:
    items = dict(host.items)
    return (
        f"{'node' if host.nodes == 1 else f'{host.nodes:,} from node'} {host.node} {host.kind}".strip(),
        str(host.devices),
        *(_gib(items.get(name, 0)) for name in names),
        _gib(host.need),
        _gib(host.capacity) if host.capacity else "not stated",
        format_percent(host.need / host.capacity, digits=0) if host.capacity else "",
    )


def equal_ranks(stages: tuple[StageMemory, ...]) -> list[tuple[StageMemory, ...]]:
    """Runs of neighbouring ranks with the same memory, layers and number of devices."""

    def look(stage: StageMemory) -> tuple[object, ...]:
        return (stage.layers, stage.devices, stage.items, stage.allocated, stage.reserved, stage.capacity, stage.kind)

    return [tuple(run) for _, run in groupby(sorted(stages, key=lambda s: s.rank), key=look)]


def _few(runs: list[tuple[StageMemory, ...]]) -> list[tuple[StageMemory, ...]]:
    if len(runs) <= FEW_ROWS:
        return runs
    worst = max(range(len(runs)), key=lambda i: runs[i][0].reserved)
    shown = sorted({0, 1, worst, len(runs) - 2, len(runs) - 1})
    return [runs[i] for i in shown]


def _row(run: tuple[StageMemory, ...], *, names: tuple[str, ...], capacity: int, classes: tuple[str, ...]) -> tuple[str, ...]:
    stage = run[0]
    items, room = dict(stage.items), stage.capacity or capacity
    numbers = [classes[s.rank] for s in run] if classes else [str(s.rank) for s in run]
    ranks = numbers[0] if len(run) == 1 else f"{numbers[0]} .. {numbers[-1]}" if classes else f"{numbers[0]}-{numbers[-1]}"
    return (
        f"{ranks} {stage.kind}".strip(),
        stage.layers,
        *(_gib(items.get(name, 0)) for name in names),
        _gib(stage.allocated),
        _gib(stage.reserved),
        format_percent(stage.reserved / room, digits=0) if room else "",
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}" if count else "-"
