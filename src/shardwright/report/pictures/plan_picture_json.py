"""A plan's picture as JSON: the folded structure."""

from __future__ import annotations

from typing import Any, Final

from shardwright.program.step_trace import Span
from shardwright.report.pictures.plan_picture import Picture
from shardwright.report.pictures.split_tree import TreeNode
from shardwright.report.pictures.step_picture import StepPicture, room_of

SCHEMA: Final = "shardwright.picture"
VERSION: Final = 1


def picture_document(picture: Picture) -> dict[str, Any]:
    """Rows, columns and cells by their numbers, the split trees, the orders. Cells of a lane and a
    chunk are that stage.
    """
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "version": VERSION,
        "name": picture.name,
        "devices": picture.devices,
        "lanes": [
            {"name": name, "takes": takes, "trees": list(letters)}
            for (name, takes), letters in zip(picture.lanes, picture.letters, strict=True)
        ],
        "columns": [
            {"blocks": column.blocks, "parts": list(column.parts)} for column in picture.columns
        ],
        "rows": [
            {"count": row.count, "devices": row.devices, "first": int(row.members[0])}
            | ({"kind": row.kind} if row.kind else {})
            for row in picture.rows
        ],
        "cells": [
            {
                "row": cell.row,
                "column": cell.column,
                "lane": cell.lane,
                "chunk": cell.chunk,
                "degrees": cell.degrees,
            }
            for cell in picture.cells
        ],
        "trees": [
            {
                "letter": trees.letter,
                "stages": list(trees.stages),
                "trees": [{"classes": title, "root": _tree(root)} for title, root in trees.trees],
            }
            for trees in picture.trees
        ],
        "orders": [
            {
                "title": order.title,
                "rows": [{"device": d, "slots": slots} for d, slots in order.lines],
            }
            for order in picture.orders
        ],
    }
    return found if picture.step is None else found | {"step": _step(picture.step)}


def _step(step: StepPicture) -> dict[str, Any]:
    """The whole step: spans in seconds, bytes of memory, bytes sent over each tier."""
    return {
        "cluster": step.cluster,
        "step_s": step.step_s,
        "end_s": step.end_s,
        "tiers": list(step.tiers),
        "nodes": [
            {"first": nodes.first, "count": nodes.count, "rows": list(nodes.rows)}
            for nodes in step.nodes
        ],
        "rows": [
            {
                "device": row.device,
                "alike": row.alike,
                "runs": row.runs,
                "idle_s": row.idle_s,
                "capacity_bytes": room_of(step, row),
                **({"kind": row.memory.kind} if row.memory.kind else {}),
                "reserved_bytes": row.memory.reserved,
                "memory_bytes": dict(row.memory.items),
                "spans": [_span(span) for span in (*row.compute, *row.beside)],
                "sent": [
                    {"part": one.part, "group": list(one.group), "bytes": list(one.sent)}
                    for one in row.traffic
                ],
            }
            for row in step.rows
        ],
    }


def _span(span: Span) -> dict[str, Any]:
    where = {
        "lane": span.lane,
        "chunk": span.chunk,
        "microbatch": span.microbatch,
        "slice": span.slice,
    }
    return {
        "track": span.track.value,
        "kind": span.kind,
        "start_s": span.start_s,
        "end_s": span.end_s,
        **where,
    }


def _tree(node: TreeNode) -> dict[str, Any]:
    found: dict[str, Any] = {"label": node.label}
    if node.branch:
        found["branch"] = node.branch
    if node.children:
        found["children"] = [_tree(child) for child in node.children]
    return found
