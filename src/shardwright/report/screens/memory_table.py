"""Memory of every pipeline rank, itemised, with equal ranks in one row."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from shardwright.report.table_style import PlainTable, plain_table
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


def memory_table(
    prediction: Prediction, *, all_stages: bool = False, classes: tuple[str, ...] = ()
) -> PlainTable:
    """A row for every run of equal ranks; of many rows the first, the last, the worst and their
    neighbours, unless `all_stages`.

    Every row is one line. A narrow screen leaves out the smallest items, then their sum, which the
    title has; then what a stage holds and which devices are shortened; then further items are left
    out.

    Args:
        classes: devices of each class as text, for general plans: they stand in the place of the
            stages' numbers.
    """
    runs = equal_ranks(prediction.stages)
    chosen = runs if all_stages else _few(runs)
    found = dict.fromkeys(name for stage in prediction.stages for name, _ in stage.items)
    names = tuple(
        sorted(found, key=lambda name: list(_SHORT).index(name) if name in _SHORT else len(_SHORT))
    )
    kinds = tuple(dict.fromkeys(stage.kind for stage in prediction.stages if stage.kind))
    labels = ("devices" if classes else "stage", *(["kind"] if kinds else []), "holds")
    header = (*labels, *(_SHORT.get(name, name) for name in names), "allocated", "reserved", "full")
    rows: list[tuple[str, ...]] = []
    forms: list[tuple[tuple[str, ...], ...]] = []
    before = -1
    for run in chosen:
        if run[0].rank > before + 1:
            rows.append(("...", *("" for _ in header[1:])))
            forms.append((("...",),) * len(labels))
        before = run[-1].rank
        told = (
            _devices(run, classes),
            *([_kind(run[0].kind, kinds)] if kinds else []),
            _holds(run[0].layers),
        )
        rows.append(
            (
                *(one[0] for one in told),
                *_numbers(run[0], names=names, capacity=prediction.capacity_bytes),
            )
        )
        forms.append(told)
    largest = {
        name: max(dict(stage.items).get(name, 0) for stage in prediction.stages) for name in names
    }
    columns = [
        len(labels) + names.index(name) for name in sorted(names, key=lambda name: largest[name])
    ]
    few = max(len(columns) - FEW_ITEMS, 0)
    spare = (*columns[:few], header.index("allocated"), *columns[few:])
    shorter = {column: [row[column] for row in forms] for column in range(len(labels))}
    return plain_table(
        header,
        rows,
        right=range(len(labels), len(header)),
        spare=spare,
        first_spare=few + 1,
        shorter=shorter,
    )


def host_table(hosts: tuple[HostMemory, ...]) -> PlainTable:
    """A row for nodes that need the same in host memory, itemised. A narrow screen leaves out the
    smallest items.
    """
    names = tuple(dict.fromkeys(name for host in hosts for name, _ in host.items))
    rows = [_host_row(host, names=names) for host in hosts[:FEW_ROWS]]
    rows += [("...", *("" for _ in range(len(names) + 4)))] if len(hosts) > FEW_ROWS else []
    header = (
        "nodes",
        "devices",
        *(_SHORT.get(name, name) for name in names),
        "needed",
        "capacity",
        "full",
    )
    largest = {name: max(dict(host.items).get(name, 0) for host in hosts) for name in names}
    spare = [2 + names.index(name) for name in sorted(names, key=lambda name: largest[name])]
    return plain_table(header, rows, right=range(1, len(header)), whole=(0,), spare=spare)


def _host_row(host: HostMemory, *, names: tuple[str, ...]) -> tuple[str, ...]:
    items = dict(host.items)
    nodes = "node" if host.nodes == 1 else f"{host.nodes:,} from node"
    return (
        f"{nodes} {host.node} {host.kind}".strip(),
        str(host.devices),
        *(_gib(items.get(name, 0)) for name in names),
        _gib(host.need),
        _gib(host.capacity) if host.capacity else "not stated",
        format_percent(host.need / host.capacity, digits=0) if host.capacity else "",
    )


def equal_ranks(stages: tuple[StageMemory, ...]) -> list[tuple[StageMemory, ...]]:
    """Runs of neighbouring ranks with the same memory, layers and number of devices."""

    def look(stage: StageMemory) -> tuple[object, ...]:
        return (
            stage.layers,
            stage.devices,
            stage.items,
            stage.allocated,
            stage.reserved,
            stage.capacity,
            stage.kind,
        )

    return [tuple(run) for _, run in groupby(sorted(stages, key=lambda s: s.rank), key=look)]


def _few(runs: list[tuple[StageMemory, ...]]) -> list[tuple[StageMemory, ...]]:
    if len(runs) <= FEW_ROWS:
        return runs
    worst = max(range(len(runs)), key=lambda i: runs[i][0].reserved)
    shown = sorted({0, 1, worst, len(runs) - 2, len(runs) - 1})
    return [runs[i] for i in shown]


def _devices(run: tuple[StageMemory, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """The devices of a row, and a shorter form: the first device and the number of others."""
    if not classes:
        return (str(run[0].rank) if len(run) == 1 else f"{run[0].rank}-{run[-1].rank}",)
    first, last = classes[run[0].rank], classes[run[-1].rank]
    text = first if len(run) == 1 else f"{first} .. {last}"
    found = re.match(r"[0-9]+", first)
    more = sum(stage.devices for stage in run) - 1
    return (text, f"{found[0] if found else ''} +{more:,} more" if more else text)


def _kind(name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """A kind of device, and the fewest of its parts by which it is told from the others:
    ``a100-sxm-40gb``, ``a100``.
    """
    parts = [kind.split("-") for kind in kinds]
    most = max(map(len, parts))
    count = next(
        (n for n in range(1, most) if len({tuple(one[:n]) for one in parts}) == len(kinds)), most
    )
    return (name, "-".join(name.split("-")[:count]))


_COUNT: Final = re.compile(r"[0-9]{1,9}(?= )")
"""The count of equal blocks. The text may come from a file: no longer number is read."""


def _holds(text: str) -> tuple[str, ...]:
    """The blocks of a stage, and a shorter form: its first and last blocks and the number of
    blocks.
    """
    parts = text.split(" + ")
    counts = [_COUNT.match(part) for part in parts]
    blocks = sum(1 if count is None else int(count[0]) for count in counts)
    ends = (f"{parts[0]} .. {parts[-1]}",) if len(parts) > 2 else ()
    return (text, *ends, f"{blocks} block{'' if blocks == 1 else 's'}")


def _numbers(stage: StageMemory, *, names: tuple[str, ...], capacity: int) -> tuple[str, ...]:
    """The items of a stage, their sums, and how full its devices are."""
    items, room = dict(stage.items), stage.capacity or capacity
    return (
        *(_gib(items.get(name, 0)) for name in names),
        _gib(stage.allocated),
        _gib(stage.reserved),
        format_percent(stage.reserved / room, digits=0) if room else "",
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.2f}" if count else "-"
