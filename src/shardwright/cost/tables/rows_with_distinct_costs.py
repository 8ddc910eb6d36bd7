"""Distinct rows: table rows whose layers cost differently.

A layer's cost depends on degrees and on how groups lie, not on why they lie so.
"""

from __future__ import annotations

import numpy as np

from shardwright.arrays import IntArray
from shardwright.cost.network.grid_groups_and_collective_seconds import (
    all_alike,
    network_of,
    spans_along,
)
from shardwright.cost.parallel_degree_columns import DegreeRows
from shardwright.program.training_problem import Problem

_DEGREES = ("tp", "sp", "cp", "ulysses", "gather", "ep", "etp", "mbs", "s_tp")
_AXES = ("tp", "ulysses", "ring", "ep", "etp", "coset")
_MIX = 0x9E3779B97F4A7C15
"""An odd number without a pattern in its bits (2^64 over the golden ratio), to mix columns with."""


def distinct_rows(problem: Problem, rows: DegreeRows) -> tuple[DegreeRows, IntArray]:
    """Rows with distinct layer costs, and for each given row the index of its equal among them.

    Experts are spread over tp, cp and dp, so that meshes of every dp and pp are rows; most of their
    groups lie alike: of DeepSeek-V3 on 2,048 devices that may idle, 34,163 rows are 1,487.
    """
    network = network_of(problem.cluster, library=problem.runtime.collective_library)
    columns = [rows[name] for name in (*_DEGREES, "within") if name in rows.columns] + [
        all_alike(rows, network).astype(np.int64)
    ]
    for axis in _AXES:
        for span in spans_along(axis, rows, network):
            parts = (*span.below, *span.bandwidth, *span.latency_s)
            columns += [
                np.ascontiguousarray(np.broadcast_to(part, len(rows))).view(np.int64)
                for part in parts
            ]
    varying = [column for column in columns if len(column) and (column != column[0]).any()]
    mixed = np.zeros(len(rows), dtype=np.uint64)
    for column in varying:
        mixed = (mixed ^ column.view(np.uint64)) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(29)
    _, first_row, place = np.unique(mixed, return_index=True, return_inverse=True)
    if any((column[first_row][place] != column).any() for column in varying):
        # Two different rows were mixed into one number.
        return rows, np.arange(len(rows), dtype=np.int64)
    return rows.take(first_row), place.reshape(-1).astype(np.int64)
