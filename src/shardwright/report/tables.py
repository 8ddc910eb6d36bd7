"""The one look of all tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), whole: Sequence[int] = ()) -> Table:
    """A table without lines.

    `right`: columns that are set to the right; `whole`: columns that are not broken; a header of empty words is left out.
    """
    table = Table(box=None, show_header=any(header), pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column, title in enumerate(header):
        table.add_column(title, justify="right" if column in right else "left", no_wrap=column in right or column in whole, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
