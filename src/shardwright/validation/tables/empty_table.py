"""An empty table for people to fill in: columns with their meanings, and two complete rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Column = tuple[str, str, tuple[str, str]]
"""Name, meaning, and the cells of the two example rows."""

SOURCE_COLUMNS: Final[tuple[Column, ...]] = (
    ("source_id", "who measured it", ("mine", "mine")),
    ("table_or_row", "what tells it from other rows", ("run 1", "run 2")),
)
CONFIG_COLUMN: Final[Column] = (
    "config",
    (
        "path of a Hugging Face config.json from the table's folder, or its text, where it is no"
        " model of the catalog"
    ),
    ("", ""),
)
MODEL_MEANING: Final = "a model of `shardwright catalog models`; any name beside `config`"
GPU_MEANING: Final = "accelerator: of the catalog, or as its driver calls it"


def template_text(columns: Sequence[Column]) -> str:
    """CSV text of the two example rows, which `validate` predicts as they are."""
    header = ",".join(name for name, _, _ in columns)
    rows = (",".join(cells[place] for _, _, cells in columns) for place in range(2))
    return "\n".join([header, *rows]) + "\n"
