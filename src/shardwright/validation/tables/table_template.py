"""An empty table for users to fill in: columns with meanings, and two complete rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

TemplateColumn = tuple[str, str, tuple[str, str]]
"""(name, meaning, cells of the two example rows)."""

SOURCE_COLUMNS: Final[tuple[TemplateColumn, ...]] = (
    ("source_id", "who measured it", ("mine", "mine")),
    ("table_or_row", "what tells it from other rows", ("run 1", "run 2")),
)
CONFIG_COLUMN: Final[TemplateColumn] = (
    "config",
    (
        "path of a Hugging Face config.json from the table's folder, or its text, where it is no"
        " model of the catalog"
    ),
    ("", ""),
)
MODEL_MEANING: Final = "a model of `shardwright catalog models`; any name beside `config`"
GPU_MEANING: Final = "accelerator: of the catalog, or as its driver calls it"


def template_text(columns: Sequence[TemplateColumn]) -> str:
    """CSV text of a template: header and two example rows that `validate` predicts as they are."""
    header = ",".join(name for name, _, _ in columns)
    rows = (",".join(cells[place] for _, _, cells in columns) for place in range(2))
    return "\n".join([header, *rows]) + "\n"
