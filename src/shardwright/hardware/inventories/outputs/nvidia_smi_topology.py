"""Reader of the ``nvidia-smi topo -m`` matrix: links between devices, and cards beside them.

The reader relies on: a header that begins with ``GPU0``; a row for each device, with a cell for
each column up to ``CPU Affinity``; ``NV#`` for so many NVLinks; ``PIX`` and ``PXB`` for PCIe
switches alone, ``PHB`` and ``NODE`` for one processor, ``SYS`` for the link between two; a legend
of the cards' names. Cells are apart by tabs, or by spaces where the text was copied. Source: the
legend that the program prints.
"""

from __future__ import annotations

import re
from io import StringIO
from itertools import combinations
from typing import Final

from shardwright.errors import ClusterError
from shardwright.hardware.inventories.connected_device_groups import (
    connected_parts,
    device_order_remark,
    island_sizes,
    require_all_links,
)
from shardwright.hardware.inventories.documents.size_limited_text import MAX_WORD, numbered_lines
from shardwright.hardware.inventories.node_facts import (
    DeviceLinks,
    FactKind,
    FoundFact,
    Inventory,
    PciePaths,
    SeenNode,
)
from shardwright.lazily_compiled_dataclass import dataclass

MAX_COLUMNS: Final = 256
MOST_LINKS: Final = 18
"""Most NVLinks of any device; a larger total over all peers counts links to a switch."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,16}m")
_DEVICE: Final = re.compile(r"GPU[0-9]{1,4}")
_CELL: Final = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|SOC|NV[0-9]{1,3}|C2C|N/A|DIS|NS")
_LEGEND: Final = re.compile(r"(NIC[0-9]{1,4}): +(\S+)")
_BESIDE: Final = ("PIX", "PXB")
_ONE_PROCESSOR: Final = (*_BESIDE, "PHB", "NODE")


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the matrix: its place, and its cell for each column."""

    where: str
    cells: dict[str, str]


def is_topo_matrix(text: str) -> bool:
    """True if the text has the row ``GPU0 X ..`` of the ``nvidia-smi topo -m`` matrix."""
    return "GPU0" in text and any(
        _COLOUR.sub("", line[:MAX_WORD]).split()[:2] == ["GPU0", "X"] for line in StringIO(text)
    )


def read_topo_matrix(text: str, *, name: str) -> Inventory:
    """Read devices, NVLinks, PCIe paths and cards of one node from ``nvidia-smi topo -m``.

    Raises:
        ClusterError: rows or cells are missing, or the two cells of a pair differ.
    """
    header, columns, rows, names = "", list[str](), dict[str, _Row](), dict[str, str]()
    for where, line in numbered_lines(text, name=name):
        words = _COLOUR.sub("", line).split()
        if words and not columns and words[0] == "GPU0" and words[1:2] != ["X"]:
            header, columns = where, _header_columns(words, where=where)
        elif words and words[0] in columns:
            rows.setdefault(words[0], _matrix_row(words, columns, where=where))
        elif (legend := _LEGEND.fullmatch(" ".join(words))) is not None:
            names[legend[1]] = legend[2][:MAX_WORD]
    devices = [column for column in columns if _DEVICE.fullmatch(column)]
    lacking = next((device for device in devices if device not in rows), "")
    if not devices or lacking:
        raise ClusterError(
            f"{name}: no row of {lacking or 'GPU0'}", hint="all that nvidia-smi topo -m prints"
        )
    cards = [column for column in columns if column not in devices]
    facts = [
        FoundFact(FactKind.DEVICES, len(devices), header),
        *_link_facts(devices, rows, header),
        *_path_facts(devices, rows, header),
        *_card_facts(devices, cards, rows, names, header),
    ]
    return Inventory(file=name, samples=(SeenNode(name="", where=header, facts=tuple(facts)),))


def _header_columns(words: list[str], *, where: str) -> list[str]:
    """Device and card columns of a header, up to ``CPU Affinity``."""
    found = words[: words.index("CPU")] if "CPU" in words else words
    if len(found) > MAX_COLUMNS or len(set(found)) < len(found):
        raise ClusterError(
            f"{where}: a header of {len(found)} columns", hint=f"at most {MAX_COLUMNS}, each once"
        )
    return found


