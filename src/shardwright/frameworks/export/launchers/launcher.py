"""The form of a launcher: it starts an export's start script on every node of the plan's cluster,
with the node's number and its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeVar

from shardwright.frameworks.export.exporter import ExportFile, Given
from shardwright.frameworks.export.placement import Node, Placement
from shardwright.frameworks.export.start_script import GPUS, NODE
from shardwright.lazy_dataclass import dataclass

_LABEL: Final = 40
"""Letters of a job's name: what is hung on to it stays within the 63 of a DNS label."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedExport:
    """An export and its placement, which a scheduler starts.

    Args:
        placement: of the ranks.
        files: that the target reads;
        start: the one of them that every node runs.
        image: of containers; empty = not said.
    """

    given: Given
    placement: Placement
    files: tuple[ExportFile, ...]
    start: ExportFile
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher: one scheduler and the form that it reads.

    Args:
        name: word of the command line.
        summary: what is written, in a few words.
        file: what the scheduler reads, of a plan that it can start.
        refused: why it cannot start a plan, in words; empty = it can.
    """

    name: str
    summary: str
    file: Callable[[PlacedExport], ExportFile]
    refused: Callable[[PlacedExport], str] = lambda _: ""


def job_name(given: Given) -> str:
    """A name of the job, which is a DNS label that starts with a letter: the model's, as far as its
    letters go.
    """
    found = label(given.problem.model.name)
    return found if found[:1].isalpha() else label(f"plan-{found}")


def label(text: str) -> str:
    """Small letters, digits and hyphens of a name,
    few enough for a DNS label or a label's value.
    """
    return re.sub(r"[^a-z0-9]+", "-", text[:4096].lower()).strip("-")[:_LABEL].strip("-")


def runs(
    nodes: Sequence[Node], key: Callable[[Node], Key]
) -> Iterator[tuple[int, tuple[Node, ...], Key]]:
    """Nodes in a row that are alike: the number of the first, the nodes, and what they share."""
    first = 0
    for shared, same in groupby(nodes, key=key):
        members = tuple(same)
        yield first, members, shared
        first += len(members)


def ranks_by_node(nodes: Sequence[Node]) -> list[str]:
    """Lines of shell that set `GPUS` to the ranks of the node whose number is in `NODE`."""
    (_, _, ranks), *others = runs(nodes, lambda node: node.ranks)
    return [
        f"export {GPUS}={ranks}",
        *(f'[ "${NODE}" -lt {first} ] || export {GPUS}={ranks}' for first, _, ranks in others),
    ]


def kinds(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Accelerators of the nodes, each once."""
    return tuple(dict.fromkeys(node.kind.accelerator.name for node in nodes))
