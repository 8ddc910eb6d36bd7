"""Light fill colours for numbered items, used in turn; dark text is legible on each."""

from __future__ import annotations

from typing import Final

PALETTE: Final = (
    "#a6cee3", "#fdbf6f", "#b2df8a", "#fb9a99", "#cab2d6", "#ffff99",
    "#8dd3c7", "#e5c494", "#bebada", "#fccde5", "#d9d9d9", "#ccebc5",
)  # fmt: skip
