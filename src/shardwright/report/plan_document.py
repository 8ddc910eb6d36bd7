"""A plan's picture as JSON: the folded structure."""

from __future__ import annotations

from typing import Any, Final

from shardwright.report.plan_picture import Picture
from shardwright.report.split_tree import TreeNode

SCHEMA: Final = "shardwright.picture"
VERSION: Final = 1


def picture_document(picture: Picture) -> dict[str, Any]:
    """Rows, columns and cells by their numbers, the split trees, the orders. Cells of a lane and a chunk are that stage."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "name": picture.name,
        "devices": picture.devices,
        "lanes": [
            {"name": name, "takes": takes, "trees": list(letters)}
            for (name, takes), letters in zip(picture.lanes, picture.letters, strict=True)
        ],
        "columns": [{"blocks": column.blocks, "parts": list(column.parts)} for column in picture.columns],
        "rows": [{"count": row.count, "devices": row.devices, "first": int(row.members[0])} for row in picture.rows],
        "cells": [
            {"row": cell.row, "column": cell.column, "lane": cell.lane, "chunk": cell.chunk, "degrees": cell.degrees}
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
        "orders": [{"title": order.title, "rows": [{"device": d, "slots": slots} for d, slots in order.lines]} for order in picture.orders],
    }


def _tree(node: TreeNode) -> dict[str, Any]:
    found: dict[str, Any] = {"label": node.label}
    if node.branch:
        found["branch"] = node.branch
    if node.children:
        found["children"] = [_tree(child) for child in node.children]
    return found
