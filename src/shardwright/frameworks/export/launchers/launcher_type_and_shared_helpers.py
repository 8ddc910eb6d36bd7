"""Type of a launcher, which starts an export's start script on every node through a scheduler.

The script gets the node's number and its ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeVar

from shardwright.frameworks.export.export_plan_shortfall_and_file_types import (
    ExportFile,
    PlanToExport,
)
from shardwright.frameworks.export.place_ranks_and_write_rank_map import PlacedNode, RankPlacement
from shardwright.frameworks.export.start_script import GPUS, NODE
from shardwright.lazily_compiled_dataclass import dataclass

_LABEL: Final = 40
"""Letters of a job's name: what is hung on to it stays within the 63 of a DNS label."""
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedExport:
    """An export with the placement of its ranks on nodes, ready for a scheduler.

    Args:
        placement: placement of the ranks on nodes.
        files: files that the target reads.
        start: the file that every node runs.
        image: container image; empty = not given.
    """

    export: PlanToExport
    placement: RankPlacement
    files: tuple[ExportFile, ...]
    start: ExportFile
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher for exports: one scheduler and the file format that it reads.

    Args:
        name: name on the command line.
        summary: the file that is written, in a few words.
        file: function that writes the scheduler's file for an export.
        refused: function that gives the reason why the scheduler cannot start an export; empty = it
            can.
    """

    name: str
    summary: str
    file: Callable[[PlacedExport], ExportFile]
    refused: Callable[[PlacedExport], str] = lambda _: ""


def job_name(export: PlanToExport) -> str:
    """Job name for a scheduler: a DNS label from the model's name that starts with a letter."""
    name = dns_label(export.problem.model.name)
    return name if name[:1].isalpha() else dns_label(f"plan-{name}")


def dns_label(text: str) -> str:
    """Lower-case letters, digits and hyphens of a text, short enough for a DNS label."""
    return re.sub(r"[^a-z0-9]+", "-", text[:4096].lower()).strip("-")[:_LABEL].strip("-")


def node_runs(
    nodes: Sequence[PlacedNode], key: Callable[[PlacedNode], Key]
) -> Iterator[tuple[int, tuple[PlacedNode, ...], Key]]:
    """Yield (number of the first node, nodes, key) of each run of nodes with equal keys."""
    first = 0
    for shared, same in groupby(nodes, key=key):
        members = tuple(same)
        yield first, members, shared
        first += len(members)


def ranks_by_node(nodes: Sequence[PlacedNode]) -> list[str]:
    """Shell lines that set `GPUS` by the node number in `NODE`: the node's number of ranks."""
    (_, _, ranks), *others = node_runs(nodes, lambda node: node.ranks)
    return [
        f"export {GPUS}={ranks}",
        *(f'[ "${NODE}" -lt {first} ] || export {GPUS}={ranks}' for first, _, ranks in others),
    ]


def accelerator_names(nodes: Sequence[PlacedNode]) -> tuple[str, ...]:
    """Names of the nodes' accelerators, each once."""
    return tuple(dict.fromkeys(node.kind.accelerator.name for node in nodes))
