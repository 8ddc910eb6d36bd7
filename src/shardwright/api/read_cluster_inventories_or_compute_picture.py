"""Read a cluster from topology, scheduler and nccl-tests files, and compute a cluster's picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from shardwright.api.request_to_problem import load_cluster
from shardwright.calibrate.parse_nccl_tests_output import parse_nccl_tests, points_by_group
from shardwright.errors import ClusterError, UsageError
from shardwright.hardware.cluster_expression import parse_links
from shardwright.hardware.inventories.cluster_from_inventories import (
    ClusterRead,
    cluster_from_inventories,
)
from shardwright.hardware.inventories.detect_format_and_read_inventory import (
    FORMATS,
    Format,
    read_inventory_file,
)
from shardwright.hardware.inventories.node_facts import BusRate, Inventory
from shardwright.hardware.profile.measured_rates import bus_share
from shardwright.report.pictures.cluster_picture_content import ClusterPicture, cluster_picture
from shardwright.units import MIB, format_bytes

MAX_FILES: Final = 64
LARGE_BYTES: Final = 64 * MIB
"""Message size from which on a collective reaches the rate of its links."""


def read_cluster(
    files: Sequence[Path],
    *,
    accelerators: Sequence[str] = (),
    nodes: int = 0,
    links: Sequence[str] = (),
    all_nodes: bool = False,
) -> ClusterRead:
    """Read a cluster from files that describe it together, with facts found and assumptions made.

    The result includes a cluster file as text.

    Args:
        files: files in any of `ALL_FORMATS`; the content determines the format.
        accelerators: accelerator of nodes whose files name none: ``h100-sxm``, or an instance;
            ``WORD=h100-sxm`` for nodes that a file calls WORD.
        nodes: number of nodes, if no file lists them; 0 = one, or as many as a dump has.
        links: links of zones, ``east~west=25gbps/60ms``.
        all_nodes: count nodes too on which no job can be placed: down, drained, cordoned or not
            ready.

    Raises:
        ClusterError: a file has no form that is read, files contradict each other, or do not say
        enough. DataError: a table of nccl-tests is none. UsageError: an accelerator is given twice,
        or there are too many files.
    """
    if not 1 <= len(files) <= MAX_FILES:
        raise UsageError(f"{len(files)} files", hint=f"from 1 to {MAX_FILES}")
    given: dict[str, str] = {}
    for text in accelerators:
        word, _, name = text.rpartition("=")
        if word in given or not name:
            raise UsageError(
                f"--accelerator {text[:60]!r} says it again, or nothing",
                hint="--accelerator h100-sxm, or WORD=h100-sxm",
            )
        given[word] = name
    inventories = [read_inventory_file(path, formats=ALL_FORMATS) for path in files]
    return cluster_from_inventories(
        inventories, given=given, count=nodes, links=tuple(parse_links(links)), all_nodes=all_nodes
    )


def show_cluster(text: str) -> ClusterPicture:
    """Load a cluster from an expression or a file, and compute the picture of its tree.

    Raises:
        ClusterError: the text is not a cluster.
    """
    return cluster_picture(load_cluster(text))


def _is_nccl_tests(text: str) -> bool:
    """True if the text has the columns ``algbw`` and ``busbw`` of nccl-tests."""
    return "algbw" in text and "busbw" in text


def _read_nccl_tests(text: str, *, name: str) -> Inventory:
    """Read each collective's largest large-message bus bandwidth per device count."""
    rates: list[BusRate] = []
    largest = 0
    for (collective, devices), points in points_by_group(parse_nccl_tests(text, name=name)).items():
        largest = max(largest, *(volume for volume, _ in points))
        reached = [
            bus_share(collective, num_devices=devices) * volume / seconds
            for volume, seconds in points
            if volume >= LARGE_BYTES
        ]
        if reached:
            rates.append(
                BusRate(collective=collective, num_devices=devices, rate=max(reached), where=name)
            )
    if not rates:
        raise ClusterError(
            f"{name}: messages of at most {format_bytes(largest)} do not show what links carry",
            hint=f"at least {format_bytes(LARGE_BYTES)}: -e 1G",
        )
    return Inventory(file=name, rates=tuple(rates))


ALL_FORMATS: Final = (Format("nccl-tests", _is_nccl_tests, _read_nccl_tests), *FORMATS)
