"""Links of the devices of a node as ``rocm-smi --showtopo`` prints them, and their models where
``--showproductname`` is there too.

What is relied on: below ``Link Type between two GPUs`` a matrix of ``XGMI`` and ``PCIE`` with a
header of ``GPU0 GPU1 ..``; lines ``GPU[0] : (Topology) Numa Node: 1``; and ``GPU[0] : Card Series:
AMD Instinct MI300X OAM`` (``Card Model`` where that is a number). Source: the form that the program
prints (ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py).
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.connected_devices import island_sizes, parts_of, unordered
from shardwright.hardware.inventories.documents.lines_and_numbers import MAX_WORD, numbered_lines
from shardwright.hardware.inventories.node_facts import Found, Inventory, Paths, SeenNode, What

MAX_DEVICES: Final = 256
_HINT: Final = "all that rocm-smi --showtopo prints"
_TITLE: Final = "Link Type between two GPUs"
_DEVICE: Final = re.compile(r"GPU([0-9]{1,4})")
_OF_ONE: Final = re.compile(
    r"(?:GPU\[([0-9]{1,4})\]|GPU ([0-9]{1,4}))\s*: (?:\(Topology\) )?(Numa Node|Card [Ss]eries):"
    r" *\t*(.{1,200})"
)


def is_rocm_topology(text: str) -> bool:
    """The text has the title of the matrix of links."""
    return _TITLE in text


def read_rocm_topology(text: str, *, name: str) -> Inventory:
    """The node that it was printed on.

    Raises:
        ClusterError: rows or cells lack, a way in which devices are joined is not known, or two
        cells of one pair differ.
    """
    header, columns, rows, numa, series = (
        "",
        list[str](),
        dict[str, tuple[str, list[str]]](),
        dict[str, str](),
        dict[str, str](),
    )
    in_matrix = False
    for where, line in numbered_lines(text, name=name):
        words = line.split()
        if line.startswith("="):
            in_matrix = _TITLE in line
        elif in_matrix and words and not columns and all(_DEVICE.fullmatch(word) for word in words):
            header, columns = where, words
        elif in_matrix and words and words[0] in columns:
            rows.setdefault(words[0], (where, words[1:]))
        elif (said := _OF_ONE.fullmatch(line)) is not None:
            kept = numa if said[3] == "Numa Node" else series
            kept.setdefault(said[1] or said[2], said[4].strip()[:MAX_WORD])
    lacking = next((device for device in columns if device not in rows), "")
    if not columns or lacking or len(columns) > MAX_DEVICES or len(set(columns)) < len(columns):
        raise ClusterError(
            f"{name}: {f'no row of {lacking}' if lacking else 'no matrix of at most 256 devices'}",
            hint=_HINT,
        )
    facts = [Found(What.DEVICES, len(columns), header), *_links(columns, rows, numa, header)]
    models = set(series.values())
    if len(models) > 1:
        raise ClusterError(
            f"{name}: devices of {len(models)} models in a node: {', '.join(sorted(models))[:80]}",
            hint="one model a node",
        )
    facts += [Found(What.PRODUCT, model, name) for model in models]
    return Inventory(file=name, samples=(SeenNode(name="", where=header, facts=tuple(facts)),))


def _links(
    devices: list[str], rows: dict[str, tuple[str, list[str]]], numa: dict[str, str], header: str
) -> list[Found]:
    """Islands of devices that XGMI joins; where not all are, the devices of each processor."""
    cells: dict[tuple[int, int], str] = {}
    for (i, one), (j, other) in combinations(enumerate(devices), 2):
        (where, there), (at, back) = rows[one], rows[other]
        if len(there) != len(devices) or len(back) != len(devices):
            raise ClusterError(
                f"{where}: {len(there)} cells for {len(devices)} columns", hint=_HINT
            )
        if there[j] != back[i]:
            raise ClusterError(
                f"{one} and {other} are joined by {there[j][:20]} in {where}, and by {back[i][:20]}"
                f" in {at}",
                hint="a matrix says the same both ways",
            )
        if there[j] not in ("XGMI", "PCIE"):
            raise ClusterError(
                f"{where}: {there[j][:20]!r} is no way in which devices are joined",
                hint="XGMI or PCIE",
            )
        cells[i, j] = there[j]
    linked = [pair for pair, cell in cells.items() if cell == "XGMI"]
    found = [Found(What.ISLANDS, island_sizes(len(devices), linked), header)]
    numbers = [device.removeprefix("GPU") for device in devices]
    if (
        len(linked) < len(cells)
        and found[0].value != (len(devices),)
        and all(number in numa for number in numbers)
    ):
        near = [(i, j) for i, j in cells if numa[numbers[i]] == numa[numbers[j]]]
        parts = [parts_of(len(devices), pairs) for pairs in (linked, (*linked, *near))]
        order = unordered(parts)
        found.append(Found(What.PATHS, Paths(*(tuple(map(len, one)) for one in parts)), header))
        found += [Found(What.ORDER, order, header)] if order else []
    return found