def _matrix_row(words: list[str], columns: list[str], *, where: str) -> _Row:
    """Parse the cells of a row; ClusterError if one is missing or unknown."""
    cells = words[1 : len(columns) + 1]
    odd = next((cell for cell in cells if not _CELL.fullmatch(cell)), "")
    if odd or len(cells) < len(columns):
        said = (
            f"{odd[:20]!r} is no way in which devices are joined"
            if odd
            else f"{len(cells)} cells for {len(columns)} columns"
        )
        raise ClusterError(
            f"{where}: {said}",
            hint="X, NV1 to NV18, PIX, PXB, PHB, NODE or SYS, as nvidia-smi topo -m prints them",
        )
    return _Row(where, dict(zip(columns, cells, strict=True)))


def _nvlink_count(cell: str) -> int:
    """NVLinks of a cell; 0 where it is another kind of path."""
    return int(cell.removeprefix("NV")) if cell.startswith("NV") else 0


def _link_facts(devices: list[str], rows: dict[str, _Row], header: str) -> list[FoundFact]:
    """Facts of the scale-up islands and of a device's NVLinks."""
    pairs: dict[tuple[int, int], int] = {}
    for (i, one), (j, other) in combinations(enumerate(devices), 2):
        there, back = rows[one].cells[other], rows[other].cells[one]
        if _nvlink_count(there) != _nvlink_count(back):
            raise ClusterError(
                f"{one} and {other} are joined by {there} in {rows[one].where}, and by {back} in"
                f" {rows[other].where}",
                hint="a matrix says the same both ways",
            )
        if _nvlink_count(there):
            pairs[i, j] = _nvlink_count(there)
    found = [FoundFact(FactKind.ISLANDS, island_sizes(len(devices), pairs), header)]
    if pairs:
        of_each = [
            [count for pair, count in pairs.items() if device in pair]
            for device in range(len(devices))
        ]
        sums = list(map(sum, of_each))
        if max(sums) > MOST_LINKS:
            # A cell counts the links to the switch that both of its devices have.
            require_all_links([max(some, default=0) for some in of_each], devices, where=header)
        peer = next(iter(pairs.values())) if len(set(pairs.values())) == 1 else 0
        total = min(some for some in sums if some)
        found.append(
            FoundFact(
                FactKind.LINKS,
                DeviceLinks(peer, peer if peer and total > MOST_LINKS else total),
                rows[devices[0]].where,
            )
        )
    return found


def _path_facts(devices: list[str], rows: dict[str, _Row], header: str) -> list[FoundFact]:
    """Facts of the devices below each PCIe switch and processor, and of their order."""
    cells = {
        (i, j): rows[one].cells[other]
        for (i, one), (j, other) in combinations(enumerate(devices), 2)
    }
    if not any(cell in (*_ONE_PROCESSOR, "SYS", "SOC") for cell in cells.values()):
        return []
    linked = [pair for pair, cell in cells.items() if _nvlink_count(cell)]
    below = [*linked, *(pair for pair, cell in cells.items() if cell in _BESIDE)]
    within = [*below, *(pair for pair, cell in cells.items() if cell in _ONE_PROCESSOR)]
    parts = [connected_parts(len(devices), pairs) for pairs in (linked, below, within)]
    order = device_order_remark(parts)
    paths = PciePaths(*(tuple(map(len, one)) for one in parts[1:]))
    return [
        FoundFact(FactKind.PATHS, paths, header),
        *([FoundFact(FactKind.ORDER, order, header)] if order else []),
    ]


def _card_facts(
    devices: list[str], cards: list[str], rows: dict[str, _Row], names: dict[str, str], header: str
) -> list[FoundFact]:
    """Facts of the network cards for traffic between nodes: number, and devices beside each.

    Where some cards are behind a PCIe switch of a device, the others serve storage and hosts.
    """
    beside = {
        card: [device for device in devices if rows[device].cells[card] in _BESIDE]
        for card in cards
    }
    counted = [card for card in cards if beside[card]] or cards
    if not counted:
        return []
    found = [FoundFact(FactKind.NICS, len(counted), header)]
    words = [
        f"{names.get(card, card)} {'+'.join(beside[card])}" for card in counted if beside[card]
    ]
    far = [names.get(card, card) for card in cards if card not in counted]
    if words:
        found.append(
            FoundFact(
                FactKind.NEAR,
                ", ".join(words) + (f"; beside none, not counted: {', '.join(far)}" if far else ""),
                header,
            )
        )
    return found
