"""JSON document of a plan's picture."""

from __future__ import annotations

from typing import Any, Final

from shardwright.program.step_trace import Span
from shardwright.report.pictures.plan_picture_content import PlanPicture
from shardwright.report.pictures.split_tree_nodes_and_text_lines import TreeNode
from shardwright.report.pictures.step_picture_content import StepPicture, capacity_bytes

SCHEMA: Final = "shardwright.picture"
VERSION: Final = 1


def picture_document(picture: PlanPicture) -> dict[str, Any]:
    """JSON document of a plan picture: rows, columns, cells, split trees and schedules.

    Cells refer to rows and columns by number; cells of a lane and a chunk are that stage.
    """
    document: dict[str, Any] = {
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
    return document if picture.step is None else document | {"step": _step(picture.step)}


def _step(step: StepPicture) -> dict[str, Any]:
    """JSON object of the simulated step: spans in seconds, bytes of memory, bytes sent by tier."""
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
                "capacity_bytes": capacity_bytes(step, row),
                **({"kind": row.memory.kind} if row.memory.kind else {}),
                "reserved_bytes": row.memory.reserved,
                "memory_bytes": dict(row.memory.items),
                "spans": [_span(span) for span in (*row.compute, *row.beside)],
                "sent": [
                    {
                        "part": group_traffic.part,
                        "group": list(group_traffic.group),
                        "bytes": list(group_traffic.sent),
                    }
                    for group_traffic in row.traffic
                ],
            }
            for row in step.rows
        ],
    }


def _span(span: Span) -> dict[str, Any]:
    """JSON object of one span of the timeline: track, kind, start and end in seconds, action."""
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
    """JSON object of a split-tree node and its children."""
    document: dict[str, Any] = {"label": node.label}
    if node.branch:
        document["branch"] = node.branch
    if node.children:
        document["children"] = [_tree(child) for child in node.children]
    return document
