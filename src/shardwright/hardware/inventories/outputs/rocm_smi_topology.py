"""Reader of ``rocm-smi --showtopo --showproductname``: XGMI links and models of a node's GPUs.

The reader relies on: below ``Link Type between two GPUs`` a matrix of ``XGMI`` and ``PCIE`` with a
header of ``GPU0 GPU1 ..``; lines ``GPU[0] : (Topology) Numa Node: 1``; and ``GPU[0] : Card Series:
AMD Instinct MI300X OAM`` (``Card Model`` where that is a number). Source: the form that the program
prints (ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py).
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.connected_device_groups import (
    connected_parts,
    device_order_remark,
    island_sizes,
)
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, numbered_lines
from shardwright.hardware.inventories.node_facts import (
    FactKind,
    FoundFact,
    Inventory,
    PciePaths,
    SeenNode,
)

MAX_DEVICES: Final = 256
_HINT: Final = "all that rocm-smi --showtopo prints"
_TITLE: Final = "Link Type between two GPUs"
_DEVICE: Final = re.compile(r"GPU([0-9]{1,4})")
_OF_ONE: Final = re.compile(
    r"(?:GPU\[([0-9]{1,4})\]|GPU ([0-9]{1,4}))\s*: (?:\(Topology\) )?(Numa Node|Card [Ss]eries):"
    r" *\t*(.{1,200})"
)


def is_rocm_topology(text: str) -> bool:
    """True if the text has the title of rocm-smi's matrix of links."""
    return _TITLE in text


def read_rocm_topology(text: str, *, name: str) -> Inventory:
    """Read devices, XGMI islands and model of one node from ``rocm-smi --showtopo``.

    Raises:
        ClusterError: rows or cells are missing, a kind of path is not known, or the two cells of a
            pair differ.
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
    facts = [
        FoundFact(FactKind.DEVICES, len(columns), header),
        *_link_facts(columns, rows, numa, header),
    ]
    models = set(series.values())
    if len(models) > 1:
        raise ClusterError(
            f"{name}: devices of {len(models)} models in a node: {', '.join(sorted(models))[:80]}",
            hint="one model a node",
        )
    facts += [FoundFact(FactKind.PRODUCT, model, name) for model in models]
    return Inventory(file=name, samples=(SeenNode(name="", where=header, facts=tuple(facts)),))


def _link_facts(
    devices: list[str], rows: dict[str, tuple[str, list[str]]], numa: dict[str, str], header: str
) -> list[FoundFact]:
    """Facts of a link matrix: XGMI island sizes and, if several, devices of each processor."""
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
    found = [FoundFact(FactKind.ISLANDS, island_sizes(len(devices), linked), header)]
    numbers = [device.removeprefix("GPU") for device in devices]
    if (
        len(linked) < len(cells)
        and found[0].value != (len(devices),)
        and all(number in numa for number in numbers)
    ):
        near = [(i, j) for i, j in cells if numa[numbers[i]] == numa[numbers[j]]]
        parts = [connected_parts(len(devices), pairs) for pairs in (linked, (*linked, *near))]
        order = device_order_remark(parts)
        found.append(
            FoundFact(FactKind.PATHS, PciePaths(*(tuple(map(len, one)) for one in parts)), header)
        )
        found += [FoundFact(FactKind.ORDER, order, header)] if order else []
    return found
