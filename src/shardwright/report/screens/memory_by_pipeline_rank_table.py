"""Table of the memory of every pipeline rank, itemised, with equal ranks in one row."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Final

from shardwright.report.terminal_table import PlainTable, plain_table
from shardwright.simulator.prediction import HostMemory, Prediction, StageMemory
from shardwright.units import GIB, format_percent

MAX_ROWS = 6
MAX_ITEMS = 5
_TITLES = {
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
"""Short titles of the memory columns, in their order."""


def memory_table(
    prediction: Prediction, *, all_stages: bool = False, classes: tuple[str, ...] = ()
) -> PlainTable:
    """Table of memory in GiB by item, a row for each run of equal ranks; `classes`: rank names.

    Of many rows the first, the last, the fullest and their neighbours are shown, unless
    `all_stages`.

    Every row is one line. A narrow screen leaves out the smallest items, then their sum, which the
    title has; then what a stage holds and which devices are shortened; then further items are left
    out.

    Args:
        classes: devices of each class as text, for general plans: they stand in the place of the
            stages' numbers.
    """
    runs = equal_ranks(prediction.stages)
    chosen = runs if all_stages else _rows_to_show(runs)
    items = dict.fromkeys(name for stage in prediction.stages for name, _ in stage.items)
    names = tuple(
        sorted(
            items, key=lambda name: list(_TITLES).index(name) if name in _TITLES else len(_TITLES)
        )
    )
    kinds = tuple(dict.fromkeys(stage.kind for stage in prediction.stages if stage.kind))
    labels = ("devices" if classes else "stage", *(["kind"] if kinds else []), "holds")
    header = (
        *labels,
        *(_TITLES.get(name, name) for name in names),
        "allocated",
        "reserved",
        "full",
    )
    rows: list[tuple[str, ...]] = []
    forms: list[tuple[tuple[str, ...], ...]] = []
    before = -1
    for run in chosen:
        if run[0].rank > before + 1:
            rows.append(("...", *("" for _ in header[1:])))
            forms.append((("...",),) * len(labels))
        before = run[-1].rank
        label_forms = (
            _device_texts(run, classes),
            *([_kind_texts(run[0].kind, kinds)] if kinds else []),
            _block_texts(run[0].layers),
        )
        rows.append(
            (
                *(form[0] for form in label_forms),
                *_memory_cells(run[0], names=names, capacity=prediction.capacity_bytes),
            )
        )
        forms.append(label_forms)
    largest = {
        name: max(dict(stage.items).get(name, 0) for stage in prediction.stages) for name in names
    }
    columns = [
        len(labels) + names.index(name) for name in sorted(names, key=lambda name: largest[name])
    ]
    few = max(len(columns) - MAX_ITEMS, 0)
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
    """Table of host memory in GiB by item, a row for nodes of equal need.

    A narrow screen leaves out the smallest items.
    """
    names = tuple(dict.fromkeys(name for host in hosts for name, _ in host.items))
    rows = [_host_row(host, names=names) for host in hosts[:MAX_ROWS]]
    rows += [("...", *("" for _ in range(len(names) + 4)))] if len(hosts) > MAX_ROWS else []
    header = (
        "nodes",
        "devices",
        *(_TITLES.get(name, name) for name in names),
        "needed",
        "capacity",
        "full",
    )
    largest = {name: max(dict(host.items).get(name, 0) for host in hosts) for name in names}
    spare = [2 + names.index(name) for name in sorted(names, key=lambda name: largest[name])]
    return plain_table(header, rows, right=range(1, len(header)), whole=(0,), spare=spare)


def _host_row(host: HostMemory, *, names: tuple[str, ...]) -> tuple[str, ...]:
    """Cells of nodes with equal need: name, devices, items in GiB, need, capacity, percent."""
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
        """Layers, devices, memory and kind of a rank, by which neighbouring ranks are equal."""
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


def _rows_to_show(runs: list[tuple[StageMemory, ...]]) -> list[tuple[StageMemory, ...]]:
    """Runs of ranks to show: all, or of many the first and last two and the fullest."""
    if len(runs) <= MAX_ROWS:
        return runs
    worst = max(range(len(runs)), key=lambda i: runs[i][0].reserved)
    indices = sorted({0, 1, worst, len(runs) - 2, len(runs) - 1})
    return [runs[i] for i in indices]


def _device_texts(run: tuple[StageMemory, ...], classes: tuple[str, ...]) -> tuple[str, ...]:
    """Texts of a run's devices, longest first; `classes`: devices by rank, else ranks are named."""
    if not classes:
        return (str(run[0].rank) if len(run) == 1 else f"{run[0].rank}-{run[-1].rank}",)
    first, last = classes[run[0].rank], classes[run[-1].rank]
    text = first if len(run) == 1 else f"{first} .. {last}"
    first_number = re.match(r"[0-9]+", first)
    others = sum(stage.devices for stage in run) - 1
    return (text, f"{first_number[0] if first_number else ''} +{others:,} more" if others else text)


def _kind_texts(name: str, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """(name of a device kind, shortest prefix that differs from the other kinds).

    Of ``a100-sxm-40gb``, the prefix is ``a100``.
    """
    parts = [kind.split("-") for kind in kinds]
    longest = max(map(len, parts))
    count = next(
        (n for n in range(1, longest) if len({tuple(words[:n]) for words in parts}) == len(kinds)),
        longest,
    )
    return (name, "-".join(name.split("-")[:count]))


_COUNT: Final = re.compile(r"[0-9]{1,9}(?= )")
"""The count of equal blocks. The text may come from a file: no longer number is read."""


def _block_texts(text: str) -> tuple[str, ...]:
    """Texts of a stage's blocks, longest first: all, first and last, number of blocks."""
    parts = text.split(" + ")
    counts = [_COUNT.match(part) for part in parts]
    blocks = sum(1 if count is None else int(count[0]) for count in counts)
    ends = (f"{parts[0]} .. {parts[-1]}",) if len(parts) > 2 else ()
    return (text, *ends, f"{blocks} block{'' if blocks == 1 else 's'}")


def _memory_cells(stage: StageMemory, *, names: tuple[str, ...], capacity: int) -> tuple[str, ...]:
    """Cells of a stage in GiB: items, allocated, reserved, and the percentage of capacity."""
    items, room = dict(stage.items), stage.capacity_or(capacity)
    return (
        *(_gib(items.get(name, 0)) for name in names),
        _gib(stage.allocated),
        _gib(stage.reserved),
        format_percent(stage.reserved / room, digits=0) if room else "",
    )


def _gib(count: int) -> str:
    """Format bytes as GiB with two decimals, or a dash for zero."""
    return f"{count / GIB:.2f}" if count else "-"
